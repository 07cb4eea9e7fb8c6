"""From steps to certified bounds: choose a mesh, compose both sides, refine until the interval is narrow."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from dprmt.accounting.basics import Direction, PrivacyBounds, Side, graded_indices, resolvable
from dprmt.accounting.composition._compose import (
    ComposedLoss,
    Split,
    Window,
    best_split,
    chernoff,
    composed,
    composed_beyond,
    log_chernoff,
    moved,
    some_of,
    step_scale,
    up_to,
    window,
    window_beyond,
)
from dprmt.accounting.composition._curve import (
    LEAST_DELTA,
    Curve,
    DeltaAtEpsilon,
    DeltaCurve,
    EpsilonAtDelta,
    OneStepCurve,
    Question,
    SumOfCurves,
    WholeCurve,
    one_step_delta,
    one_step_scale,
)
from dprmt.accounting.composition._loss_grid import (
    LossGrid,
    Meshing,
    directed_range,
    discrete_variation,
    discretize_step,
    laws_of_steps,
    loss_grid,
    rough_meshing,
)
from dprmt.accounting.pairs import LossPMF, PublicPair, Schedule, Step, StepPair, TightPair, cut_above, gaussians_as_one

Pairs = list[tuple[StepPair, int]]

LOWEST = -2.0
"""The coarsest level."""
_BINS = 160  # at level 0
_MESH = 0.04  # at level 0, in units of the scale of a step's loss
_BULK, _LUMP = 5.0, 2.0  # in the same units: nodes are equidistant so far out; log(1 - q) gets one if it is so near
_MESH_OF_ONE = 0.005  # of a single step, in units of what is asked about
_MAX_WINDOW = 2**20  # points: a transform of a tenth of a second
_MAX_COARSENINGS = 12
_LOSS_DRIFT = 32 * float(np.finfo(np.float64).eps)
_LARGE_DELTA = 0.01
_ROUGHLY, _LESS_ROUGHLY = 1.125, 1.05  # growth of nodes where many questions, or laws, let one be off; and of one
_FAR, _FARTHER = 1.5, 60.0  # as far as losses have to be told from infinite ones: times the answer, and beyond
_CHARGED = 10.0  # e^{-10} of δ may be charged for losses that count as infinite though they are not
_WORTH_A_SPLIT = 5.0  # e^5: how much smaller the errors of a transform get
_CUTS = 4  # of a tail, each of which brings Chernoff's bound closer


@dataclass(frozen=True)
class CoarsePass:
    """Quantities shared by both sides of one level.

    It holds ranges of losses, the tilt, the scale of a step's loss, a bound on the total variation of all steps, and a
    large enough ε. If all steps are equal, it also holds a rough law from above and the number of steps.
    """

    ranges: list[tuple[float, float]]
    tilt: float
    scale: float
    total_variation: float
    near: float
    rough: tuple[LossPMF, int] | None
    laws: Sequence[tuple[LossPMF, int]]
    split: Split | None = None


class Level:
    """δ(ε) of a composition in one direction, from above and from below, on the meshes of one level.

    ``level``: how often meshes and bins are halved.
    ``many``: whether a curve will be asked so often that the whole of it had better be made.
    """

    def __init__(
        self,
        schedule: Schedule,
        question: Question | WholeCurve,
        direction: Direction,
        level: float,
        many: bool = False,
    ) -> None:
        self.question, self.direction, self.level, self.many = question, direction, level, many
        tail = tail_per_step(schedule, question.small)
        upper, lower = pairs_at(schedule, tail, level)
        self.pairs: dict[Side, Pairs] = {"upper": upper, "lower": lower}
        self.coarse = coarse_pass(upper, question, direction, tail, many)
        self.drift = loss_drift(schedule)

    @cached_property
    def at_most(self) -> float:
        """Chernoff's bound on the answer; ∞ where steps differ."""
        assert not isinstance(self.question, WholeCurve)
        if self.coarse.rough is None:
            return math.inf
        tilt = self.coarse.tilt
        return self.question.at_most(*chernoff(*self.coarse.rough, tilt), tilt, self.drift)

    @property
    def farthest(self) -> float:
        """The largest loss of all steps, except for what is cut off."""
        each = zip(self.pairs["upper"], self.coarse.ranges, strict=True)
        return sum(count * max(high, 0.0) for (_, count), (_, high) in each)

    def curve(self, side: Side) -> Curve:
        """Return one side."""
        assert not isinstance(self.question, WholeCurve)
        pair, steps = self.pairs[side][0]
        if len(self.pairs[side]) == 1 and steps == 1:
            return self._of_one_step(pair, side)
        phases, split = self._on_one_mesh(side), self.coarse.split
        if phases is None:
            return DeltaCurve(_nothing_known(side), 0.0)
        if split is not None:
            return SumOfCurves(*(DeltaCurve(part, split.near) for part in phases.parts(split)))
        around = self.question.around(phases.laws, phases.tilt, phases.offset) + phases.offset
        return DeltaCurve(phases.composed(), around)

    def composed(self, side: Side) -> ComposedLoss:
        """Return the composed loss itself."""
        phases = self._on_one_mesh(side)
        return _nothing_known(side) if phases is None else phases.composed()

    def _of_one_step(self, pair: StepPair, side: Side) -> OneStepCurve:
        ends, scale = self.coarse.ranges[0], self.coarse.scale
        mesh = resolvable(_MESH_OF_ONE * 2.0**-self.level * scale, ends[1])
        index = graded_indices(*ends, mesh, scale)
        return OneStepCurve(discretize_step(pair, index, LossGrid(mesh), self.direction, side, to_infinity=True), side)

    def _on_one_mesh(self, side: Side) -> _Phases | None:
        """Discretize on a common mesh, coarser if the FFT window would be too long; None if that resolves nothing."""
        coarse = self.coarse
        mesh = _mesh_at(self.level, coarse)
        for _ in range(_MAX_COARSENINGS):
            how = Meshing(self.direction, side, mesh, _LUMP * coarse.scale, _BULK * coarse.scale)
            laws, offset = laws_of_steps(self.pairs[side], coarse.ranges, how)
            if not all(law.mass.any() for law, _ in laws):  # every loss is beyond what is resolved
                return None
            # The rough law is one from above: for one from below its tilt may be far too large.
            shared = len(laws) == 1 and side == "upper"
            tilt = coarse.tilt if shared else self.question.tilt(some_of(laws), offset)
            span = window(laws, tilt) if coarse.split is None else window_beyond(laws, coarse.split)
            if span.size <= _MAX_WINDOW:
                return _Phases(laws, offset, tilt, span)
            mesh *= 1.1 * span.size / _MAX_WINDOW
        return None


