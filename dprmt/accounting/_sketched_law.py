"""Hutch++: a mixture of χ²(Jk)/(Jk), J the copies of the probes that a sketch is worth (H4)."""

from __future__ import annotations

from dataclasses import dataclass

from dprmt.accounting._gamma_mixture import GammaMixture
from dprmt.accounting._law import NormLaw
from dprmt.accounting._norm_ratio import Focus, NormRatioBins, Steep, bins_of_mixture
from dprmt.accounting._residual_law import ResidualLaw
from dprmt.accounting._sketch_law import probe_copies


@dataclass(frozen=True)
class SketchedLaw(NormLaw):
    """The law that no spectrum exceeds in E g(X), g convex, given a sketch of so many columns."""

    probes: int
    sketch: int
    power_iteration: bool = False

    @property
    def fewest(self) -> int:
        """See :class:`NormLaw`."""
        return self.probes

    @property
    def convex_mixture(self) -> GammaMixture:
        """See :class:`NormLaw`: (H4)."""
        return GammaMixture.of_copies(self.probes, *probe_copies(self.sketch, self.power_iteration))

    @property
    def residual(self) -> ResidualLaw:
        """See :class:`NormLaw`: (H6)."""
        return ResidualLaw(self.probes, self.sketch, self.power_iteration)

    def bins(self, number: int, tail: float, focus: Focus | Steep | None = None) -> NormRatioBins:
        """See :class:`NormLaw`."""
        return bins_of_mixture(self.convex_mixture, number, tail, focus)
