"""Hutch++: a mixture of χ²(Jk)/(Jk), J the copies of the probes that a sketch is worth (H4)."""

from __future__ import annotations

from dataclasses import dataclass

from dprmt.accounting.laws._gamma_mixture import GammaMixture
from dprmt.accounting.laws._law import NormLaw
from dprmt.accounting.laws._norm_ratio_bins import Focus, NormRatioBins, bins_of_mixture
from dprmt.accounting.laws._probe_copies import probe_copies
from dprmt.accounting.laws._residual_tail import Head


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

    def bins(self, number: int, tail: float, focus: Focus | None = None) -> NormRatioBins:
        """See :class:`NormLaw`."""
        return bins_of_mixture(self.convex_mixture, number, tail, focus)
