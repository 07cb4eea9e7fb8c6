"""From steps to certified bounds: choose meshes, compose both sides, refine until the interval is narrow."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from dprmt.accounting.basics import Direction, PrivacyBounds, Side, graded_indices, resolvable
from dprmt.accounting.composition._composed_loss import (
    ComposedLoss,
    Window,
    chernoff,
    composed,
    moved,
    some_of,
    window,
)
from dprmt.accounting.composition._delta_curve import DeltaCurve
from dprmt.accounting.composition._delta_size import least_upper, reachable, sized
from dprmt.accounting.composition._few_frequencies import SmoothCurve, smooth_curve
from dprmt.accounting.composition._ground import (
    LOWEST,
    Ground,
    Pairs,
    bins_at,
    ground_of,
    laws_of,
    pairs_at,
    tail_per_step,
)
from dprmt.accounting.composition._one_step_curve import OneStepCurve
from dprmt.accounting.composition._question import (
    Curve,
    DeltaAtEpsilon,
    EpsilonAtDelta,
    Question,
    WholeCurve,
)
from dprmt.accounting.composition._split_plan import SplitPlan, plan_split, split_curve
from dprmt.accounting.composition._step_law import Lattice, Meshing, discretize_step, lattice
from dprmt.accounting.pairs import LossPMF, Schedule, Step, StepPair

_MAX_WINDOW = 2**21
_MAX_COARSENINGS = 12
_MUCH_COARSER = 2.0
_VERY_MANY = 10**7  # steps: then a few frequencies are tried first, on as fine a mesh as is wanted (F6)
_LOSS_DRIFT = 32 * float(np.finfo(np.float64).eps)
_MESH = 0.04  # at level 0, in units of the scale of a step's loss
_BULK, _LUMP = 5.0, 2.0  # in the same units: nodes are equidistant so far out; log(1 - q) gets one if it is so near
_HIGHEST_FIRST = 1.0
_MAX_LEVEL = 5  # of exact norms; each level of randomized clipping costs four times the one before
_MAX_LEVEL_OF_A_LAW = 2
_SPLIT_BEYOND = 6.0
_SLOW, _LEAST_GAIN = (
    0.8,
    0.95,
)  # left of a width: then large losses go apart; two such levels in a row are the last
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
    stalled, split = 0, False
    ladder = levels(schedule, question, tolerance)
    level = ladder[0]
    for _ in ladder:
        answer = _solve_at_level(schedule, question, direction, level, split, progress.enough)
        progress.uppers[level] = answer["upper"]
        found = intersection(best, answer, question, tolerance)
        left = _left(found, best)
        best, stalled = found, 0 if left < _LEAST_GAIN else stalled + 1
        if best.is_narrow or best.upper <= progress.enough or stalled == 2:
            break
        level += _share_of_a_level(best, question, tolerance)
        # One more level divides the width by four or so: where that is too little, large losses may be to blame.
        split = split or left > _SLOW or not _is_within(best.lower, best.upper, question, _SPLIT_BEYOND * tolerance)
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
        answer = _solve_at_level(schedule, question, bounds.direction, level, level > 1.0, math.inf)
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
    schedule: Schedule, question: Question, direction: Direction, level: float, split: bool, enough: float
) -> dict[Side, float]:
    """Both answers, or only the upper one where that is ``enough``, or Chernoff's bound is."""
    both, ground = _shared(schedule, question, direction, level)
    if question.is_trivial(ground.total_variation):
        return {"upper": 0.0, "lower": 0.0}
    drift = loss_drift(schedule)
    if 0.0 < enough < math.inf and ground.rough is not None:
        at_most = question.at_most(*chernoff(*ground.rough, ground.tilt), ground.tilt, drift)
        if at_most <= enough:
            return {"upper": at_most}
    curves = _curves(both, ground, question, direction, level, split)
    answer: dict[Side, float] = {"upper": question.read(curves("upper"), "upper", drift)}
    if isinstance(question, DeltaAtEpsilon) and ground.rough is not None:
        bound = question.at_most(*chernoff(*ground.rough, ground.tilt), ground.tilt, drift)
        answer["upper"] = min(answer["upper"], bound)
    if answer["upper"] < question.least:
        answer["upper"] = least_upper(schedule, question, direction)
    if answer["upper"] > enough:
        answer["lower"] = question.read(curves("lower"), "lower", drift)
        if direction == "add":  # there losses are bounded, most often, and rounding may put mass beyond
            farthest = sum(steps * max(ends[1], 0.0) for (_, steps), ends in zip(schedule, ground.ranges, strict=True))
            answer["lower"] = question.within(answer["lower"], farthest)
    return answer


