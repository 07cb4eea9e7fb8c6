"""Errors of this room: what other packages' accountants cannot be told, and laws on the wrong side of a bound."""

from __future__ import annotations


class NoRenyiDivergenceError(NotImplementedError):
    """Rényi accounting was asked for a mechanism that has no finite Rényi divergence."""


class UnsoundLawError(RuntimeError):
    """A discrete law lies on the wrong side of what it is to bound: an error of this package, never of its user."""
