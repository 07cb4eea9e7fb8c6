"""From steps to certified bounds: choose meshes, compose both sides, refine until the interval is narrow."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from dprmt.accounting.basics import Direction, PrivacyBounds, Side
from dprmt.accounting.composition._delta_size import least_upper, sized
from dprmt.accounting.composition._level import LOWEST, Level
from dprmt.accounting.composition._question import DeltaAtEpsilon, Question
from dprmt.accounting.pairs import Schedule

_HIGHEST_FIRST = 1.0
_MAX_LEVEL = 5  # of exact norms; each level of randomized clipping costs four times the one before
_MAX_LEVEL_OF_A_LAW = 2
_LEAST_GAIN = 0.8  # left of a width: such a level is the last, of a question about δ two in a row
_NO_BETTER = 0.9999
_TO_SPARE = 0.2  # of a level, where less than one is needed
_ESTIMATE_AT = 0.67  # of the way from lower to upper: the lower side errs about twice as much
_WIDE_ESTIMATE_AT = 0.95  # where the interval stays wide, the lower side is most often what falls short


class InconsistentBoundsError(RuntimeError):
    """Two certified bounds contradict each other: an error of this package, never of its user."""


@dataclass
class Progress:
    """What is known before a direction is solved, and what was found at each level.

    ``enough``: an upper bound that need not be improved on, as that of the other direction.
    """

    enough: float = 0.0
    uppers: dict[float, float] = field(default_factory=dict)


def solve(
    schedule: Schedule, question: Question, direction: Direction, tolerance: float, progress: Progress | None = None
) -> PrivacyBounds:
    """Bounds for one adjacency direction, refined until narrow enough or no longer improving.

    ``tolerance``: wanted width of the interval, in units of ``question.unit``.
    Returns: always valid; as narrow as asked unless refinement stopped helping, see ``is_narrow``.
    """
    if isinstance(question, DeltaAtEpsilon):
        question = sized(schedule, question, direction)
    best = interval(0.0, math.inf, direction, question, tolerance)
    progress = progress or Progress()
    stalled, patience = 0, 2 if isinstance(question, DeltaAtEpsilon) else 1
    ladder = levels(schedule, question, tolerance)
    level = ladder[0]
    for _ in ladder:
        answer = _solve_at_level(schedule, question, direction, level, progress.enough)
        progress.uppers[level] = answer["upper"]
        found = intersection(best, answer, question, tolerance)
        left = _left(found, best)
        best, stalled = found, 0 if left < _LEAST_GAIN else stalled + 1
        if best.is_narrow or best.upper <= progress.enough or stalled == patience:
            break
        level += _share_of_a_level(best, question, tolerance)
        question = question.sharpened(best)
    return best


def improve(
    bounds: PrivacyBounds, schedule: Schedule, question: Question, tolerance: float, progress: Progress
) -> PrivacyBounds:
    """The same bounds with a smaller ``upper``, where another valid analysis of the steps gives one.

    Returns: given up as soon as it is no better than what the first analysis found at the same level.
    """
    assert bounds.direction is not None
    question = question.sharpened(bounds)
    for level in list(progress.uppers)[1:]:
        if bounds.is_narrow or bounds.upper <= progress.enough:
            break
        answer = _solve_at_level(schedule, question, bounds.direction, level, math.inf)
        if answer["upper"] >= progress.uppers[level] * _NO_BETTER:
            break
        bounds = intersection(bounds, answer, question, tolerance)
    return bounds


def levels(schedule: Schedule, question: Question, tolerance: float) -> list[float]:
    """How often meshes and bins are halved: at first as much as the tolerance most often takes, then more."""
    first = math.log(question.easy_tolerance / tolerance, 4)  # widths are of second order
    first = min(max(first, LOWEST), _HIGHEST_FIRST)
    last = _MAX_LEVEL if all(step.is_exact for step, _ in schedule) else _MAX_LEVEL_OF_A_LAW
    return [first + more for more in range(math.ceil(last - first) + 1)]


def interval(lower: float, upper: float, direction: Direction, question: Question, tolerance: float) -> PrivacyBounds:
    """Bounds with an estimate between them, and whether they are no further apart than asked."""
    if not math.isfinite(upper):
        return PrivacyBounds(lower, upper, upper, direction, is_narrow=False)
    is_narrow = _is_within(lower, upper, question, tolerance)
    estimate = lower + (_ESTIMATE_AT if is_narrow else _WIDE_ESTIMATE_AT) * (upper - lower)
    return PrivacyBounds(lower, estimate, upper, direction, is_narrow)


def _left(found: PrivacyBounds, before: PrivacyBounds) -> float:
    """How much of a width a level left over."""
    if not math.isfinite(before.upper):
        return float(math.isinf(found.upper))
    return (found.upper - found.lower) / max(before.upper - before.lower, 1e-300)


def _share_of_a_level(found: PrivacyBounds, question: Question, tolerance: float) -> float:
    """How much finer the next meshes need to be, widths being of second order; at most one level."""
    if not _is_within(found.lower, found.upper, question, 4.0 * tolerance):
        return 1.0
    ratio = (found.upper - found.lower) / (tolerance * question.unit(found.upper))
    return min(math.log(ratio, 4) + _TO_SPARE, 1.0)


def _is_within(lower: float, upper: float, question: Question, tolerance: float) -> bool:
    return math.isfinite(upper) and (upper - lower <= tolerance * question.unit(upper) or upper <= question.least)


def intersection(
    first: PrivacyBounds, answer: dict[Side, float], question: Question, tolerance: float
) -> PrivacyBounds:
    """Both bounds at once; they must not contradict each other."""
    lower = max(first.lower, answer.get("lower", first.lower))
    upper = min(first.upper, answer.get("upper", first.upper))
    if lower > upper * (1.0 + 1e-9) + 1e-300:
        raise InconsistentBoundsError(f"a lower bound, {lower!r}, exceeds an upper one, {upper!r}: please report this")
    assert first.direction is not None
    return interval(min(lower, upper), upper, first.direction, question, tolerance)


def _solve_at_level(
    schedule: Schedule, question: Question, direction: Direction, level: float, enough: float
) -> dict[Side, float]:
    """Both answers, or only the upper one where that is ``enough``, or Chernoff's bound is."""
    at = Level(schedule, question, direction, level)
    if question.is_trivial(at.ground.total_variation):
        return {"upper": 0.0, "lower": 0.0}
    if 0.0 < enough < math.inf and at.at_most <= enough:
        return {"upper": at.at_most}
    answer: dict[Side, float] = {"upper": question.read(at.curve("upper"), "upper", at.drift)}
    if isinstance(question, DeltaAtEpsilon):
        answer["upper"] = min(answer["upper"], at.at_most)
    if answer["upper"] < question.least:
        answer["upper"] = least_upper(schedule, question, direction)
    if answer["upper"] > enough:
        answer["lower"] = question.read(at.curve("lower"), "lower", at.drift)
        if direction == "add":  # there losses are bounded, most often, and rounding may put mass beyond
            answer["lower"] = question.within(answer["lower"], at.farthest)
    return answer