def level_curves(
    schedule: Schedule, question: Question, direction: Direction, level: float, split: bool, many: bool = False
) -> Callable[[Side], Curve] | None:
    """Makes δ(ε) from above or from below, sharpest where the question is; None if its answer is 0 without them.

    ``many``: whether a curve will be asked so often that the whole of it had better be made.
    """
    question = reachable(schedule, question, direction)
    both, ground = _shared(schedule, question, direction, level, many)
    if question.is_trivial(ground.total_variation):
        return None
    return _curves(both, ground, question, direction, level, split, many)


def _shared(
    schedule: Schedule, question: Question, direction: Direction, level: float, many: bool = False
) -> tuple[dict[Side, Pairs], Ground]:
    tail = tail_per_step(schedule, question.small)
    upper, lower = pairs_at(schedule, tail, level)
    return {"upper": upper, "lower": lower}, ground_of(upper, question, direction, tail, many)


def _curves(
    both: dict[Side, Pairs],
    ground: Ground,
    question: Question,
    direction: Direction,
    level: float,
    split: bool,
    many: bool = False,
) -> Callable[[Side], Curve]:
    plan = None if ground.rough is None else _plan(*ground.rough, ground, question)
    return lambda side: _curve(both[side], ground, plan, question, direction, side, level, split, many)


def _plan(law: LossPMF, steps: int, ground: Ground, question: Question) -> SplitPlan | None:
    if steps == 1:
        return None
    below = question.below if isinstance(question, EpsilonAtDelta) else ground.near
    return plan_split(law, steps, question.small, ground.near, ground.tilt, ground.scale, below)


def _curve(
    pairs: Pairs,
    ground: Ground,
    plan: SplitPlan | None,
    question: Question,
    direction: Direction,
    side: Side,
    level: float,
    split: bool,
    many: bool,
) -> Curve:
    pair, steps = pairs[0]
    if len(pairs) == 1 and steps == 1:
        return _one_step(pair, ground, direction, side, level)
    splits = plan is not None and (split or plan.needed)
    phases = None
    if not splits or steps >= _VERY_MANY:
        phases = _on_one_mesh(pairs, ground, question, direction, side, level, not many)
        if phases is not None and phases.smooth is not None:
            return phases.smooth
    if plan is not None and (splits or phases is None or phases.coarsened > _MUCH_COARSER):
        curve = split_curve(pair, steps, ground.ranges[0], direction, side, plan, level, question.small)
        if curve is not None:
            return curve
    phases = phases or _on_one_mesh(pairs, ground, question, direction, side, level, not many)
    if phases is None:
        return DeltaCurve(_nothing_known(side), 0.0)
    smooth = None if many else smooth_curve(phases.laws, phases.tilt, phases.window, phases.offset, side)
    if smooth is not None:
        return smooth
    around = question.around(phases.laws, phases.tilt, phases.offset) + phases.offset
    return DeltaCurve(_composed(phases), around)


def _one_step(pair: StepPair, ground: Ground, direction: Direction, side: Side, level: float) -> OneStepCurve:
    mesh = resolvable(0.005 * 2.0**-level * ground.scale, ground.ranges[0][1])
    index = graded_indices(*ground.ranges[0], mesh, ground.scale)
    return OneStepCurve(discretize_step(pair, index, Lattice(mesh), direction, side, to_infinity=True), side)


