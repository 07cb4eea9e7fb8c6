"""What can be asked of a composed loss, and δ(ε) and ε(δ) of it: from above and from below."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import ClassVar, Protocol

import numpy as np

from dprmt.accounting.basics._bounds import Side
from dprmt.accounting.basics._numbers import Array
from dprmt.accounting.composition._compose import EPS, ComposedLoss, log_kappa
from dprmt.accounting.pairs import LossPMF

LEAST_DELTA = 1e-290
"""Least δ that is resolved."""


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
    """ε at ``delta``."""

    easy_tolerance: ClassVar[float] = 1e-3
    """A tolerance that is most often met by the first meshes."""
    epsilon: ClassVar[None] = None
    """It is what is asked for."""

    delta: float

    @property
    def small(self) -> float:
        """A probability compared with which truncated mass has to be negligible."""
        return self.delta

    def read(self, curve: Curve, side: Side, drift: float) -> float:
        """Return the answer on one side, moved outward by a possible ``drift`` of the composed loss (F3)."""
        if side == "upper":
            above = curve.epsilon_above(self.delta)
            return above + drift if above > 0 else above
        return max(curve.epsilon_below(self.delta) - drift, 0.0)

    def is_within(self, lower: float, upper: float, tolerance: float) -> bool:
        """Return whether the ends are no further apart than asked: absolutely up to 1, relatively beyond."""
        return upper < math.inf and upper - lower <= tolerance * max(1.0, upper)

    def sharpened(self, upper: float, lower: float) -> EpsilonAtDelta:
        """Return the question itself: what is known of its answer does not change how to look for it."""
        del upper, lower
        return self


@dataclass(frozen=True)
class DeltaAtEpsilon:
    """δ at ``epsilon``; ``small`` is a guess of its size."""

    easy_tolerance: ClassVar[float] = 1e-2
    """See :class:`EpsilonAtDelta`: δ falls by some factor e^{10} where ε grows by 1."""
    delta: ClassVar[float] = 0.0
    """It is what is asked for; 0 is the answer where no loss is positive."""

    epsilon: float
    small: float = 1e-12

    def read(self, curve: Curve, side: Side, drift: float) -> float:
        """Return the answer on one side, moved outward by a possible ``drift`` of the composed loss (F3)."""
        if side == "upper":
            return curve.delta_bounds(self.epsilon - drift)[1]
        return curve.delta_bounds(self.epsilon + drift)[0]

    def is_within(self, lower: float, upper: float, tolerance: float) -> bool:
        """Compare relatively, down to the least number that is resolved; see :class:`EpsilonAtDelta`."""
        return upper - lower <= tolerance * upper or upper <= LEAST_DELTA

    def sharpened(self, upper: float, lower: float = 0.0) -> DeltaAtEpsilon:
        """Return the question with a better guess of the answer's size, so that truncation becomes negligible.

        Returns: a guess in powers of 10⁴, so that pairs that were made for one are met again.
        """
        guess = max(lower, min(upper, self.small) * 1e-40, LEAST_DELTA)
        return self if guess >= self.small else self.sized(guess)

    def sized(self, small: float) -> DeltaAtEpsilon:
        """The question with another guess, in powers of 10⁴, so that pairs that were made for one are met again."""
        return replace(self, small=max(10.0 ** (4 * math.floor(math.log10(small) / 4)), LEAST_DELTA))


Question = EpsilonAtDelta | DeltaAtEpsilon


class DeltaCurve:
    """δ(ε) on the grid of a composed loss, with its error bound, relative to a reference loss.

    ``beyond``: another part of the loss, on the same grid.
    """

    def __init__(self, loss: ComposedLoss, around: float, beyond: ComposedLoss | None = None) -> None:
        parts = [loss] if beyond is None else [loss, beyond]
        self.log_unit = max(part.log_scale - part.tilt * around for part in parts)
        log_growth = np.array([part.log_scale - part.tilt * loss.losses - self.log_unit for part in parts])
        keep = log_growth.max(axis=0) < 80.0
        keep[-1] = True
        self.nodes, growth = loss.losses[keep], np.exp(np.minimum(log_growth[:, keep], 700.0))
        weight = sum(part.mass[keep] * each for part, each in zip(parts, growth, strict=True))
        # For ε just left of node j: δ(ε) = e^{log_unit} · (mass_above[j] - e^{ε - nodes[j]} · discounted[j]).
        self.mass_above = np.cumsum(weight[::-1])[::-1]
        self.discounted = discounted_suffix_sums(weight, self.nodes)
        self.at_nodes = self.mass_above - self.discounted
        errors = np.array([part.error * math.exp(log_kappa(np.asarray(part.tilt))) for part in parts])
        self.error = errors @ growth + EPS * loss.losses.size * self.mass_above
        self.infinite = sum(part.infinite for part in parts)

    def delta_bounds(self, epsilon: float) -> tuple[float, float]:
        """Lower and upper bound of the discrete loss's δ(ε)."""
        index = int(np.searchsorted(self.nodes, epsilon, side="left"))
        if index == self.nodes.size:
            return 0.0, min(self._scaled(float(self.error[-1])) + self.infinite, 1.0)
        if index == 0 and self.nodes[0] > epsilon:
            return self._scaled(float(self.at_nodes[0] - self.error[0])), 1.0
        value = float(self.mass_above[index] - np.exp(epsilon - self.nodes[index]) * self.discounted[index])
        value, error = max(value, 0.0), float(self.error[max(index - 1, 0)])
        return self._scaled(value - error), min(self._scaled(value + error) + self.infinite, 1.0)

    def epsilon_above(self, delta: float) -> float:
        """Return an ε ≥ 0 with δ(ε) ≤ ``delta`` for certain; ∞ if none is seen."""
        if delta <= self.infinite:
            return math.inf
        target = self._relative(delta - self.infinite)
        enough = np.flatnonzero(self.at_nodes + self.error <= target)
        if enough.size == 0:
            return math.inf
        index = int(enough[0])
        epsilon = float(self.nodes[index])
        if index > 0:
            room = float(self.mass_above[index] + self.error[index - 1]) - target
            epsilon = min(epsilon, self._crossing(index, room))
        return max(epsilon, 0.0)

    def epsilon_below(self, delta: float) -> float:
        """Return an ε ≥ 0 with δ(ε) ≥ ``delta`` for certain, or 0."""
        target = self._relative(delta)
        too_much = np.flatnonzero(self.at_nodes - self.error >= target)
        if too_much.size == 0:
            return 0.0
        index = int(too_much[-1])
        epsilon = float(self.nodes[index])
        if index + 1 < self.nodes.size:
            room = float(self.mass_above[index + 1] - self.error[index]) - target
            epsilon = max(epsilon, self._crossing(index + 1, room))
        return max(epsilon, 0.0)

    def _crossing(self, index: int, room: float) -> float:
        """Return the ε in the segment left of ``nodes[index]`` where e^{ε}·discounted equals ``room``."""
        left, right = float(self.nodes[index - 1]), float(self.nodes[index])
        if room <= 0:
            return left
        if self.discounted[index] <= 0:
            return right
        return min(max(right + math.log(room) - math.log(self.discounted[index]), left), right)

    def _scaled(self, value: float) -> float:
        return math.exp(min(math.log(value) + self.log_unit, 0.0)) if value > 0 else 0.0

    def _relative(self, delta: float) -> float:
        return math.exp(min(max(math.log(delta) - self.log_unit, -700.0), 700.0))


