"""What can be asked of a composed loss: ε at a δ, δ at an ε, or the whole curve."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import ClassVar, Protocol

from dprmt.accounting.basics import PrivacyBounds, Side
from dprmt.accounting.composition._composed_loss import Phases, log_chernoff, tilt_for_delta, tilt_for_epsilon

_ROUNDING = 1e-12
LEAST_DELTA = 1e-290
"""Smaller ones are told from 0 no further."""


class Curve(Protocol):
    """Bounds on the δ(ε) of a composition."""

    def delta_bounds(self, epsilon: float) -> tuple[float, float]:
        """Lower and upper bound of δ(ε)."""
        ...

    def epsilon_above(self, delta: float) -> float:
        """An ε with δ(ε) ≤ ``delta`` for certain, or ∞."""
        ...

    def epsilon_below(self, delta: float) -> float:
        """An ε with δ(ε) ≥ ``delta`` for certain, or 0."""
        ...


@dataclass(frozen=True)
class EpsilonAtDelta:
    """ε at ``delta``, which is known to be at most ``below``."""

    least: ClassVar[float] = 0.0
    """No smaller answer is told from 0."""
    easy_tolerance: ClassVar[float] = 1e-3
    """A tolerance that is most often met by the first meshes."""

    delta: float
    below: float = math.inf

    @property
    def small(self) -> float:
        """A probability compared with which truncated mass has to be negligible."""
        return self.delta

    def is_trivial(self, total_variation: float) -> bool:
        """Whether the answer is 0 because even δ(0) is no larger than ``delta``."""
        return total_variation <= self.delta * (1.0 - 1e-9)

    def tilt(self, phases: Phases, offset: float = 0.0) -> float:
        """The tilt at which to compose losses that lack an ``offset`` in all."""
        del offset
        return tilt_for_delta(phases, self.delta)

    def around(self, phases: Phases, tilt: float, offset: float = 0.0) -> float:
        """Chernoff's bound on the answer, less the offset."""
        del offset
        return (log_chernoff(phases, tilt) - math.log(self.delta)) / tilt

    def at_most(self, log_bound: float, infinite: float, tilt: float, drift: float) -> float:
        """The upper answer if δ(ε) ≤ ``infinite`` + e^{log_bound - tilt·ε} is all that is known; ``drift`` as below."""
        if infinite >= self.delta:
            return math.inf
        epsilon = (log_bound - math.log(self.delta - infinite)) / tilt
        return max(epsilon + _ROUNDING * abs(epsilon) + drift, 0.0)

    def read(self, curve: Curve, side: Side, drift: float) -> float:
        """The answer on one side, moved outward by a possible ``drift`` of the composed loss (F3)."""
        if side == "upper":
            above = curve.epsilon_above(self.delta)
            return above + drift if above > 0 else above
        return max(curve.epsilon_below(self.delta) - drift, 0.0)

    def within(self, lower: float, farthest: float) -> float:
        """A lower bound that is one also if hardly any loss exceeds ``farthest``."""
        return min(lower, farthest)

    def unit(self, value: float) -> float:
        """What a tolerance refers to: the value, but at least 1."""
        return max(1.0, value)

    def sharpened(self, found: PrivacyBounds) -> EpsilonAtDelta:
        """The question with what is known of its answer, so that no mesh reaches farther than it has to."""
        return EpsilonAtDelta(self.delta, min(self.below, found.upper))


@dataclass(frozen=True)
class DeltaAtEpsilon:
    """δ at ``epsilon``; ``small`` is a guess of its size."""

    least: ClassVar[float] = LEAST_DELTA
    """See :class:`EpsilonAtDelta`."""
    easy_tolerance: ClassVar[float] = 1e-2
    """See :class:`EpsilonAtDelta`: δ falls by some factor e^{10} where ε grows by 1."""

    epsilon: float
    small: float = 1e-12

    def is_trivial(self, total_variation: float) -> bool:
        """Whether the answer is 0 without composing."""
        return total_variation <= 0.0

    def tilt(self, phases: Phases, offset: float = 0.0) -> float:
        """The tilt at which to compose losses that lack an ``offset`` in all."""
        return tilt_for_epsilon(phases, self.epsilon - offset)

    def around(self, phases: Phases, tilt: float, offset: float = 0.0) -> float:
        """The loss asked about, less the offset."""
        del phases, tilt
        return self.epsilon - offset

    def at_most(self, log_bound: float, infinite: float, tilt: float, drift: float) -> float:
        """The upper answer if δ(ε) ≤ ``infinite`` + e^{log_bound - tilt·ε} is all that is known; ``drift`` as below."""
        exponent = log_bound - tilt * (self.epsilon - drift)
        return min(infinite + math.exp(min(exponent + _ROUNDING * abs(tilt * self.epsilon), 0.0)), 1.0)

    def read(self, curve: Curve, side: Side, drift: float) -> float:
        """The answer on one side, moved outward by a possible ``drift`` of the composed loss (F3)."""
        if side == "upper":
            return curve.delta_bounds(self.epsilon - drift)[1]
        return curve.delta_bounds(self.epsilon + drift)[0]

    def within(self, lower: float, farthest: float) -> float:
        """A lower bound that is one also if hardly any loss exceeds ``farthest``."""
        return lower if self.epsilon < farthest else 0.0

    def unit(self, value: float) -> float:
        """What a tolerance refers to: the value itself."""
        return value

    def sharpened(self, found: PrivacyBounds) -> DeltaAtEpsilon:
        """The question with a better guess of the answer's size, so that truncation becomes negligible."""
        return self.sized(min(self.small, max(found.lower, self.small * 1e-40)))

    def sized(self, small: float) -> DeltaAtEpsilon:
        """The question with another guess of the answer's size."""
        return replace(self, small=max(small, LEAST_DELTA))


@dataclass(frozen=True)
class WholeCurve:
    """All of the trade-off curve, with absolute errors."""

    small: float = 1e-9

    def tilt(self, phases: Phases, offset: float = 0.0) -> float:
        """No tilt."""
        del phases, offset
        return 0.0


Question = EpsilonAtDelta | DeltaAtEpsilon
