"""The published envelope of all spectra: stochastically below X for every spectrum of its rank (theory §2)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
from scipy.special import gammaincc, gammaincinv

from dprmt.accounting.basics import Array
from dprmt.accounting.laws._envelope import ENVELOPE_MARGIN, envelope_cdf, envelope_switch
from dprmt.accounting.laws._gamma_mixture import LARGEST_DOF, GammaMixture
from dprmt.accounting.laws._law import NormLaw
from dprmt.accounting.laws._norm_ratio_bins import (
    Focus,
    NormRatioBins,
    bin_edges,
    bins_from_moments,
    bins_of_mixture,
    left_tail,
)

_FAR_BELOW_ONE = 1e-3  # where squared-norm ratios so small decide, those above 1 may be known roughly


@dataclass(frozen=True)
class EnvelopeLaw(NormLaw):
    """The law whose CDF is the envelope G_d.

    ``probes``, ``rank``: k and d; ``rank=None`` is d → ∞, also used (it is larger) where k·d exceeds 10⁵: scipy's
    incomplete gamma functions lose their relative accuracy in the tails of larger shapes.
    """

    is_stochastic: ClassVar[bool] = True

    probes: int
    rank: int | None = None

    @property
    def fewest(self) -> int:
        """See :class:`NormLaw`."""
        return self.probes

    @property
    def envelope(self) -> EnvelopeLaw:
        """See :class:`NormLaw`."""
        return self

    def bins(self, number: int, tail: float, focus: Focus | None = None) -> NormRatioBins:
        """See :class:`NormLaw`."""
        rank = None if self.rank is not None and self.probes * self.rank > LARGEST_DOF else self.rank
        law = GammaMixture.single(self.probes)
        if rank == 1:
            return bins_of_mixture(law, number, tail, focus)
        edges = bin_edges(law, tail, number, 1.0, focus)
        left, right = edges[:-1], edges[1:]
        mass, first_moment = law.increments(left, right)
        if rank is None:
            one, rest = np.ones(1), np.array([gammaincc(self.probes / 2, self.probes / 2)])
            parts = [(left, right, mass, first_moment), (one, one, rest, rest)]
        else:
            in_a_tail = focus is not None and law.lower_quantile(focus.ends[1]) < _FAR_BELOW_ONE
            beyond = _beyond_one(self.probes, rank, number // 8 if in_a_tail else number)
            parts = [(left, right, mass, first_moment), *beyond]
        left, right, mass, first_moment = (np.concatenate(column) for column in zip(*parts, strict=True))
        found = bins_from_moments(left, right, mass, first_moment, left_tail(law, edges[0]))
        return found if rank is None else replace(found, margin=ENVELOPE_MARGIN)


def _beyond_one(probes: int, rank: int, bins: int) -> list[tuple[Array, Array, Array, Array]]:
    """The envelope's segments right of 1: the hump, whose means are unknown, and equal spectral values."""
    switch = float(envelope_switch(probes, rank))
    hump = np.linspace(1.0, switch, 4 * bins + 1)
    hump_mass = np.maximum(np.diff(envelope_cdf(hump, probes, rank)), 0.0)
    shape = probes * rank / 2
    end = max(float(gammaincinv(shape, 1.0 - 1e-9) / shape), switch * (1 + 1e-6))
    outer = np.geomspace(switch, end, bins + 1)
    left, right = outer, np.append(outer[1:], np.inf)
    return [
        (hump[:-1], hump[1:], hump_mass, np.full(hump_mass.size, np.nan)),
        (left, right, *GammaMixture.single(probes * rank).increments(left, right)),
    ]
