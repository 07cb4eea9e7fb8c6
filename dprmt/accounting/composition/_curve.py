"""What can be asked of a composed loss, and δ(ε) and ε(δ) of it: from above and from below."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import ClassVar, Protocol

import numpy as np

from dprmt.accounting.basics import Array, PrivacyBounds, Side
from dprmt.accounting.composition._compose import (
    ComposedLoss,
    Phases,
    log_chernoff,
    log_kappa,
    tilt_for_delta,
    tilt_for_epsilon,
)
from dprmt.accounting.pairs import LossPMF

_ROUNDING = 1e-12
_RESOLVED = 1e-10  # of an ε found by bisection
LEAST_DELTA = 1e-290
"""Smaller ones are told from 0 no further."""


class Curve(Protocol):
    """Bounds on the δ(ε) of a composition."""

    def delta_bounds(self, epsilon: float) -> tuple[float, float]:
        """Lower and upper bound of δ(ε)."""
        ...

    def epsilon_above(self, delta: float) -> float:
        """Return an ε with δ(ε) ≤ ``delta`` for certain, or ∞."""
        ...

    def epsilon_below(self, delta: float) -> float:
        """Return an ε with δ(ε) ≥ ``delta`` for certain, or 0."""
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
        """Return whether the answer is 0 because even δ(0) is no larger than ``delta``."""
        return total_variation <= self.delta * (1.0 - 1e-9)

    def tilt(self, phases: Phases, offset: float = 0.0) -> float:
        """Return the tilt at which to compose losses that lack an ``offset`` in all."""
        del offset
        return tilt_for_delta(phases, self.delta)

    def around(self, phases: Phases, tilt: float, offset: float = 0.0) -> float:
        """Compute Chernoff's bound on the answer, less the offset."""
        del offset
        return (log_chernoff(phases, tilt) - math.log(self.delta)) / tilt

    def at_most(self, log_bound: float, infinite: float, tilt: float, drift: float) -> float:
        """Return the upper answer if δ(ε) ≤ ``infinite`` + e^{log_bound - tilt·ε} is all that is known; ``drift`` as
        below.
        """
        if infinite >= self.delta:
            return math.inf
        epsilon = (log_bound - math.log(self.delta - infinite)) / tilt
        return max(epsilon + _ROUNDING * abs(epsilon) + drift, 0.0)

    def read(self, curve: Curve, side: Side, drift: float) -> float:
        """Return the answer on one side, moved outward by a possible ``drift`` of the composed loss (F3)."""
        if side == "upper":
            above = curve.epsilon_above(self.delta)
            return above + drift if above > 0 else above
        return max(curve.epsilon_below(self.delta) - drift, 0.0)

    def within(self, lower: float, farthest: float) -> float:
        """Return a lower bound that is one also if hardly any loss exceeds ``farthest``."""
        return min(lower, farthest)

    def unit(self, value: float) -> float:
        """Return the unit of a tolerance: the value, but at least 1."""
        return max(1.0, value)

    def sharpened(self, found: PrivacyBounds) -> EpsilonAtDelta:
        """Return the question with what is known of its answer, so that no mesh reaches farther than it has to."""
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
        """Return whether the answer is 0 without composing."""
        return total_variation <= 0.0

    def tilt(self, phases: Phases, offset: float = 0.0) -> float:
        """Return the tilt at which to compose losses that lack an ``offset`` in all."""
        return tilt_for_epsilon(phases, self.epsilon - offset)

    def around(self, phases: Phases, tilt: float, offset: float = 0.0) -> float:
        """Return the loss asked about, less the offset."""
        del phases, tilt
        return self.epsilon - offset

    def at_most(self, log_bound: float, infinite: float, tilt: float, drift: float) -> float:
        """Return the upper answer if δ(ε) ≤ ``infinite`` + e^{log_bound - tilt·ε} is all that is known; ``drift`` as
        below.
        """
        exponent = log_bound - tilt * (self.epsilon - drift)
        return min(infinite + math.exp(min(exponent + _ROUNDING * abs(tilt * self.epsilon), 0.0)), 1.0)

    def read(self, curve: Curve, side: Side, drift: float) -> float:
        """Return the answer on one side, moved outward by a possible ``drift`` of the composed loss (F3)."""
        if side == "upper":
            return curve.delta_bounds(self.epsilon - drift)[1]
        return curve.delta_bounds(self.epsilon + drift)[0]

    def within(self, lower: float, farthest: float) -> float:
        """Return a lower bound that is one also if hardly any loss exceeds ``farthest``."""
        return lower if self.epsilon < farthest else 0.0

    def unit(self, value: float) -> float:
        """Return the unit of a tolerance: the value."""
        return value

    def sharpened(self, found: PrivacyBounds) -> DeltaAtEpsilon:
        """Return the question with a better guess of the answer's size, so that truncation becomes negligible."""
        return self.sized(min(self.small, max(found.lower, self.small * 1e-40)))

    def sized(self, small: float) -> DeltaAtEpsilon:
        """Return the question with another guess of the answer's size."""
        return replace(self, small=max(small, LEAST_DELTA))


