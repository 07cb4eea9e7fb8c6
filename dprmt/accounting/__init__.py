"""Certified privacy accounting for mechanisms whose sensitivity is random."""
