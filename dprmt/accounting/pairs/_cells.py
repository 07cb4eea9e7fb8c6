"""What every per-step pair must offer: the probability of each interval of its privacy loss; those of a normal law."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from scipy.special import ndtr

from dprmt.accounting.basics import Array

ROWS_AT_A_TIME = 128
"""Loss nodes per block: the arrays of (nodes × sensitivities) that a pair needs then fit into the cache."""


@dataclass(frozen=True)
class LossCells:
    """Masses of the privacy loss L = log(dP/dQ) between consecutive nodes.

    Attributes
    ----------
    p, q : ndarray, shape (n - 1,)
        P and Q of {l_i < L ≤ l_{i+1}} for the n nodes.
    p_below, q_below, p_above, q_above : float
        The same outside the nodes; points where Q (or P) vanishes count as above (or below).
    """

    p: Array
    q: Array
    p_below: float
    q_below: float
    p_above: float
    q_above: float

    def mirrored(self) -> LossCells:
        """The cells of the exchanged pair (Q, P) on the negated, reversed nodes."""
        return LossCells(
            p=self.q[::-1],
            q=self.p[::-1],
            p_below=self.q_above,
            q_below=self.p_above,
            p_above=self.q_below,
            q_above=self.p_below,
        )


class StepPair(Protocol):
    """A pair (P, Q) of one step: P when the sample may take part, Q when it is absent."""

    @property
    def slack(self) -> float:
        """Probability to be charged to an infinite loss, once per step, in either direction."""
        ...

    def loss_range(self, tail: float) -> tuple[float, float]:
        """An interval outside which P has mass at most ``tail`` above and Q at most ``tail`` below."""
        ...

    def cells(self, nodes: Array) -> LossCells:
        """Masses between increasing loss nodes."""
        ...


def interval_masses(points: Array) -> Array:
    """Φ(points[i + 1]) - Φ(points[i]) along the first axis, without cancellation in either tail.

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