@dataclass(frozen=True)
class WholeCurve:
    """All of the trade-off curve, with absolute errors."""

    small: float = 1e-9

    def tilt(self, phases: Phases, offset: float = 0.0) -> float:
        """Return 0: no tilt."""
        del phases, offset
        return 0.0


Question = EpsilonAtDelta | DeltaAtEpsilon


class DeltaCurve:
    """δ(ε) on the grid of a composed loss, with its error bound, relative to a reference loss."""

    def __init__(self, loss: ComposedLoss, around: float) -> None:
        keep = loss.tilt * (loss.losses - around) > -80.0
        keep[-1] = True
        self.nodes = loss.losses[keep]
        offset = self.nodes - around
        self.log_unit = loss.log_scale - loss.tilt * around
        growth = np.exp(np.minimum(-loss.tilt * offset, 700.0))
        weight = loss.mass[keep] * growth
        # For ε just left of node j: δ(ε) = e^{log_unit} · (mass_above[j] - e^{ε - nodes[j]} · discounted[j]).
        self.mass_above = _suffix_sums(weight)
        self.discounted = discounted_suffix_sums(weight, self.nodes)
        kappa = float(np.exp(log_kappa(np.asarray(loss.tilt))))
        self.error = loss.error * kappa * growth + np.finfo(np.float64).eps * loss.losses.size * self.mass_above
        self.infinite = loss.infinite

    def finite_part(self, index: int, epsilon: float) -> float:
        """Evaluate δ(ε) in units of e^{log_unit}, for ε in [nodes[index - 1], nodes[index]]."""
        return float(self.mass_above[index] - np.exp(epsilon - self.nodes[index]) * self.discounted[index])

    def delta_bounds(self, epsilon: float) -> tuple[float, float]:
        """Lower and upper bound of the discrete loss's δ(ε)."""
        index = int(np.searchsorted(self.nodes, epsilon, side="left"))
        if index == self.nodes.size:
            return 0.0, min(_scaled(float(self.error[-1]), self.log_unit) + self.infinite, 1.0)
        if index == 0 and self.nodes[0] > epsilon:
            return _scaled(float(self._at_nodes()[0] - self.error[0]), self.log_unit), 1.0
        value, error = max(self.finite_part(index, epsilon), 0.0), float(self.error[max(index - 1, 0)])
        low = _scaled(value - error, self.log_unit)
        high = _scaled(value + error, self.log_unit) + self.infinite
        return low, min(high, 1.0)

    def epsilon_above(self, delta: float) -> float:
        """Return an ε ≥ 0 with δ(ε) ≤ ``delta`` for certain; ∞ if none is seen."""
        if delta <= self.infinite:
            return float("inf")
        target = _relative(delta - self.infinite, self.log_unit)
        at_nodes = self._at_nodes()
        enough = np.flatnonzero(at_nodes + self.error <= target)
        if enough.size == 0:
            return float("inf")
        index = int(enough[0])
        epsilon = float(self.nodes[index])
        if index > 0:
            room = self.mass_above[index] + self.error[index - 1] - target
            epsilon = min(epsilon, self._crossing(index, room))
        return max(epsilon, 0.0)

    def epsilon_below(self, delta: float) -> float:
        """Return an ε ≥ 0 with δ(ε) ≥ ``delta`` for certain, or 0."""
        target = _relative(delta, self.log_unit)
        too_much = np.flatnonzero(self._at_nodes() - self.error >= target)
        if too_much.size == 0:
            return 0.0
        index = int(too_much[-1])
        epsilon = float(self.nodes[index])
        if index + 1 < self.nodes.size:
            room = self.mass_above[index + 1] - self.error[index] - target
            epsilon = max(epsilon, min(self._crossing(index + 1, room), float(self.nodes[index + 1])))
        return max(epsilon, 0.0)

    def _at_nodes(self) -> Array:
        value: Array = self.mass_above - self.discounted
        return value

    def _crossing(self, index: int, room: float) -> float:
        """Return the ε in the segment left of ``nodes[index]`` where e^{ε}·discounted equals ``room``."""
        left, right = float(self.nodes[index - 1]), float(self.nodes[index])
        if room <= 0:
            return left
        if self.discounted[index] <= 0:
            return right
        return min(max(right + float(np.log(room) - np.log(self.discounted[index])), left), right)


