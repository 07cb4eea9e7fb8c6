"""The smaller of two curves of secret probes from below: what (C9) charges of a sketch is no less private.

Source: ``docs/theory/randomized_clipping.md``, (C10).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dprmt.accounting.basics import Array
from dprmt.accounting.pairs._cells import LossCells
from dprmt.accounting.pairs._secret_lower_pair import SecretLowerPair, cells_of_curve, finite


@dataclass(frozen=True)
class SmallerLowerPair:
    """A pair that the smaller curve of two laws dominates: chords of what is nowhere above either."""

    first: SecretLowerPair
    second: SecretLowerPair
    slack: float = 0.0

    def loss_range(self, tail: float) -> tuple[float, float]:
        """As in :class:`SecretUpperPair`."""
        low, high = zip(self.first.loss_range(tail), self.second.loss_range(tail), strict=True)
        return min(low), min(high)

    def curve(self, t: Array) -> tuple[Array, Array]:
        """The smaller lower bound, and 1 minus it."""
        (a, beside_a), (b, beside_b) = self.first.curve(t), self.second.curve(t)
        return np.minimum(a, b), np.maximum(beside_a, beside_b)

    def cells(self, nodes: Array) -> LossCells:
        """Masses between increasing loss nodes; outcomes are told apart where either law has a node's loss."""
        t = finite(np.concatenate([self.first.thresholds(nodes), self.second.thresholds(nodes)]))
        return cells_of_curve(nodes, t, *self.curve(t), self.first.sample_rate)
