r"""Answers for relations without a pair: certified curves of one change, composed (N6).

b(α), the largest power of a test of level α, of one change bounds the level of the next, so b∘b bounds both. Curves
are kept as the δ(ε) of lines e^ε·α + δ that lie above b. See ``docs/theory/neighbours.md``.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from dprmt.accounting.basics._bounds import Direction, PrivacyBounds
from dprmt.accounting.basics._numbers import Array
from dprmt.accounting.composition._compose import OneStepCurve, Question
from dprmt.accounting.composition._solve import MOST_POINTS, Level, interval, least_resolved, solve
from dprmt.accounting.pairs._pairs import Schedule, Step
from dprmt.accounting.pairs._steps import Neighbours

_POINTS, _DENSE = 401, 1000.0  # nearly equidistant up to so large an ε, then in a geometric sequence
_LEVEL = -0.5  # at which the losses of a curve are composed
_TOLERANCE = 1e-2  # of one sample's answer: composing curves loses far more

_OTHER: dict[Direction, Direction] = {"remove": "add", "add": "remove"}


def bounds_by_curves(
    schedule: Schedule,
    question: Question,
    direction: Direction,
    neighbours: Neighbours,
    tolerance: float,
    enough: float = 0.0,
) -> PrivacyBounds:
    """Bound by the curves of one sample that is present, or without a gradient.

    ``enough``: an upper bound on δ that is good enough. The upper bound follows from (N6); the lower bound is the
    bound of one sample.
    """
    schedule, rough = tuple(schedule), max(tolerance, _TOLERANCE)
    if question.epsilon is None:
        one = {side: _one(schedule, question, side, rough, 0.0) for side in _OTHER}
        upper = _epsilon(schedule, question.delta, direction, neighbours, max(bounds.upper for bounds in one.values()))
    else:
        upper = float(deltas_by_curves(schedule, np.array([question.epsilon]), direction, neighbours)[0])
        sides = _OTHER if neighbours.is_replacement and upper < 1.0 else (direction,)  # at 1 one side's end will do
        one = {side: _one(schedule, question, side, rough, max(0.01 * upper, enough)) for side in sides}
    lower = max(bounds.lower for bounds in one.values()) if neighbours.is_replacement else one[direction].lower
    return interval(lower, max(upper, lower), direction, question, tolerance)


@lru_cache(maxsize=16)
def _one(
    schedule: tuple[tuple[Step, int], ...], question: Question, direction: Direction, tolerance: float, enough: float
) -> PrivacyBounds:
    """Bound one sample; both directions of several ask for the same."""
    return solve(schedule, question, direction, tolerance, enough)


def deltas_by_curves(schedule: Schedule, epsilons: Array, direction: Direction, neighbours: Neighbours) -> Array:
    """Return an upper bound on δ at each of increasing ε, from curves down to a δ of 1e-30."""
    largest = max(float(epsilons[-1]), 1.0)
    if largest > _DENSE:  # of what is asked, most may lie where nothing is left to say
        largest = min(largest, _last(schedule, 1e-30))
    return np.minimum(_related(tuple(schedule), direction, neighbours, largest, 1e-30).at(epsilons), 1.0)


def lines_by_curves(schedule: Schedule, direction: Direction, neighbours: Neighbours, least: float) -> Lines | None:
    """Return all lines of the relation, from curves down to a δ of ``least``; None if no ε of one sample is finite
    there.
    """
    largest = _last(schedule, least)
    return _related(tuple(schedule), direction, neighbours, largest, least) if math.isfinite(largest) else None


def _last(schedule: Schedule, least: float) -> float:
    """Return one sample's ε at ``least``, in the worse direction, or more."""
    return max(_one(tuple(schedule), Question(least), side, _TOLERANCE, math.inf).upper for side in _OTHER)


def _epsilon(
    schedule: tuple[tuple[Step, int], ...], delta: float, direction: Direction, neighbours: Neighbours, one: float
) -> float:
    """Bound ε by curves; ``one`` is an upper bound of one sample's ε."""
    is_exact = all(step.is_exact for step, _ in schedule)
    if not math.isfinite(one) or (one > 100.0 and not is_exact):  # several have no ε of use
        return math.inf
    more = neighbours.group_size * (2 if neighbours.is_replacement else 1) - 1  # samples whose ε multiplies one's δ
    least = max(0.01 * delta * math.exp(-min(more * one, 600.0)), least_resolved(schedule))
    lines = lines_by_curves(schedule, direction, neighbours, least)
    return math.inf if lines is None else lines.epsilon_at(delta)


@lru_cache(maxsize=16)
def _related(
    schedule: tuple[tuple[Step, int], ...], direction: Direction, neighbours: Neighbours, largest: float, least: float
) -> Lines:
    epsilon, curves = _curves(schedule, largest, least)
    lines = {side: lines_of(epsilon, curves[side], curves[_OTHER[side]]) for side in _OTHER}
    if neighbours.is_replacement:  # the same either way round
        direction = "remove"
    size, replaced = neighbours.group_size, neighbours.is_replacement
    return changed_at_once(lines[direction], lines[_OTHER[direction]], size, replaced)


