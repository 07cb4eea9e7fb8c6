"""Hutch++ in the stochastic order: X exceeds it whatever the spectrum is and a sketch leaves of it (H6)."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar

import numpy as np
from scipy.special import gammaincc

from dprmt.accounting.laws._law import NormLaw
from dprmt.accounting.laws._norm_ratio_bins import Focus, NormRatioBins, Steep, bin_edges, bins_from_moments, left_tail
from dprmt.accounting.laws._residual_order import ResidualOrder
from dprmt.accounting.laws._residual_tail import Head


@dataclass(frozen=True)
class ResidualLaw(NormLaw):
    """Law of X under Hutch++ in the stochastic order, for few probes and short sketches."""

    is_stochastic: ClassVar[bool] = True

    probes: int
    head: Head

    @property
    def fewest(self) -> int:
        """See :class:`NormLaw`."""
        return self.probes

    @property
    def left_tail(self) -> ResidualOrder:
        """See :class:`NormLaw`."""
        return ResidualOrder(self.probes, self.head)

    @property
    def decay(self) -> int:
        """See :class:`NormLaw`: two directions at least share what is left."""
        return 2 * self.probes

    @property
    def envelope(self) -> ResidualLaw:
        """See :class:`NormLaw`."""
        return self

    def bins(self, number: int, tail: float, focus: Focus | Steep | None = None) -> NormRatioBins:
        """See :class:`NormLaw`."""
        return _bins(self.left_tail, tail, number, focus)


@lru_cache(maxsize=8)
def _bins(law: ResidualOrder, tail: float, number: int, focus: Focus | Steep | None) -> NormRatioBins:
    edges = bin_edges(law, tail, number, 1.0, focus)
    left, right = edges[:-1], edges[1:]
    one, rest = np.ones(1), np.array([gammaincc(law.probes / 2, law.probes / 2)])
    parts = [(left, right, *law.increments(left, right)), (one, one, rest, rest)]
    left, right, mass, first_moment = (np.concatenate(column) for column in zip(*parts, strict=True))
    return bins_from_moments(left, right, mass, first_moment, left_tail(law, edges[0]))