@dataclass(frozen=True)
class _Phases:
    """Discrete losses of steps on a mesh, less an ``offset`` in all; how to compose them."""

    laws: list[tuple[LossPMF, int]]
    offset: float
    tilt: float
    window: Window

    def composed(self) -> ComposedLoss:
        """Sum the composed phases."""
        return moved(composed(self.laws, self.tilt, self.window), self.offset)

    def parts(self, split: Split) -> tuple[ComposedLoss, ComposedLoss]:
        """Sum the parts without and with a large loss."""
        few = up_to(self.laws, split.large)
        below = composed(few, split.tilt, window(few, split.tilt))
        beyond = composed_beyond(self.laws, split.large, split.tilt_beyond, self.window)
        return moved(below, self.offset), moved(beyond, self.offset)


def step_laws(
    step: Step, count: int, question: Question, direction: Direction, level: float, tail: float
) -> tuple[dict[Side, LossPMF], float]:
    """Return one step's discrete losses from above and from below, on a mesh for ``count`` steps.

    ``tail``: mass that may be cut off per step.
    Returns: the laws, and a bound on the total variation of one step.
    """
    upper, lower = pairs_at([(step, count)], tail, level)
    coarse = coarse_pass(upper, question, direction, tail)
    mesh, (ends,) = _mesh_at(level, coarse), coarse.ranges
    sides: dict[Side, Pairs] = {"upper": upper, "lower": lower}
    laws: dict[Side, LossPMF] = {}
    for side, ((pair, _),) in sides.items():
        grid = loss_grid(pair, ends, direction, side, mesh, within=0.0, stretched=True)
        laws[side] = discretize_step(pair, grid.covering(ends, _BULK * coarse.scale), grid, direction, side)
    return laws, coarse.total_variation / count


def loss_drift(schedule: Schedule) -> float:
    """Bound the bias that rounding to the loss grid, step by step, may cause in the composed loss (F3)."""
    return _LOSS_DRIFT * sum(step.steps * count for step, count in schedule)