class SumOfCurves:
    """δ(ε) of two parts of a loss, as a :class:`DeltaCurve`."""

    def __init__(self, *parts: DeltaCurve) -> None:
        self.parts = parts

    def delta_bounds(self, epsilon: float) -> tuple[float, float]:
        """Bound δ as :meth:`DeltaCurve.delta_bounds`."""
        lower, upper = zip(*(part.delta_bounds(epsilon) for part in self.parts), strict=True)
        return sum(lower), min(sum(upper), 1.0)

    def epsilon_above(self, delta: float) -> float:
        """Bound ε as :meth:`DeltaCurve.epsilon_above`."""
        last = max(float(part.nodes[-1]) for part in self.parts)
        return self._crossing(lambda epsilon: self.delta_bounds(epsilon)[1] <= delta, last)[1]

    def epsilon_below(self, delta: float) -> float:
        """Bound ε as :meth:`DeltaCurve.epsilon_below`."""
        last = max(float(part.nodes[-1]) for part in self.parts)
        return self._crossing(lambda epsilon: self.delta_bounds(epsilon)[0] < delta, last)[0]

    def _crossing(self, is_beyond: Callable[[float], bool], last: float) -> tuple[float, float]:
        """Find two neighbouring ε of which only the larger one is beyond; 0 and 0 if all are, ``last`` and ∞ if none
        is.
        """
        if is_beyond(0.0):
            return 0.0, 0.0
        if not is_beyond(last):
            return last, math.inf
        low, high = 0.0, last
        while high - low > _RESOLVED * high:
            middle = 0.5 * (low + high)
            low, high = (low, middle) if is_beyond(middle) else (middle, high)
        return low, high


def _suffix_sums(values: Array) -> Array:
    sums: Array = np.cumsum(values[..., ::-1], axis=-1)[..., ::-1]
    return sums


def discounted_suffix_sums(values: Array, nodes: Array) -> Array:
    """Compute Σ_{i ≥ j} values[..., i] · e^{-(nodes[i] - nodes[j])} on equidistant nodes."""
    # Block by block, so that no exponential overflows; where one step discounts below rounding, nothing carries.
    step = float(nodes[1] - nodes[0]) if nodes.size > 1 else 0.0
    if step > 40.0:
        return values
    length = min(int(300.0 / max(step, 1e-300)) + 1, nodes.size)
    growth = np.exp(step * np.arange(length + 1, dtype=np.int64))
    discount = 1.0 / growth
    sums = np.empty_like(values)
    carried = sums[..., 0]
    for stop in range(nodes.size, 0, -length):
        start = max(stop - length, 0)
        size = stop - start
        inner = sums[..., start:stop]
        np.multiply(_suffix_sums(values[..., start:stop] * discount[:size]), growth[:size], out=inner)
        if stop < nodes.size:
            inner += carried[..., None] * discount[size:0:-1]
        carried = sums[..., start]
    return sums


