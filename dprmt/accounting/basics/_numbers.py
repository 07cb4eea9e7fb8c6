"""Arrays, errors, grids of losses and isotonic regression, which every other part uses."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

Array: TypeAlias = NDArray[Any]
"""float64 throughout; stated in docstrings rather than in types, which scipy's untyped results would lose."""


class NoRenyiDivergenceError(NotImplementedError):
    """Rényi accounting was asked for a mechanism that has no finite Rényi divergence."""


class UnsoundLawError(RuntimeError):
    """A discrete law lies on the wrong side of what it is to bound: an error of this package, never of its user."""


def isotonic_regression(values: Array, weights: Array) -> Array:
    """Pool adjacent violators. Its sums with the weights are the slopes of a greatest convex minorant.

    The result equals ``scipy.optimize.isotonic_regression``, whose import takes longer than a typical bound.
    """
    falls = np.flatnonzero(values[1:] < values[:-1])
    if falls.size == 0:
        return values
    start = int(falls[0])  # what lies before may yet be pooled
    means, sums, sizes = values[:start].tolist(), weights[:start].tolist(), [1] * start
    for value, weight in zip(values[start:].tolist(), weights[start:].tolist(), strict=True):
        size = 1
        while means and means[-1] >= value:
            before = sums.pop()
            value = (means.pop() * before + value * weight) / (before + weight)
            weight += before
            size += sizes.pop()
        means.append(value)
        sums.append(weight)
        sizes.append(size)
    pooled: Array = np.repeat(means, sizes)
    return pooled


LARGEST_LOSS = 1e16
"""Larger losses count as infinite."""
LARGEST_EPSILON = 1e17
"""Largest ε that may be asked about."""


def resolvable(mesh: float, farthest: float) -> float:
    """Return the mesh, or the finest wider one whose multiples up to ``farthest`` are numbered by 60 bits."""
    return max(mesh, abs(farthest) * 2.0**-60)


def graded_indices(low: float, high: float, mesh: float, bulk: float) -> NDArray[np.int64]:
    """Return increasing integers i such that the nodes i·mesh cover [low, high].

    Examples
    --------
    >>> graded_indices(-0.02, 0.5, mesh=0.1, bulk=0.2).tolist()
    [-1, 0, 1, 2, 3, 5]
    """
    right = _one_sided(max(high, mesh), mesh, bulk)
    left = _one_sided(max(-low, mesh), mesh, bulk)
    nodes = np.concatenate([-left[::-1], [0], right])
    first = np.searchsorted(nodes, np.floor(low / mesh), side="right") - 1
    last = np.searchsorted(nodes, np.ceil(high / mesh), side="left")
    return nodes[max(first, 0) : last + 1]


def _one_sided(end: float, mesh: float, bulk: float) -> NDArray[np.int64]:
    """List 1, 2, … up to bulk/mesh, then in geometric progression, until the first index at or past end/mesh."""
    last = int(np.ceil(end / mesh))
    inner = max(int(np.ceil(bulk / mesh)), 1)
    if last <= inner:
        return np.arange(1, last + 1, dtype=np.int64)
    growth = 1.0 + 1.0 / inner
    count = int(np.ceil(np.log(last / inner) / np.log(growth))) + 1
    outer = np.unique(np.ceil(inner * growth ** np.arange(1, count + 1, dtype=np.int64)).astype(np.int64))
    outer = outer[outer > inner]
    stop = int(np.searchsorted(outer, last)) + 1
    return np.concatenate([np.arange(1, inner + 1, dtype=np.int64), outer[:stop]])
