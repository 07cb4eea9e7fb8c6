"""Probabilities of intervals under the standard normal law, without cancellation in either tail."""

from __future__ import annotations

import numpy as np
from scipy.special import ndtr

from dprmt.accounting.basics import Array

ROWS_AT_A_TIME = 128
"""Loss nodes per block: the arrays of (nodes × sensitivities) that a pair needs then fit into the cache."""


def interval_masses(points: Array) -> Array:
    """Φ(points[i + 1]) - Φ(points[i]) along the first axis.

    Returns: non-negative masses, each with an absolute error of a few roundings of the smaller tail it lies in.
    """
    # Beyond 38 standard deviations ndtr is 0: most of a grid of losses and sensitivities lies there.
    outer = np.zeros(points.shape)
    seen = np.abs(points) < 38.5
    outer[seen] = ndtr(-np.abs(points[seen]))
    positive = points > 0
    difference = np.abs(np.diff(outer, axis=0))
    straddles = positive[1:] & ~positive[:-1]
    across = 1.0 - outer[1:] - outer[:-1]
    return np.where(straddles, across, difference)
