"""Sums over many sensitivities of normal distribution functions, only where these are neither 0 nor 1."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from scipy.special import ndtr, ndtri

from dprmt.accounting.basics import Array

ROWS_AT_A_TIME = 128
"""Thresholds per block: so few that they lie close together, and few shifts near any of them."""
SEEN = 38.5
"""Beyond so many standard deviations ndtr is 0."""
FULL = 8.5
"""Beyond so many ndtr is 1."""


def blocks(size: int) -> Iterator[slice]:
    """Consecutive rows, some at a time."""
    for start in range(0, size, ROWS_AT_A_TIME):
        yield slice(start, min(start + ROWS_AT_A_TIME, size))


def two_sides(difference: Array) -> tuple[Array, Array]:
    """Φ(x) and Φ(-x), both without cancellation, by one evaluation."""
    tail = ndtr(-np.abs(difference))
    positive = difference > 0
    return np.where(positive, 1.0 - tail, tail), np.where(positive, tail, 1.0 - tail)


def suffix_sums(values: Array) -> Array:
    """Σ_{i ≥ j} values[i] for j = 0 … n."""
    sums: Array = np.append(np.cumsum(values[::-1])[::-1], 0.0)
    return sums


def prefix_sums(values: Array) -> Array:
    """Σ_{i < j} values[i] for j = 0 … n."""
    sums: Array = np.insert(np.cumsum(values), 0, 0.0)
    return sums


def normal_sums(t: Array, points: Array, weight: Array, sign: float) -> Array:
    """Σ weight · Φ(sign · (points - t)) for each t."""
    if points.size == 0:
        return np.zeros(t.size)
    x = np.subtract(points, t[:, None]) if sign > 0 else np.subtract(t[:, None], points)
    value: Array = ndtr(x, out=x) @ weight
    return value


def reach(least: float) -> float:
    """Standard deviations beyond which a law's normal tails are too small to be seen in a sum of at least ``least``."""
    return min(-float(ndtri(1e-18 * least)), SEEN) if least > 0.0 else SEEN
