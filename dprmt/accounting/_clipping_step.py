"""One step of DP-SGD, for every way of computing norms: the laws and pairs that the engine composes."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from dprmt.accounting._cells import StepPair
from dprmt.accounting._gamma_mixture import GammaMixture
from dprmt.accounting._loss_grid import LARGEST_LOSS
from dprmt.accounting._nonconvex_slack import slack_of_excess, step_slack
from dprmt.accounting._norm_ratio import Focus, NormRatioBins, Steep, envelope, exact_norm, half_exact, ordered, tight
from dprmt.accounting._questions import EpsilonAtDelta, Question
from dprmt.accounting._revealed_pair import RevealedPair
from dprmt.accounting._secret_lower_pair import SecretLowerPair
from dprmt.accounting._secret_pair import SecretUpperPair
from dprmt.accounting._secret_smaller_pair import smaller_of
from dprmt.accounting._sketch_law import probe_copies
from dprmt.accounting._sketch_order import ResidualOrder
from dprmt.accounting._tight_pair import TightPair

MOST_FEW_PROBES = 8
_STEEP_SHIFT, _STEEP_SHIFT_OF_FEW, _STEEP_MARGIN = 5.0, 3.5, 5.0
_NEVER = 1e-16
_TAIL_SHIFT, _TAIL_RATIO, _MUCH_LESS = 3.0, 0.4, 1.8  # where the laws of (H4) and (H6) are about as good
_FOCUS_DEVIATIONS, _FOCUS_MARGIN, _WIDEST_FOCUS = 3.0, 1.5, 5.0


@dataclass(frozen=True)
class ClippingStep:
    """One step for one law of the norm ratio; the unit that the engine composes."""

    noise_multiplier: float
    sample_rate: float
    probes: int | None = None
    rank: int | None = None
    analysis: str = "exact"
    secret: bool = False
    sketch: int | None = None
    power_iteration: bool = False

    @property
    def convex_from(self) -> float:
        """1/(12σ²): right of it h_ε is convex in the norm ratio for every ε (T2)."""
        return 1.0 / (12.0 * self.noise_multiplier**2)

    @property
    def tail_share(self) -> float:
        """See :class:`dprmt.accounting._engine.Step`: larger where the tail of Z is so heavy that it decides."""
        return 1e-3 if self.probes is not None and self.probes <= 6 else 1e-4

    @property
    def is_exact(self) -> bool:
        """See :class:`dprmt.accounting._engine.Step`."""
        return self.probes is None

    @property
    def steps(self) -> int:
        """One."""
        return 1

    def norm_ratio(self, bins: int, tail: float) -> NormRatioBins:
        """The law of X under which the step is analysed."""
        if self.probes is None:
            return exact_norm()
        focus = self._focus(min(tail / self.tail_share, 0.1))
        tail = min(tail, 1e-3)
        if self.analysis == "tight":
            return tight(self.tight_law(), tail, bins, focus)
        if self.analysis == "flat":
            assert self.sketch is not None
            return half_exact(self.probes * self.sketch, tail, 2 * bins)
        if self.analysis == "order":
            return ordered(self._residual_order(), tail, bins, focus)
        return envelope(self.probes, self.rank, tail, bins, focus)

    def _focus(self, deciding: float) -> Focus | Steep | None:
        """Around the norm ratio that falls below with probability ``deciding``; None where all of the law decides.

        Noise of deviation 1 beside a shift μ there moves log x by 2/μ, and so the probability by the factor e^{k/μ}.
        """
        assert self.probes is not None
        if self._is_steep(deciding):
            return Steep(self.noise_multiplier, deciding / _STEEP_MARGIN)
        is_order = self.analysis == "order"
        x = (self._residual_order() if is_order else GammaMixture.single(self.probes)).lower_quantile(deciding)
        exponent = _FOCUS_DEVIATIONS * self.probes * (1 + is_order) * self.noise_multiplier * math.sqrt(x)
        if exponent > _WIDEST_FOCUS and self.probes > MOST_FEW_PROBES:
            return None
        return Focus(deciding, _FOCUS_MARGIN * math.exp(min(exponent, _WIDEST_FOCUS)))

    def _is_steep(self, deciding: float) -> bool:
        """Whether a tail of large shifts decides for secret probes, whose law an envelope bounds."""
        if not self.secret or self.probes is None or self.sketch is not None or self.analysis == "flat":
            return False
        x = GammaMixture.single(self.probes).lower_quantile(min(deciding, 0.1))
        steep = _STEEP_SHIFT_OF_FEW if self.probes <= MOST_FEW_PROBES else _STEEP_SHIFT
        return bool(self.noise_multiplier * np.sqrt(x) < 1.0 / steep)

    def tight_law(self) -> GammaMixture:
        """The law of X that no spectrum exceeds in E g(X), g convex: (T3), with a sketch (H4)."""
        assert self.probes is not None
        if self.sketch is None:
            return GammaMixture.single(self.probes)
        return GammaMixture.of_copies(self.probes, *probe_copies(self.sketch, self.power_iteration))

    def _residual_order(self) -> ResidualOrder:
        """The law of X that no spectrum falls below in the stochastic order, given a sketch (H6)."""
        assert self.probes is not None
        assert self.sketch is not None
        return ResidualOrder(self.probes, self.sketch, self.power_iteration)

    def settled(self, question: Question, steps: int) -> ClippingStep:
        """The step for one question about so many of them: under (H6) where the tail of (H4) would be far too heavy.

        Returns: either is valid; whoever intersects bounds has to stay with one of them. Of a question about δ the one
        under (H6) wherever it may be the better one.
        """
        if self.sketch is None or self.analysis != "tight" or self.secret:
            return self
        law = self.tight_law()
        if not isinstance(question, EpsilonAtDelta):  # μ²/2 is ε where one norm decides, and less where more do
            x = 2.0 / (2.0 * self.noise_multiplier**2 * max(question.epsilon, 1e-9))
            return replace(self, analysis="order") if law.cdf(np.array([x]))[0] > _NEVER else self
        probability = min(question.delta / (steps * self.sample_rate), 0.1)
        x = law.lower_quantile(probability)
        if self.noise_multiplier * math.sqrt(x) > 1.0 / _TAIL_SHIFT or x > _TAIL_RATIO:
            return self
        is_lighter = self._residual_order().cdf(np.array([_MUCH_LESS * x]))[0] < probability
        return replace(self, analysis="order") if is_lighter else self

    def pairs(self, bins: int, tail: float) -> tuple[StepPair, StepPair]:
        """See :class:`dprmt.accounting._engine.Step`."""
        if self.is_exact:
            one = np.ones(1)
            pair = RevealedPair(self._shift(one), one, self.sample_rate)
            return pair, pair
        below = tail / self.sample_rate
        if self.secret:
            return self._secret_pairs(bins, below)
        law = self.norm_ratio(bins, below)
        x, mass = law.concentrate(self.convex_from)
        lower = RevealedPair(self._shift(x), mass, self.sample_rate)
        upper = self._spread(law)
        return self.dominating(upper, tail) if self.analysis == "tight" else upper, lower

    def _secret_pairs(self, bins: int, below: float) -> tuple[StepPair, StepPair]:
        law = self.norm_ratio(bins, below)
        lower = SecretLowerPair(law, self.noise_multiplier, self.sample_rate)
        if self.analysis == "envelope":
            return self._by_law(law, below), lower
        deciding = below / self.tail_share
        if not self._is_steep(deciding):
            return self._by_majorant(law), lower
        envelope = replace(self, analysis="envelope", rank=None).norm_ratio(bins, below)
        wide = self.norm_ratio(bins, 1e-4 * below) if self.tail_share >= 1e-3 else law  # it is charged many times
        return smaller_of(self._by_majorant(wide), self._by_law(envelope, below), min(deciding, 0.1)), lower

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

        Returns: for packages that discretize themselves; with revealed probes wider than the one of :meth:`pairs`
        (T5).
        """
        if self.secret or self.analysis != "tight":
            return self.pairs(bins, tail)[0]
        pair = self._spread(self.norm_ratio(bins, tail / self.sample_rate))
        slack = step_slack(self.noise_multiplier, self.tight_law(), self.sample_rate, pair.total_variation())
        return replace(pair, slack=slack)

    def _spread(self, law: NormRatioBins) -> RevealedPair:
        x, mass = law.spread(self.convex_from)
        return RevealedPair(self._shift(x), mass, self.sample_rate, law.below)

    def dominating(self, pair: RevealedPair, tail: float) -> StepPair:
        """From the spread rank-one law: (M2), or (T5) with a crude η where that is too small to be seen."""
        eta = TightPair(pair).crude_excess(min(pair.loss_range(tail)[1], LARGEST_LOSS))
        slack = slack_of_excess(eta, self.sample_rate, pair.total_variation())
        if slack <= tail:
            return replace(pair, slack=slack)
        return TightPair(pair, 1.0 / self.noise_multiplier if self.sketch is None else 0.0)

    def _shift(self, x: np.ndarray[Any, np.dtype[np.float64]]) -> np.ndarray[Any, np.dtype[np.float64]]:
        return 1.0 / (self.noise_multiplier * np.sqrt(x))
