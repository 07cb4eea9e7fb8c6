"""Isotonic regression: the increasing sequence nearest to a given one in weighted least squares."""

from __future__ import annotations

import numpy as np

from dprmt.accounting.basics._types import Array


def isotonic_regression(values: Array, weights: Array) -> Array:
    """Pool adjacent violators. Its sums with the weights are the slopes of a greatest convex minorant.

    Returns: as ``scipy.optimize.isotonic_regression``, whose import takes longer than a whole answer of this room.
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
