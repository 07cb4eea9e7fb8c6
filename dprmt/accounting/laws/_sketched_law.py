"""Hutch++: a mixture of χ²(Jk)/(Jk), J the copies of the probes that a sketch is worth (H4)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from dprmt.accounting.laws._gamma_mixture import GammaMixture
from dprmt.accounting.laws._law import NormLaw
from dprmt.accounting.laws._norm_ratio_bins import Focus, NormRatioBins, Steep, bins_of_mixture
from dprmt.accounting.laws._probe_copies import probe_copies
from dprmt.accounting.laws._residual_law import ResidualLaw
from dprmt.accounting.laws._residual_tail import Head

_RARE = 1e-11  # of one norm: what decides is rarely less likely
_LARGE_SHIFT, _SMALL, _MUCH_LESS = 3.5, 0.4, 1.8


@dataclass(frozen=True)
class SketchedLaw(NormLaw):
    """The law that no spectrum exceeds in E g(X), g convex, given a sketch of so many columns."""

    probes: int
    head: Head

    @property
    def fewest(self) -> int:
        """See :class:`NormLaw`."""
        return self.probes

    @property
    def convex_mixture(self) -> GammaMixture:
        """See :class:`NormLaw`: (H4)."""
        return GammaMixture.of_copies(self.probes, *probe_copies(*self.head))

    @property
    def residual(self) -> ResidualLaw:
        """See :class:`NormLaw`: (H6)."""
        return ResidualLaw(self.probes, self.head)

    def ordered(self, noise_multiplier: float) -> ResidualLaw | None:
        """See :class:`NormLaw`: (H6), for short sketches and few probes."""
        return self.residual if _is_lighter(self, noise_multiplier) else None

    def bins(self, number: int, tail: float, focus: Focus | Steep | None = None) -> NormRatioBins:
        """See :class:`NormLaw`."""
        return bins_of_mixture(self.convex_mixture, number, tail, focus)


@lru_cache(maxsize=64)
def _is_lighter(law: SketchedLaw, noise_multiplier: float) -> bool:
    """Whether large shifts are rarer by far under (H6); a matter of the step alone, so that its answers agree."""
    x = law.convex_mixture.lower_quantile(_RARE)
    if noise_multiplier * math.sqrt(x) > 1.0 / _LARGE_SHIFT or x > _SMALL:
        return False
    return float(law.residual.left_tail.cdf(np.array([_MUCH_LESS * x]))[0]) < _RARE