def coarse_pass(
    pairs: Pairs, question: Question | WholeCurve, direction: Direction, tail: float, many: bool = False
) -> CoarsePass:
    ranges = [directed_range(pair, tail, direction) for pair, _ in pairs]
    farthest = max(max(abs(end) for end in ends) for ends in ranges)
    mesh = max(1e-9 * min(farthest, 1e3), 1e-18 * farthest)
    growth = _ROUGHLY if many or len(pairs) > 1 else _LESS_ROUGHLY
    rough: Sequence[tuple[LossPMF, int]]
    rough, _ = laws_of_steps(pairs, ranges, rough_meshing(direction, mesh, growth))
    variation = sum(steps * discrete_variation(law) for law, steps in rough)
    rough = some_of(rough)
    tilt = question.tilt(rough)
    if isinstance(question, WholeCurve):
        return CoarsePass(ranges, tilt, step_scale(rough, tilt), variation, 0.0, None, rough)
    split = split_of(rough, question, tilt)
    near = question.around(rough, tilt) if split is None else split.near
    for _ in range(_CUTS):  # of a heavy tail Chernoff's bound lies far beyond the answer until the tail is cut
        reach = _FAR * max(near, 0.0) + min(_FARTHER, _CHARGED - math.log(question.small))
        if all(high <= reach for _, high in ranges):
            break
        ranges = [(low, min(high, reach)) for low, high in ranges]
        rough = [(cut_above(law, reach), steps) for law, steps in rough]
        tilt = question.tilt(rough)
        split = split_of(rough, question, tilt)
        near = question.around(rough, tilt) if split is None else split.near
    scale = step_scale(rough, tilt)
    if split is not None:
        scale = min(scale, step_scale(up_to(rough, split.large), split.tilt))
    if len(pairs) > 1:
        return CoarsePass(ranges, tilt, scale, variation, 0.0, None, rough, split)
    law, steps = rough[0]
    if steps == 1:
        scale = _scale_of_one(law, question, near)
    return CoarsePass(ranges, tilt, scale, variation, near, rough[0], rough, split)


def split_of(laws: Sequence[tuple[LossPMF, int]], question: Question, tilt: float) -> Split | None:
    """Choose where to compose large losses separately; None if that reduces no error much."""
    epsilon = question.epsilon if isinstance(question, DeltaAtEpsilon) else None
    found = best_split(laws, tilt, epsilon, question.small)
    return found if found is not None and found.log_gain > _WORTH_A_SPLIT else None


def _scale_of_one(law: LossPMF, question: Question, near: float) -> float:
    """Return the loss that decides a single step: the requested loss, or the loss at which δ is about as requested."""
    scale = one_step_scale(law, question.small)
    if isinstance(question, DeltaAtEpsilon):
        return min(scale, max(near, one_step_scale(law, max(question.small, _LARGE_DELTA))))
    return scale


def tail_per_step(schedule: Schedule, small: float) -> float:
    """Return the mass that may be cut off per step."""
    share = max(step.tail_share for step, _ in schedule)
    return share * small / sum(count for _, count in schedule)


def pairs_at(schedule: Schedule, tail: float, level: float) -> tuple[Pairs, Pairs]:
    """List each step's upper and lower pair, with the number of repetitions."""
    bins = round(_BINS * 2.0**level)
    both = [(step.pairs(bins, tail), count) for step, count in schedule]
    return [(pair[0], count) for pair, count in both], [(pair[1], count) for pair, count in both]


def _mesh_at(level: float, coarse: CoarsePass) -> float:
    return resolvable(_MESH * 2.0**-level * coarse.scale, max(high for _, high in coarse.ranges))


def _nothing_known(side: Side) -> ComposedLoss:
    """Return bounds that hold for every loss on one side."""
    nowhere = np.zeros(1)
    return ComposedLoss(nowhere, nowhere, tilt=0.0, log_scale=0.0, infinite=float(side == "upper"), error=0.0)


_MOST_GUESSES, _FAR_SMALLER, _OVERSHOOT = 10, 1e-2, 1e-2  # of δ's size; what Chernoff's bound may be too large by
_FAR_OUT = 1e6
_TAILS, _A_LITTLE_MORE = (1e-20, 1e-200), 1.0 + 1e-6


