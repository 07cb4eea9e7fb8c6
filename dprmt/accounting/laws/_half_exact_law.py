"""X = ½ + ½ χ²(ν)/ν: half of the squared norm is known, as with Hutch++ on a flat spectrum."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dprmt.accounting.laws._gamma_mixture import GammaMixture
from dprmt.accounting.laws._law import NormLaw
from dprmt.accounting.laws._norm_ratio_bins import Focus, NormRatioBins, Steep, bins_of_mixture


@dataclass(frozen=True)
class HalfExactLaw(NormLaw):
    """Law of X for a gradient with 2s equal singular values, of which every sketch leaves s."""

    probes: int
    sketch: int

    @property
    def fewest(self) -> int:
        """See :class:`NormLaw`."""
        return self.probes

    def bins(self, number: int, tail: float, focus: Focus | Steep | None = None) -> NormRatioBins:
        """See :class:`NormLaw`."""
        del focus
        law = bins_of_mixture(GammaMixture.single(self.probes * self.sketch), 2 * number, tail)
        left, right, mean = ((1.0 + end) / 2 for end in (law.left, law.right, law.mean))
        lowest = np.array([0.5])
        return NormRatioBins(
            left=np.append(lowest, left),
            right=np.append(left[:1], right),
            mass=np.append(law.below, law.mass),
            mean=np.append(np.nan, mean),
            below=0.0,
        )