def _scaled(value: float, log_unit: float) -> float:
    if value <= 0:
        return 0.0
    return float(np.exp(min(np.log(value) + log_unit, 0.0)))


def _relative(delta: float, log_unit: float) -> float:
    return float(np.exp(np.clip(np.log(delta) - log_unit, -700.0, 700.0)))


_EPS = float(np.finfo(np.float64).eps)
_SUMS = 1e-12  # relative, of sums of some thousand positive terms


class OneStepCurve:
    """The same questions as to a :class:`DeltaCurve`; the side that was not asked for is trivial."""

    def __init__(self, pmf: LossPMF, side: Side) -> None:
        self.side, self.nodes = side, pmf.losses
        mass = rounded(pmf.mass, side) * (1 + _SUMS if side == "upper" else 1 - _SUMS)
        self.infinite = pmf.infinite
        self.discounted = discounted_sums(mass, self.nodes)
        # Σ mass_i (1 - e^{l_j - l_i}) as a sum of positive terms: a heavy node below would swallow a light tail.
        rises = self.discounted[1:] * -np.expm1(-np.diff(self.nodes))
        self.at_nodes = np.append(np.cumsum(rises[::-1])[::-1], 0.0)

    def delta_bounds(self, epsilon: float) -> tuple[float, float]:
        """Bound δ as :meth:`DeltaCurve.delta_bounds`."""
        index = int(np.searchsorted(self.nodes, epsilon, side="left"))
        value = 0.0
        if index < self.nodes.size:
            value = float(self.at_nodes[index] - math.expm1(epsilon - self.nodes[index]) * self.discounted[index])
        if self.side == "upper":
            return 0.0, min(max(value, 0.0) + self.infinite, 1.0)
        return min(max(value, 0.0), 1.0), 1.0

    def epsilon_above(self, delta: float) -> float:
        """Bound ε as :meth:`DeltaCurve.epsilon_above`."""
        return self._crossing(delta - self.infinite) if delta > self.infinite else math.inf

    def epsilon_below(self, delta: float) -> float:
        """Bound ε as :meth:`DeltaCurve.epsilon_below`."""
        return self._crossing(delta)

    def _crossing(self, delta: float) -> float:
        index = int(np.argmax(self.at_nodes <= delta))  # 0 at the last node, so there is one
        if index == 0:
            return 0.0
        fallen = (delta - float(self.at_nodes[index])) / float(self.discounted[index])
        step = math.log1p(-fallen) if fallen < 1.0 else -math.inf
        return max(float(self.nodes[index]) + step, float(self.nodes[index - 1]), 0.0)


def rounded(mass: Array, side: Side) -> Array:
    """Return the masses with the rounding of the tails that they are differences of charged (F1)."""
    charge = 64 * _EPS * np.cumsum(mass[::-1])[::-1]
    return mass + charge if side == "upper" else np.maximum(mass - charge, 0.0)


def discounted_sums(mass: Array, nodes: Array) -> Array:
    """Compute Σ_{i ≥ j} mass_i e^{l_j - l_i} at each node, on any nodes."""
    factors = np.exp(-np.diff(nodes)).tolist()
    sums = mass.tolist()
    for j in range(len(sums) - 2, -1, -1):
        sums[j] += factors[j] * sums[j + 1]
    return np.array(sums)


def one_step_scale(rough: LossPMF, small: float) -> float:
    """Return the loss at which one step's δ is about ``small``, or where most of it lies."""
    deviation = math.sqrt(float(rough.mass @ rough.losses**2) / max(float(rough.mass.sum()), 1e-300))
    delta = np.cumsum(rough.mass[::-1])[::-1] - discounted_sums(rough.mass, rough.losses)
    enough = np.flatnonzero((rough.losses > 0) & (delta <= small))
    found = float(rough.losses[enough[0] if enough.size else -1])
    return max(found if found > 1e-3 * deviation else deviation, 4 * rough.mesh)


def one_step_delta(law: LossPMF, epsilon: float) -> float:
    """Evaluate δ(ε) of one step."""
    beyond = law.losses > epsilon
    return float(law.mass[beyond] @ -np.expm1(epsilon - law.losses[beyond])) + law.infinite
