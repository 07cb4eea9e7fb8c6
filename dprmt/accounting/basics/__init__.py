"""Shared basics of accounting: values, intervals, errors, grids of losses, numbers and notebook text."""
