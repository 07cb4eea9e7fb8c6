"""Hutch++ as Hutchinson's estimator with randomly many probes: the law of J in X ~ χ²(Jk)/(Jk), (H4)."""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from dprmt.accounting.basics import Array
from dprmt.accounting.laws._residual_tail import residual_tail

_NEGLIGIBLE = 3e-30
_RATIO = 1.07


@lru_cache(maxsize=64)
def probe_copies(sketch: int, power_iteration: bool) -> tuple[tuple[int, ...], tuple[float, ...]]:
    """A law of J such that E g(X) ≤ E g(χ²(Jk)/(Jk)) for every convex g, every spectrum and every k.

    ``power_iteration``: whether the sketch is of MᵀMS; otherwise the law holds for both kinds.

    Examples
    --------
    >>> copies, weights = probe_copies(32, power_iteration=True)
    >>> 20 < 1 / sum(weight / j for j, weight in zip(copies, weights))
    True
    """
    at, bound = _tails(sketch, power_iteration)
    # P(J ≤ j) ≤ bound: between two points of ``at`` the larger bound counts, so the mass goes to the smallest J.
    copies = np.append(1, at[:-1] + 1)
    weights = np.diff(np.append(0.0, np.maximum.accumulate(bound)))
    keep = weights > 0
    return tuple(copies[keep].tolist()), tuple(weights[keep].tolist())


def _tails(sketch: int, power_iteration: bool) -> tuple[Array, Array]:
    """Values of j, and bounds on P(J ≤ j) there; the last one is 1."""
    at: list[int] = []
    bound: list[float] = []
    j = 1
    while not bound or bound[-1] < 1.0:
        tail = _averaged_tail(j, sketch, power_iteration)
        if at and tail < _NEGLIGIBLE:  # one atom is enough for all that practically never happens
            at, bound = [], []
        at.append(j)
        bound.append(tail)
        j = max(j + 1, int(j * _RATIO))
    return np.array(at), np.array(bound)


def _averaged_tail(j: int, sketch: int, power_iteration: bool) -> float:
    """The mean of P(m > x) over 1/(j+1) < x < 1/j, each part of it at its left end: P(J ≤ j) by (H4)."""
    parts = 3 if sketch <= 12 else 2 if sketch <= 32 else 1
    left = np.linspace(1.0 / (j + 1), 1.0 / j, parts, endpoint=False)
    tails = [residual_tail(float(x), sketch, power_iteration) for x in left]
    return 1.0 if tails[-1] >= 1.0 else sum(tails) / parts