def loss_drift(schedule: Schedule) -> float:
    """Bias that rounding of the losses' grid, step by step, may cause in the composed loss (F3)."""
    return _LOSS_DRIFT * sum(step.steps * count for step, count in schedule)


def whole_loss(schedule: Schedule, direction: Direction, level: float) -> dict[Side, ComposedLoss]:
    """The composed loss without tilt, from above and from below."""
    question = WholeCurve()
    tail = tail_per_step(schedule, question.small)
    upper, lower = pairs_at(schedule, tail, level)
    ground = ground_of(upper, question, direction, tail)
    both: dict[Side, Pairs] = {"upper": upper, "lower": lower}
    found = {side: _on_one_mesh(pairs, ground, question, direction, side, level) for side, pairs in both.items()}
    return {side: _nothing_known(side) if phases is None else _composed(phases) for side, phases in found.items()}


def step_laws(
    step: Step, count: int, question: Question, direction: Direction, level: float, tail: float
) -> tuple[dict[Side, LossPMF], float]:
    """One step's discrete losses from above and from below, on a mesh for ``count`` steps.

    ``tail``: mass that may be cut off per step.
    Returns: the laws, and a bound on the total variation of one step.
    """
    upper, lower = step.pairs(bins_at(level), tail)
    ground = ground_of([(upper, count)], question, direction, tail)
    mesh = resolvable(_MESH * 2.0**-level * ground.scale, max(high for _, high in ground.ranges))
    sides: dict[Side, StepPair] = {"upper": upper, "lower": lower}
    laws: dict[Side, LossPMF] = {}
    for side, pair in sides.items():
        grid = lattice(pair, ground.ranges[0], direction, side, mesh, within=0.0, stretched=True)
        index = grid.covering(ground.ranges[0], _BULK * ground.scale)
        laws[side] = discretize_step(pair, index, grid, direction, side)
    return laws, ground.total_variation / count


@dataclass(frozen=True)
class _Phases:
    """Discrete losses of steps on a mesh, ``coarsened`` so much, less an ``offset`` in all; how to compose them."""

    laws: list[tuple[LossPMF, int]]
    offset: float
    tilt: float
    window: Window
    coarsened: float
    smooth: SmoothCurve | None = None


def _on_one_mesh(
    pairs: Pairs,
    ground: Ground,
    question: Question | WholeCurve,
    direction: Direction,
    side: Side,
    level: float,
    one_point: bool = False,
) -> _Phases | None:
    """Discretize on a common mesh, coarser if the FFT window would be too long; None if that resolves nothing.

    ``one_point``: whether few frequencies would do instead of a coarser mesh (F6).
    """
    mesh = finest = resolvable(_MESH * 2.0**-level * ground.scale, max(high for _, high in ground.ranges))
    for _ in range(_MAX_COARSENINGS):
        how = Meshing(direction, side, mesh, _LUMP * ground.scale, _BULK * ground.scale, level <= 0.0)
        laws, offset = laws_of(pairs, ground.ranges, how)
        if not all(law.mass.any() for law, _ in laws):  # every loss is beyond what is resolved
            return None
        # The rough law is one from above: for one from below its tilt may be far too large.
        shared = len(laws) == 1 and side == "upper"
        tilt = ground.tilt if shared else question.tilt(some_of(laws), offset)
        span = window(laws, tilt)
        if span.size <= _MAX_WINDOW:
            return _Phases(laws, offset, tilt, span, mesh / finest)
        if one_point and mesh == finest:
            smooth = smooth_curve(laws, tilt, span, offset, side)
            if smooth is not None:
                return _Phases(laws, offset, tilt, span, 1.0, smooth)
        mesh *= 1.1 * span.size / _MAX_WINDOW
    return None


def _composed(phases: _Phases) -> ComposedLoss:
    return moved(composed(phases.laws, phases.tilt, phases.window), phases.offset)


def _nothing_known(side: Side) -> ComposedLoss:
    """What bounds every loss on one side."""
    nowhere = np.zeros(1)
    return ComposedLoss(nowhere, nowhere, tilt=0.0, log_scale=0.0, infinite=float(side == "upper"), error=0.0)
