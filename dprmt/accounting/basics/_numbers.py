"""The type of arrays, errors and largest numbers, which every other part uses."""

from __future__ import annotations

from typing import Any, TypeAlias

from numpy.typing import NDArray

Array: TypeAlias = NDArray[Any]
"""float64 throughout; stated in docstrings rather than in types, which scipy's untyped results would lose."""


class NoRenyiDivergenceError(NotImplementedError):
    """Rényi accounting was asked for a mechanism that has no finite Rényi divergence."""


class UnsoundLawError(RuntimeError):
    """A discrete law lies on the wrong side of what it is to bound: an error of this package, never of its user."""


LEAST_DELTA = 1e-290
"""Smaller probabilities are not resolved."""
LARGEST_LOSS = 1e16
"""Larger losses count as infinite."""
LARGEST_EPSILON = 1e17
"""Largest ε that may be asked about."""