def discounted_suffix_sums(values: Array, nodes: Array) -> Array:
    """Compute Σ_{i ≥ j} values[i] · e^{-(nodes[i] - nodes[j])} on equidistant nodes."""
    # Block by block, so that no exponential overflows; where one step discounts below rounding, nothing carries.
    step = float(nodes[1] - nodes[0]) if nodes.size > 1 else 0.0
    if step > 40.0:
        return values
    length = min(int(300.0 / max(step, 1e-300)) + 1, nodes.size)
    growth = np.exp(step * np.arange(length + 1, dtype=np.int64))
    discount = 1.0 / growth
    sums = np.empty_like(values)
    carried = 0.0
    for stop in range(nodes.size, 0, -length):
        start = max(stop - length, 0)
        size = stop - start
        inner = sums[start:stop]
        np.multiply(np.cumsum((values[start:stop] * discount[:size])[::-1])[::-1], growth[:size], out=inner)
        if stop < nodes.size:
            inner += carried * discount[size:0:-1]
        carried = float(sums[start])
    return sums


class OneStepCurve:
    """The same questions as to a :class:`DeltaCurve`; the side that was not asked for is trivial."""

    def __init__(self, pmf: LossPMF, side: Side) -> None:
        self.side, self.nodes = side, pmf.losses
        mass = rounded(pmf.mass, side) * (1 + 1e-12 if side == "upper" else 1 - 1e-12)  # sums of positive terms
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
    charge = 64 * EPS * np.cumsum(mass[::-1])[::-1]
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