@lru_cache(maxsize=16)
def _curves(
    schedule: tuple[tuple[Step, int], ...], largest: float, least: float
) -> tuple[Array, dict[Direction, Array]]:
    largest = max(largest, 1e-3)
    epsilon = _DENSE * np.sinh(np.linspace(0.0, math.asinh(largest / _DENSE), _POINTS))
    return epsilon, {side: _upper_curve(schedule, epsilon, side, least) for side in _OTHER}


def _upper_curve(schedule: Schedule, epsilon: Array, direction: Direction, least: float) -> Array:
    """Bound δ from above at increasing ε: few losses are composed, and each is asked everywhere.

    ``least``: a smaller δ is not of interest.
    """
    (upper, error), work = np.ones((2, epsilon.size)), 0
    for _ in range(8):
        todo = np.flatnonzero((error > 0.02 * upper) & (upper > least))
        if not todo.size:
            break
        stretch = max(np.split(todo, np.flatnonzero(np.diff(todo) > 1) + 1), key=len)
        question = Question(least, float(epsilon[stretch[stretch.size // 2]]))
        at = Level(schedule, question, direction, _LEVEL)
        curve = at.curve("upper")
        bounds = np.array([curve.delta_bounds(asked - at.drift) for asked in epsilon.tolist()])
        smaller = bounds[:, 1] < upper
        upper = np.where(smaller, bounds[:, 1], upper)
        error = np.where(smaller, bounds[:, 1] - bounds[:, 0], error)
        work += at.work
        if isinstance(curve, OneStepCurve) or not smaller[stretch].any() or work > 2 * MOST_POINTS:  # no better by more
            break
    return upper


@dataclass(frozen=True)
class Lines:
    """Lines above a power function b: b(α) ≤ δ + e^ε·α for each ``epsilon`` (increasing) and its ``delta``."""

    epsilon: Array
    delta: Array

    def at(self, epsilon: Array) -> Array:
        """Return a δ for other slopes: the least one is convex in the slope, decreasing, and at most 1."""
        first, last = float(self.epsilon[0]), float(self.epsilon[-1])
        right = np.clip(np.searchsorted(self.epsilon, epsilon), 1, self.epsilon.size - 1)
        start, stop = self.epsilon[right - 1], self.epsilon[right]
        reached = np.clip(epsilon, start, stop)
        share = np.exp(reached - stop) * np.expm1(start - reached) / np.expm1(start - stop)  # neither overflows
        share = np.clip(share, 0.0, 1.0)
        between = (1.0 - share) * self.delta[right - 1] + share * self.delta[right]
        return np.where(epsilon < first, 1.0, np.where(epsilon > last, self.delta[-1], between))

    def after(self, inner: Lines) -> Lines:
        """Return lines above this function of the inner one."""
        first, last = self.epsilon[0] + inner.epsilon[0], self.epsilon[-1] + inner.epsilon[-1]
        epsilon = np.linspace(first, last, 2 * _POINTS - 1)
        delta = np.ones(epsilon.size)
        with np.errstate(over="ignore"):
            for slope, height in zip(self.epsilon, self.delta, strict=True):
                before = inner.at(epsilon - slope)
                delta = np.minimum(delta, height + np.where(before > 0.0, np.exp(slope), 0.0) * before)
        return Lines(epsilon, np.minimum.accumulate(delta))

    def epsilon_at(self, delta: float) -> float:
        """Return the least ε ≥ 0 whose line is known to start at most at ``delta``; ∞ if there is none."""
        enough = np.flatnonzero(self.delta <= delta)
        if not enough.size:
            return math.inf
        j = int(enough[0])
        if j == 0:
            return max(float(self.epsilon[0]), 0.0)
        share = float((self.delta[j - 1] - delta) / (self.delta[j - 1] - self.delta[j]))
        gap = float(self.epsilon[j] - self.epsilon[j - 1])
        left = gap + math.log(share + (1.0 - share) * math.exp(-gap)) if share > 0.0 else 0.0
        return max(float(self.epsilon[j - 1]) + min(left + 1e-12 * gap, gap), 0.0)


def lines_of(epsilon: Array, delta: Array, other: Array) -> Lines:
    """Build lines from δ at increasing ``epsilon`` ≥ 0 for a pair and, ``other``, for the exchanged one."""
    falling = np.exp(-epsilon[:0:-1])
    left = 1.0 - falling + falling * other[:0:-1]
    return Lines(np.concatenate([-epsilon[:0:-1], epsilon]), np.minimum.accumulate(np.concatenate([left, delta])))


def repeated(lines: Lines, times: int) -> Lines:
    """Compute b∘…∘b."""
    result, power = None, lines
    while times:
        if times & 1:
            result = power if result is None else result.after(power)
        times >>= 1
        power = power.after(power) if times else power
    assert result is not None
    return result


def changed_at_once(remove: Lines, add: Lines, size: int, is_replacement: bool) -> Lines:
    """Return lines for ``size`` samples that are removed, or replaced: then all leave first, and others come."""
    removed = repeated(remove, size)
    return removed.after(repeated(add, size)) if is_replacement else removed