def sized(schedule: Schedule, question: DeltaAtEpsilon, direction: Direction) -> DeltaAtEpsilon:
    """Return the question with a guess of its answer's size, by Chernoff's bound, where δ is far smaller than assumed.

    Truncation, mesh and tilt are then right from the start; a search from a wrong size does not converge (§6, (F5)).
    """
    given, found, total = question.small, question, sum(count for _, count in schedule)
    for _ in range(_MOST_GUESSES):
        tail = tail_per_step(schedule, found.small)
        pairs, _ = pairs_at(schedule, tail, LOWEST)
        if not all(_is_plain(pair, step) for (pair, _), (step, _) in zip(pairs, schedule, strict=True)):
            return question
        rough = coarse_pass(pairs, found, direction, tail).laws
        tilt = found.tilt(rough)
        log_guess = log_chernoff(rough, tilt) - tilt * found.epsilon + math.log(_OVERSHOOT)
        guess = math.exp(min(max(log_guess, math.log(LEAST_DELTA)), 0.0))
        if guess >= given and found.small < given:  # so heavy a tail that one step decides
            guess = total * one_step_delta(rough[0][0], found.epsilon) if len(rough) == 1 else given
            return found.sized(guess) if guess < _FAR_SMALLER * given else question
        if guess >= _FAR_SMALLER * found.small:
            return found.sized(min(guess, given)) if found.small < given else question
        found = found.sized(max(guess, found.small**2))  # farther losses, not yet seen, may make it larger
    return found


def _is_plain(pair: StepPair, step: Step) -> bool:
    """Return whether less truncation only makes the pair sharper: of secret probes, charges grow with what is kept."""
    return (step.is_exact and step.steps == 1) or isinstance(pair, PublicPair | TightPair)


def least_upper(schedule: Schedule, question: Question, direction: Direction) -> float:
    """Return an upper bound on a δ that floating point hardly holds: 0 only where all losses are bounded by less than
    ε.
    """
    if not isinstance(question, DeltaAtEpsilon):
        return 0.0
    pairs, _ = pairs_at(schedule, tail_per_step(schedule, question.small), LOWEST)
    ranges = [[directed_range(pair, tail, direction)[1] for tail in _TAILS] for pair, _ in pairs]
    if all(math.isclose(*tops, rel_tol=1e-12) for tops in ranges):  # however little is cut off
        most = sum(steps * max(*tops, 0.0) for (_, steps), tops in zip(pairs, ranges, strict=True))
        if question.epsilon > most * _A_LITTLE_MORE:
            return 0.0
    return question.least


def reachable(schedule: Schedule, question: Question, direction: Direction) -> Question:
    """Return the question, or one about the largest sum of losses where it asks far beyond."""
    if not isinstance(question, DeltaAtEpsilon) or question.epsilon < _FAR_OUT:
        return question
    tail = tail_per_step(schedule, question.small)
    upper, _ = pairs_at(schedule, tail, LOWEST)
    most = sum(steps * directed_range(pair, tail, direction)[1] for pair, steps in upper)
    return replace(question, epsilon=min(question.epsilon, max(most, _FAR_OUT)))


_HIGHEST_FIRST = 1.0
_MAX_LEVEL = 5  # of exact norms; each level of randomized clipping costs four times the one before
_MAX_LEVEL_OF_A_LAW = 2
_LEAST_GAIN = 0.8  # left of a width: such a level is the last; two in a row of a question about δ, or of no end yet
_NO_BETTER = 0.9999
_NO_PRIVACY = 20.0
"""ε that no one publishes: from there on answers for estimated norms, whose laws are dear, are not refined."""
_TO_SPARE = 0.2  # of a level, where less than one is needed
_ESTIMATE_AT = 0.67  # of the way from lower to upper: the lower side errs about twice as much
_WIDE_ESTIMATE_AT = 0.95  # where the interval stays wide, the lower side is most often what falls short


class InconsistentBoundsError(RuntimeError):
    """Two certified bounds contradict each other: an error of this package, never of its user."""


@dataclass
class Progress:
    """What is known before a direction is solved, and what was found at each level.

    ``enough``: an upper bound that is good enough, such as the bound of the other direction.
    """

    enough: float = 0.0
    uppers: dict[float, float] = field(default_factory=dict)


