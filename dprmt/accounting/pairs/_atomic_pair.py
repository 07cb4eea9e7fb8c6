"""A pair whose loss takes finitely many values."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dprmt.accounting.basics import Array
from dprmt.accounting.pairs._cells import LossCells


@dataclass(frozen=True)
class AtomicPair:
    """A pair whose loss takes finitely many values.

    ``p``: P-masses; ``infinite``: P-mass at an infinite loss; ``vanishing``: Q-mass at its negative, None for as much.
    ``reach``: how far losses are to be resolved at least.
    """

    losses: Array
    p: Array
    infinite: float
    reach: float = 0.0
    slack: float = 0.0
    vanishing: float | None = None

    def loss_range(self, tail: float) -> tuple[float, float]:
        """Where the atoms lie; ``tail`` is not needed."""
        del tail
        return min(float(self.losses[0]), -self.reach), max(float(self.losses[-1]), self.reach)

    def cells(self, nodes: Array) -> LossCells:
        """Masses between increasing loss nodes."""
        place = np.searchsorted(nodes, self.losses)
        p = np.bincount(place, weights=self.p, minlength=nodes.size + 1)
        q = np.bincount(place, weights=self.p * np.exp(-self.losses), minlength=nodes.size + 1)
        return LossCells(
            p=p[1:-1],
            q=q[1:-1],
            p_below=float(p[0]),
            q_below=float(q[0]) + (self.infinite if self.vanishing is None else self.vanishing),
            p_above=float(p[-1]) + self.infinite,
            q_above=float(q[-1]),
        )

    def total_variation(self) -> float:
        """At least H_1 of what it stands for, in either direction."""
        more = self.p * -np.expm1(-self.losses)
        vanishing = self.infinite if self.vanishing is None else self.vanishing
        removed, added = np.maximum(more, 0.0).sum() + self.infinite, np.maximum(-more, 0.0).sum() + vanishing
        return float(max(removed, added)) + self.slack
