"""Answers for relations without a pair: certified curves of one change, composed (N6)."""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np

from dprmt.accounting.basics import Array, Direction, PrivacyBounds
from dprmt.accounting.composition import EpsilonAtDelta, Question, interval, solve
from dprmt.accounting.pairs import Neighbours, Schedule, Step
from dprmt.accounting.questions._changed_at_once import Lines, changed_at_once, lines_of
from dprmt.accounting.questions._delta_curve_solver import DeltaCurveSolver

_POINTS = 401
_TOLERANCE = 2e-2  # of most δ
_ROUGH = 1e-2  # tolerance of one sample's answer: composing curves loses far more
_NO_END = 100.0  # ε of one sample with an estimated norm, from where on no finite ε of several is looked for
_NEGLIGIBLE = 1e-2  # negligible share of δ
_LEAST = 1e-250
_FLOOR = 1e-30

_OTHER: dict[Direction, Direction] = {"remove": "add", "add": "remove"}


def bounds_by_curves(
    schedule: Schedule, question: Question, direction: Direction, neighbours: Neighbours, tolerance: float
) -> PrivacyBounds:
    """Bound by the curves of one sample that is present, or without a gradient.

    The upper bound follows from (N6); the lower bound is the bound of one sample.
    """
    rough = max(tolerance, _ROUGH)
    one = {side: solve(schedule, question, side, rough) for side in (direction, _OTHER[direction])}
    lower = one[direction].lower
    if neighbours.is_replacement:
        lower = max(bounds.lower for bounds in one.values())
    if question.epsilon is None:
        upper = _epsilon(tuple(schedule), question.delta, direction, neighbours, max(x.upper for x in one.values()))
    else:
        upper = float(deltas_by_curves(schedule, np.array([question.epsilon]), direction, neighbours)[0])
    return interval(lower, max(upper, lower), direction, question, tolerance)


def deltas_by_curves(schedule: Schedule, epsilons: Array, direction: Direction, neighbours: Neighbours) -> Array:
    """Return an upper bound on δ at each of increasing ε."""
    lines = lines_by_curves(schedule, direction, neighbours, max(float(epsilons[-1]), 1.0))
    return np.minimum(lines.at(epsilons), 1.0)


def lines_by_curves(schedule: Schedule, direction: Direction, neighbours: Neighbours, largest: float) -> Lines:
    """Return all lines of the relation, from curves up to ``largest`` ε."""
    return _related(tuple(schedule), direction, neighbours, largest, _FLOOR)


def _epsilon(
    schedule: tuple[tuple[Step, int], ...], delta: float, direction: Direction, neighbours: Neighbours, one: float
) -> float:
    """Bound ε by curves; ``one`` is an upper bound of one sample's ε."""
    times = neighbours.group_size * (2 if neighbours.is_replacement else 1)
    is_exact = all(step.is_exact for step, _ in schedule)
    if not math.isfinite(one) or (one > _NO_END and not is_exact):
        return math.inf
    least = max(_NEGLIGIBLE * delta * math.exp(-min((times - 1) * one, 600.0)), _LEAST)
    ends = [solve(schedule, EpsilonAtDelta(least), side, 1e-2, math.inf).upper for side in _OTHER]
    if not math.isfinite(max(ends)):
        return math.inf
    return _related(schedule, direction, neighbours, max(ends), least).epsilon_at(delta)


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
    epsilon = np.linspace(0.0, max(largest, 1e-3), _POINTS)
    floor = [least] * _POINTS
    curves = {}
    for side in _OTHER:
        found = DeltaCurveSolver(schedule, epsilon.tolist(), side, _TOLERANCE, floor).solve(at_once=True)
        curves[side] = np.array([bounds.upper for bounds in found])
    return epsilon, curves