def solve(
    schedule: Schedule, question: Question, direction: Direction, tolerance: float, progress: Progress | None = None
) -> PrivacyBounds:
    """Bound one adjacency direction, refining until the bounds are narrow enough or stop improving.

    ``tolerance``: wanted width of the interval, in units of ``question.unit``. The bounds always hold. They are as
    narrow as requested unless refinement stopped helping, see ``is_narrow``.
    """
    schedule = gaussians_as_one(schedule)
    if isinstance(question, DeltaAtEpsilon):
        question = sized(schedule, question, direction)
    best = interval(0.0, math.inf, direction, question, tolerance)
    progress = progress or Progress()
    stalled = 0
    ladder = levels(schedule, question, tolerance)
    level = ladder[0]
    for _ in ladder:
        answer = _solve_at_level(schedule, question, direction, level, progress.enough)
        progress.uppers[level] = answer["upper"]
        found = intersection(best, answer, question, tolerance)
        left = _left(found, best)
        best, stalled = found, 0 if left < _LEAST_GAIN else stalled + 1
        patience = 1 if isinstance(question, EpsilonAtDelta) and math.isfinite(best.upper) else 2
        if (
            best.is_narrow
            or best.upper <= progress.enough
            or stalled == patience
            or is_hopeless(schedule, question, best)
        ):
            break
        level += _share_of_a_level(best, question, tolerance)
        question = question.sharpened(best)
    return best


def is_hopeless(schedule: Schedule, question: Question, found: PrivacyBounds) -> bool:
    """Return whether an ε of estimated norms is so large that finer laws are not worth their time."""
    is_exact = all(step.is_exact for step, _ in schedule)
    if is_exact or isinstance(question, DeltaAtEpsilon) or not math.isfinite(found.upper):
        return False
    return found.lower > _NO_PRIVACY


def improve(
    bounds: PrivacyBounds, schedule: Schedule, question: Question, tolerance: float, progress: Progress
) -> PrivacyBounds:
    """Return the same bounds with a smaller ``upper``, where another valid analysis of the steps gives one.

    The attempt stops when it is no better than the first analysis at the same level.
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
    """List how often meshes and bins are halved: first by the usual amount for the tolerance, then more."""
    first = math.log(question.easy_tolerance / tolerance, 4)  # widths are of second order
    first = min(max(first, LOWEST), _HIGHEST_FIRST)
    last = _MAX_LEVEL if all(step.is_exact for step, _ in schedule) else _MAX_LEVEL_OF_A_LAW
    return [first + more for more in range(math.ceil(last - first) + 1)]


def interval(lower: float, upper: float, direction: Direction, question: Question, tolerance: float) -> PrivacyBounds:
    """Combine bounds with an estimate between them, and record whether they are as narrow as requested."""
    if not math.isfinite(upper):
        return PrivacyBounds(lower, upper, upper, direction, is_narrow=False)
    is_narrow = _is_within(lower, upper, question, tolerance)
    estimate = lower + (_ESTIMATE_AT if is_narrow else _WIDE_ESTIMATE_AT) * (upper - lower)
    return PrivacyBounds(lower, estimate, upper, direction, is_narrow)


def _left(found: PrivacyBounds, before: PrivacyBounds) -> float:
    """Compute the share of a width that a level left."""
    if not math.isfinite(before.upper):
        return float(math.isinf(found.upper))
    return (found.upper - found.lower) / max(before.upper - before.lower, 1e-300)


def _share_of_a_level(found: PrivacyBounds, question: Question, tolerance: float) -> float:
    """Estimate how much finer the next meshes need to be, widths being of second order; at most one level."""
    if not _is_within(found.lower, found.upper, question, 4.0 * tolerance):
        return 1.0
    ratio = (found.upper - found.lower) / (tolerance * question.unit(found.upper))
    return min(math.log(ratio, 4) + _TO_SPARE, 1.0)


def _is_within(lower: float, upper: float, question: Question, tolerance: float) -> bool:
    return math.isfinite(upper) and (upper - lower <= tolerance * question.unit(upper) or upper <= question.least)


def intersection(
    first: PrivacyBounds, answer: dict[Side, float], question: Question, tolerance: float
) -> PrivacyBounds:
    """Intersect two bounds; they must not contradict each other."""
    lower = max(first.lower, answer.get("lower", first.lower))
    upper = min(first.upper, answer.get("upper", first.upper))
    if lower > upper * (1.0 + 1e-9) + 1e-300:
        raise InconsistentBoundsError(f"a lower bound, {lower!r}, exceeds an upper one, {upper!r}: please report this")
    assert first.direction is not None
    return interval(min(lower, upper), upper, first.direction, question, tolerance)


def _solve_at_level(
    schedule: Schedule, question: Question, direction: Direction, level: float, enough: float
) -> dict[Side, float]:
    """Return both answers, or only the upper one where that is ``enough``, or Chernoff's bound is."""
    at = Level(schedule, question, direction, level)
    if question.is_trivial(at.coarse.total_variation):
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
