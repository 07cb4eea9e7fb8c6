"""One step of DP-SGD, for every way of computing norms: the laws and pairs that the engine composes."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from dprmt.accounting.basics import LARGEST_LOSS
from dprmt.accounting.laws import ExactLaw, Focus, NormLaw, NormRatioBins
from dprmt.accounting.pairs._cells import StepPair
from dprmt.accounting.pairs._nonconvex_slack import slack_of_excess, step_slack
from dprmt.accounting.pairs._public_pair import PublicPair
from dprmt.accounting.pairs._schedule import Schedule
from dprmt.accounting.pairs._secret_lower_pair import SecretLowerPair
from dprmt.accounting.pairs._secret_upper_pair import SecretUpperPair
from dprmt.accounting.pairs._tight_pair import TightPair

_MOST_FEW_PROBES = 8
_LARGEST_PRECISION = 1e6  # σ^-2: beyond, roundings of σ would show in ε
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

    def norm_ratio(self, bins: int, tail: float) -> NormRatioBins:
        """The law of X under which the step is analysed."""
        if self.is_exact:
            return self.law.bins(bins, tail)
        focus = self._focus(min(tail / self.tail_share, 0.1))
        return self.law.bins(bins, min(tail, 1e-3), focus)

    def _focus(self, deciding: float) -> Focus | None:
        """Around the squared-norm ratio that falls below with probability ``deciding``; None where all of it decides.

        Noise of deviation 1 beside a shift μ there moves log x by 2/μ, and so the probability by the factor e^{k/μ}.
        """
        x = self.law.left_tail.lower_quantile(deciding)
        exponent = _FOCUS_DEVIATIONS * self.law.fewest * self.noise_multiplier * math.sqrt(x)
        if exponent > _WIDEST_FOCUS and self.law.fewest > _MOST_FEW_PROBES:
            return None
        return Focus(deciding, _FOCUS_MARGIN * math.exp(min(exponent, _WIDEST_FOCUS)))

    def pairs(self, bins: int, tail: float) -> tuple[StepPair, StepPair]:
        """See :class:`dprmt.accounting.pairs._schedule.Step`."""
        if self.is_exact:
            one = np.ones(1)
            pair = PublicPair(self._shift(one), one, self.sample_rate)
            return pair, pair
        below = tail / self.sample_rate
        law = self.norm_ratio(bins, below)
        if self.secret:
            x, mass = law.spread(0.0)
            upper = SecretUpperPair(self._shift(x), mass, self.sample_rate, law.below)
            return upper, SecretLowerPair(law, self.noise_multiplier, self.sample_rate)
        x, mass = law.concentrate(self.convex_from)
        lower = PublicPair(self._shift(x), mass, self.sample_rate)
        spread = self._spread(law)
        return spread if self.law.convex_mixture is None else self.dominating(spread, tail), lower

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


def gaussians_as_one(schedule: Schedule) -> Schedule:
    """The schedule with all steps of exact norms without sampling as one step: their σ⁻² add up, and nothing is lost.

    Composed, N(0, I) against N(μ, I) is told apart along μ alone, where it is N(0, 1) against N(|μ|, 1).
    """
    found = [(s, n) for s, n in schedule if isinstance(s, ClippingStep) and s.is_exact and s.sample_rate == 1.0]
    precision = math.fsum(count * step.noise_multiplier**-2.0 for step, count in found)
    if sum(count for _, count in found) < 2 or precision > _LARGEST_PRECISION:
        return schedule
    rest = [(step, count) for step, count in schedule if (step, count) not in found]
    return [*rest, (ClippingStep(precision**-0.5, 1.0), 1)]
