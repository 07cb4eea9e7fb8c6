"""What pairs need of a law of the squared-norm ratio X = n̂²/n²: a new law is one file with these members."""

from __future__ import annotations

from typing import ClassVar

from dprmt.accounting.laws._gamma_mixture import GammaMixture
from dprmt.accounting.laws._norm_ratio_bins import Focus, NormRatioBins


class NormLaw:
    """A law that bounds X for every spectrum, in the convex or in the stochastic order.

    Laws are frozen dataclasses: the engine groups steps whose laws are equal.
    """

    is_exact: ClassVar[bool] = False
    """Whether X = 1."""
    is_stochastic: ClassVar[bool] = False
    """Whether X exceeds it in the stochastic order; else expectations of convex functions are what it bounds."""

    @property
    def fewest(self) -> int:
        """Probes k of each layer: P(X < x) falls like x^{k/2} or faster."""
        raise NotImplementedError

    @property
    def left_tail(self) -> GammaMixture:
        """A law whose quantiles tell how small X gets; nothing is certified by them."""
        return GammaMixture.single(self.fewest)

    @property
    def convex_mixture(self) -> GammaMixture | None:
        """The law that no spectrum exceeds in E g(X), g convex; None where it is not of that kind."""
        return None

    @property
    def envelope(self) -> NormLaw | None:
        """A law that X exceeds in the stochastic order, for all spectra without a sketch; None where none is known."""
        return None

    def bins(self, number: int, tail: float, focus: Focus | None = None) -> NormRatioBins:
        """The law in bins, of which ``tail`` may be cut off on the left."""
        raise NotImplementedError
