"""One step of DP-SGD, for every way of computing norms: the laws and pairs that the engine composes."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from dprmt.accounting.basics import LARGEST_LOSS
from dprmt.accounting.laws import ExactLaw, Focus, NormLaw, NormRatioBins, Steep
from dprmt.accounting.pairs._cells import StepPair
from dprmt.accounting.pairs._nonconvex_slack import slack_of_excess, step_slack
from dprmt.accounting.pairs._public_pair import PublicPair
from dprmt.accounting.pairs._secret_lower_pair import SecretLowerPair
from dprmt.accounting.pairs._secret_smaller_lower_pair import SmallerLowerPair
from dprmt.accounting.pairs._secret_smaller_pair import smaller_of
from dprmt.accounting.pairs._secret_upper_pair import SecretUpperPair
from dprmt.accounting.pairs._tight_pair import TightPair

_MOST_FEW_PROBES = 8
_STEEP_SHIFT, _STEEP_SHIFT_OF_FEW, _STEEP_MARGIN = 5.0, 3.5, 5.0
_FOCUS_DEVIATIONS, _FOCUS_MARGIN, _WIDEST_FOCUS = 3.0, 1.5, 5.0


@dataclass(frozen=True)
class ClippingStep:
    """One step for one law of the squared-norm ratio; the unit that the engine composes."""

    steps = 1

    noise_multiplier: float
    sample_rate: float
    law: NormLaw = field(default=ExactLaw())
    secret: bool = False

    @property
    def convex_from(self) -> float:
        """1/(12σ²): right of it h_ε is convex in the squared-norm ratio for every ε (T2)."""
        return 1.0 / (12.0 * self.noise_multiplier**2)

    @property
    def tail_share(self) -> float:
        """See :class:`Step`: larger where the tail of Z is so heavy that it decides."""
        return 1e-3 if not self.is_exact and self.law.fewest <= 6 else 1e-4

    @property
    def is_exact(self) -> bool:
        """See :class:`dprmt.accounting.pairs._schedule.Step`."""
        return self.law.is_exact

    @property
    def has_few_probes(self) -> bool:
        """Whether probes are so few that the tail of Z wants bins of its own."""
        return not self.is_exact and self.law.fewest <= _MOST_FEW_PROBES

    def norm_ratio(self, bins: int, tail: float) -> NormRatioBins:
        """The law of X under which the step is analysed."""
        if self.is_exact:
            return self.law.bins(bins, tail)
        focus = self._focus(min(tail / self.tail_share, 0.1))
        return self.law.bins(bins, min(tail, 1e-3), focus)

    def _focus(self, deciding: float) -> Focus | Steep | None:
        """Around the squared-norm ratio that falls below with probability ``deciding``; None where all of it decides.

        Noise of deviation 1 beside a shift μ there moves log x by 2/μ, and so the probability by the factor e^{k/μ}.
        """
        if self._is_steep(deciding):
            return Steep(self.noise_multiplier, deciding / _STEEP_MARGIN)
        x = self.law.left_tail.lower_quantile(deciding)
        exponent = _FOCUS_DEVIATIONS * self.law.decay * self.noise_multiplier * math.sqrt(x)
        if exponent > _WIDEST_FOCUS and not self.has_few_probes:
            return None
        return Focus(deciding, _FOCUS_MARGIN * math.exp(min(exponent, _WIDEST_FOCUS)))

    def _is_steep(self, deciding: float) -> bool:
        """Whether a tail of large shifts decides for secret probes, whose law an envelope bounds."""
        if not self.secret or self._ordered is None:
            return False
        x = self.law.left_tail.lower_quantile(min(deciding, 0.1))
        steep = _STEEP_SHIFT_OF_FEW if self.has_few_probes else _STEEP_SHIFT
        return bool(self.noise_multiplier * np.sqrt(x) < 1.0 / steep)

    def pairs(self, bins: int, tail: float) -> tuple[StepPair, StepPair]:
        """See :class:`dprmt.accounting.pairs._schedule.Step`."""
        if self.is_exact:
            one = np.ones(1)
            pair = PublicPair(self._shift(one), one, self.sample_rate)
            return pair, pair
        below = tail / self.sample_rate
        if self.secret:
            return self._secret_pairs(bins, below)
        law = self.norm_ratio(bins, below)
        x, mass = law.concentrate(self.convex_from)
        lower = PublicPair(self._shift(x), mass, self.sample_rate)
        upper = self._spread(law)
        return upper if self.law.convex_mixture is None else self.dominating(upper, tail), lower

    def _secret_pairs(self, bins: int, below: float) -> tuple[StepPair, StepPair]:
        law = self.norm_ratio(bins, below)
        if self.law.is_stochastic:
            return self._by_law(law, below), self._below(law)
        lower: StepPair = self._below(law)
        if self.is_charged_by_majorant(below):
            return self._by_majorant(law), lower
        ordered, deciding = self._ordered, below / self.tail_share
        assert ordered is not None  # else the majorant is all there is
        is_steep = self._is_steep(deciding)
        other = replace(self, law=ordered).norm_ratio(bins, below)
        if self.law.envelope is None:  # neither law is attained
            lower = SmallerLowerPair(self._below(law), self._below(other))
            if not is_steep:
                return self._by_majorant(law), lower
        wide = self.norm_ratio(bins, 1e-4 * below) if self.tail_share >= 1e-3 else law  # it is charged many times
        return smaller_of(self._by_majorant(wide), self._by_law(other, below), min(deciding, 0.1)), lower

    def is_charged_by_majorant(self, below: float) -> bool:
        """Whether the majorant (C3) of one law is all there is above, and its curve all there is below.

        ``below``: mass of the squared-norm ratio's law that may be cut off.
        """
        if self.law.is_stochastic:
            return False
        return self._ordered is None or (self.law.envelope is not None and not self._is_steep(below / self.tail_share))

    @property
    def _ordered(self) -> NormLaw | None:
        """A law in the stochastic order whose tail may decide for secret probes: (C9), (C10)."""
        return self.law.ordered(self.noise_multiplier)

    def _below(self, law: NormRatioBins) -> SecretLowerPair:
        return SecretLowerPair(law, self.noise_multiplier, self.sample_rate)

    def _by_majorant(self, law: NormRatioBins) -> SecretUpperPair:
        """(C3)."""
        x, mass = law.spread(0.0)
        return SecretUpperPair(self._shift(x), mass, self.sample_rate, law.below)

    def _by_law(self, law: NormRatioBins, below: float) -> SecretUpperPair:
        """An envelope's law as it is (C8)."""
        x, mass, excess = law.spread_secret(self.noise_multiplier, below)
        return SecretUpperPair(self._shift(x), mass, self.sample_rate, law.below, is_law=True, excess=excess)

    def upper_with_slack(self, bins: int, tail: float) -> StepPair:
        """A pair that is never more private than the step, and the same whatever losses are asked for.

        Returns: for packages that discretize themselves; with public probes wider than the one of :meth:`pairs`
        (T5).
        """
        mixture = self.law.convex_mixture
        if self.secret or mixture is None:
            return self.pairs(bins, tail)[0]
        pair = self._spread(self.norm_ratio(bins, tail / self.sample_rate))
        slack = step_slack(self.noise_multiplier, mixture, self.sample_rate, pair.total_variation())
        return replace(pair, slack=slack)

    def _spread(self, law: NormRatioBins) -> PublicPair:
        x, mass = law.spread(self.convex_from)
        return PublicPair(self._shift(x), mass, self.sample_rate, law.below)

    def dominating(self, pair: PublicPair, tail: float) -> StepPair:
        """From the spread rank-one law: (M2), or (T5) with a crude η where that is too small to be seen."""
        eta = TightPair(pair).crude_excess(min(pair.loss_range(tail)[1], LARGEST_LOSS))
        slack = slack_of_excess(eta, self.sample_rate, pair.total_variation())
        if slack <= tail:
            return replace(pair, slack=slack)
        return TightPair(pair, 0.0 if self.law.envelope is None else 1.0 / self.noise_multiplier)

    def _shift(self, x: np.ndarray[Any, np.dtype[np.float64]]) -> np.ndarray[Any, np.dtype[np.float64]]:
        return 1.0 / (self.noise_multiplier * np.sqrt(x))
