"""χ²(k)/k: what a rank-one gradient attains, the least concentrated law among all spectra (T3)."""

from __future__ import annotations

from dataclasses import dataclass

from dprmt.accounting.laws._envelope_law import EnvelopeLaw
from dprmt.accounting.laws._gamma_mixture import GammaMixture
from dprmt.accounting.laws._law import NormLaw
from dprmt.accounting.laws._norm_ratio_bins import Focus, NormRatioBins, bins_of_mixture


@dataclass(frozen=True)
class RankOneLaw(NormLaw):
    """Law of X for Hutchinson's estimator under the tight analysis."""

    probes: int

    @property
    def fewest(self) -> int:
        """See :class:`NormLaw`."""
        return self.probes

    @property
    def convex_mixture(self) -> GammaMixture:
        """See :class:`NormLaw`: (T3)."""
        return GammaMixture.single(self.probes)

    @property
    def envelope(self) -> EnvelopeLaw:
        """See :class:`NormLaw`."""
        return EnvelopeLaw(self.probes)

    def bins(self, number: int, tail: float, focus: Focus | None = None) -> NormRatioBins:
        """See :class:`NormLaw`."""
        return bins_of_mixture(self.convex_mixture, number, tail, focus)
