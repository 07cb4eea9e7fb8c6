"""From steps to certified bounds: choose a mesh, compose both sides, refine until the interval is narrow."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from scipy.fft import next_fast_len

from dprmt.accounting.basics._bounds import Direction, PrivacyBounds, Side
from dprmt.accounting.basics._numbers import graded_indices, resolvable
from dprmt.accounting.composition._compose import (
    EPS,
    ComposedLoss,
    Split,
    Window,
    best_split,
    best_tilt,
    composed,
    log_chernoff,
    log_kappa,
    some_of,
    step_scale,
    window,
)
from dprmt.accounting.composition._curve import (
    LEAST_DELTA,
    Curve,
    DeltaAtEpsilon,
    DeltaCurve,
    OneStepCurve,
    Question,
    one_step_scale,
)
from dprmt.accounting.composition._loss_grid import Laws, discretize_step, laws_of_steps, resolved_range
from dprmt.accounting.pairs._discretization import LossPMF, cut_above
from dprmt.accounting.pairs._pairs import Schedule, Step, StepPair, facing
from dprmt.accounting.pairs._renyi import ends_stay_apart
from dprmt.accounting.pairs._steps import gaussians_as_one

Pairs = Sequence[tuple[StepPair, int]]

LOWEST = -2.0
"""The coarsest level."""
_BINS = 160  # of a norm's law, at level 0
_MESH, _MESH_OF_ONE = 0.04, 0.005  # at level 0, in units of the scale of a step's loss; where there is one step
_MOST_TILT = 8.0  # times the mesh: at a larger one, errors a node below the largest loss exceed that loss's mass
_BULK = 5.0  # in the same units: nodes are equidistant so far out
_MOST_POINTS = 2**20  # of a window: a transform of a tenth of a second
MOST_WORK = 2**22
"""Points of all transforms, beyond which nothing is refined further."""
_WORK_OF_EPOCHS = 2**20  # points, about, for the law of an epoch of random allocation
_FAINTEST_OF_EPOCHS = 1e-40  # no δ of epochs of random allocation is resolved further, as each costs many transforms
_FAINTEST_OF_ESTIMATES = 1e-60  # nor of estimated norms, whose laws are rounded too much in tails below about 1e-80
_LOSS_DRIFT = 32 * EPS  # of a step


@dataclass(frozen=True)
class CoarsePass:
    """Results of a first pass over the steps' losses from above, on nodes each a twentieth farther out than the last.

    Attributes
    ----------
    laws : sequence of (LossPMF, int)
        Laws of these losses; some of them if there are many phases.
    ranges : list of (float, float)
        Range of losses to resolve, for each phase.
    tilt : float
        Tilt at which to compose.
    scale : float
        Relevant scale of one step's loss: the unit of meshes.
    total_variation : float
        A bound on the total variation of all steps.
    split : Split or None
        Where to compose large losses separately.
    """

    laws: Laws
    ranges: list[tuple[float, float]]
    tilt: float
    scale: float
    total_variation: float
    split: Split | None = None


class Level:
    """δ(ε) of a composition in one direction, from above and from below, on the meshes of one level.

    ``level``: how often meshes and bins are halved.
    ``question``: what errors are to be small for; None for the whole of a trade-off function, with absolute errors.
    """

    def __init__(self, schedule: Schedule, question: Question | None, direction: Direction, level: float) -> None:
        self.question, self.direction, self.level = question, direction, level
        small = 1e-9 if question is None else question.small
        is_delta = question is not None and question.epsilon is not None
        tail = tail_per_step(schedule, max(small, least_resolved(schedule)) if is_delta else small)
        self.pairs = pairs_at(schedule, tail, level, direction)
        self.coarse = coarse_pass(self.pairs["upper"], question, tail)
        self.drift = loss_drift(schedule)
        self.work = sum(_WORK_OF_EPOCHS for step, _ in schedule if step.steps > 1)

    @property
    def farthest(self) -> float:
        """The largest loss of all steps, except for what is cut off."""
        each = zip(self.pairs["upper"], self.coarse.ranges, strict=True)
        return sum(count * max(high, 0.0) for (_, count), (_, high) in each)

    def beyond(self, epsilon: float) -> float:
        """Return a bound on δ(ε): some step's loss exceeds its share of ε, which is as large as its losses are."""
        total, part = 0.0, epsilon / self.farthest if self.farthest > 0.0 else 0.0
        for (pair, count), (_, high) in zip(self.pairs["upper"], self.coarse.ranges, strict=True):
            total += count * (pair.cells(np.array([-1.0, part * max(high, 0.0)])).p_above + pair.slack)
        return min(total * (1.0 + 1e-9), 1.0)

    def curve(self, side: Side) -> Curve:
        """Return one side."""
        pair, steps = self.pairs[side][0]
        if len(self.pairs[side]) == 1 and steps == 1:
            ends, scale = self.coarse.ranges[0], self.coarse.scale
            mesh = resolvable(_MESH_OF_ONE * 2.0**-self.level * scale, ends[1])
            index = graded_indices(*ends, mesh, scale)
            return OneStepCurve(discretize_step(pair, index, mesh, side, to_infinity=True), side)
        parts, question = self.composed(side), self.question
        assert question is not None
        around = question.epsilon
        if around is None:  # what Chernoff's bound proves
            logs = [part.log_scale + float(log_kappa(np.array(part.tilt))) - math.log(question.small) for part in parts]
            around = max(log / part.tilt if part.tilt else 0.0 for log, part in zip(logs, parts, strict=True))
        return DeltaCurve(parts[0], around, *parts[1:])

    def composed(self, side: Side) -> list[ComposedLoss]:
        """Return the composed loss, in two parts where large losses are composed apart.

        On a common mesh, coarser if the window would be too long; where that resolves nothing, nothing is known.
        """
        coarse, split = self.coarse, self.coarse.split
        mesh = _mesh(self.level, coarse)
        while mesh < math.inf:
            felt = coarse.tilt or 1.0
            laws = laws_of_steps(self.pairs[side], coarse.ranges, mesh, _BULK * coarse.scale, side, felt)
            if not all(law.mass.any() for law, _ in laws):  # every loss is beyond what is resolved
                break
            # The coarse laws are from above: for one from below their tilt may be far too large.
            tilt = coarse.tilt if side == "upper" else tilt_of(some_of(laws), self.question)
            parts: list[Laws] = [laws]
            tilts = [min(tilt, _MOST_TILT / mesh)]
            if split is not None and (laws[0][0].mass[laws[0][0].losses > split.large] > 0.0).any():
                parts, tilts = [*split.parts(laws, side)], [split.tilt, split.tilt_beyond]
            windows = [window(part, each) for part, each in zip(parts, tilts, strict=True)]
            first, last = min(each.first for each in windows), max(each.first + each.size for each in windows)
            if last - first > 1.6 * _MOST_POINTS:  # a mesh a little coarser would gain little time
                mesh *= 1.1 * (last - first) / _MOST_POINTS
                continue
            win = Window(first, next_fast_len(last - first, real=True))
            self.work += win.size * len(laws)
            loss, *beyond = [composed(part, each, win) for part, each in zip(parts, tilts, strict=True)]
            more = math.log(laws[0][1])  # of each step's large losses
            return [loss, *(replace(each, log_scale=each.log_scale + more) for each in beyond)]
        nothing = np.zeros(1)
        return [ComposedLoss(nothing, nothing, 0.0, 0.0, float(side == "upper"), 0.0)]


def _mesh(level: float, coarse: CoarsePass) -> float:
    return resolvable(_MESH * 2.0**-level * coarse.scale, max(high for _, high in coarse.ranges))


def tilt_of(laws: Laws, question: Question | None) -> float:
    """Return the tilt at which errors are small for the question; none for a whole curve."""
    return 0.0 if question is None else best_tilt(laws, delta=question.small, epsilon=question.epsilon)


def pairs_at(schedule: Schedule, tail: float, level: float, direction: Direction) -> dict[Side, Pairs]:
    """List each step's upper and lower pair, with the number of repetitions."""
    both = [(step.pairs(round(_BINS * 2.0**level), tail), count) for step, count in schedule]
    upper, lower = ([(facing(pair[place], direction), count) for pair, count in both] for place in (0, 1))
    return {"upper": upper, "lower": lower}


def least_resolved(schedule: Schedule) -> float:
    """Return the least δ that is resolved."""
    if any(step.steps > 1 for step, _ in schedule):
        return _FAINTEST_OF_EPOCHS
    return LEAST_DELTA if all(step.is_exact for step, _ in schedule) else _FAINTEST_OF_ESTIMATES


def sized(schedule: Schedule, question: DeltaAtEpsilon, direction: Direction) -> DeltaAtEpsilon:
    """Return the question with a guess of its answer's size, by Chernoff's bound, where δ is far smaller than assumed.

    Truncation, mesh and tilt are then right from the start; a search from a wrong size does not converge (§6, (F5)).
    """
    given, found, least = question.small, question, least_resolved(schedule)
    for _ in range(10):
        tail = tail_per_step(schedule, max(found.small, least))
        pairs = pairs_at(schedule, tail, 0.0 if least == _FAINTEST_OF_EPOCHS else LOWEST, direction)["upper"]
        laws = coarse_pass(pairs, found, tail).laws
        tilt = tilt_of(laws, found)
        log_guess = log_chernoff(laws, tilt) - tilt * found.epsilon + math.log(0.01)  # Chernoff's is too large
        guess = math.exp(min(max(log_guess, math.log(least)), 0.0))
        if guess >= given > found.small:  # so heavy a tail that one step decides
            ((law, _), *more), total = laws, sum(count for _, count in laws)
            beyond = law.losses > found.epsilon
            one = float(law.mass[beyond] @ -np.expm1(found.epsilon - law.losses[beyond])) + law.infinite
            guess = given if more else total * one
            return found.sized(guess) if guess < 0.01 * given else question
        if guess >= 0.01 * found.small:
            return found.sized(min(guess, given)) if found.small < given else question
        found = found.sized(max(guess, found.small**2))  # farther losses, not yet seen, may make it larger
    return found


def tail_per_step(schedule: Schedule, small: float) -> float:
    """Return the mass that may be cut off per step."""
    return max(step.tail_share for step, _ in schedule) * small / sum(count for _, count in schedule)


def loss_drift(schedule: Schedule) -> float:
    """Bound the bias that rounding to the loss grid, step by step, may cause in the composed loss (F3)."""
    return _LOSS_DRIFT * sum(step.steps * count for step, count in schedule)


def coarse_pass(pairs: Pairs, question: Question | None, tail: float) -> CoarsePass:
    """See :class:`CoarsePass`."""
    ranges = [resolved_range(pair, tail) for pair, _ in pairs]
    farthest = max(max(abs(end) for end in ends) for ends in ranges)
    mesh = max(1e-9 * min(farthest, 1e3), 1e-18 * farthest)
    laws: Laws = laws_of_steps(pairs, ranges, mesh, 20.0 * mesh, "upper")
    variation = sum(
        steps * (float(law.mass @ -np.expm1(-np.maximum(law.losses, 0.0))) + law.infinite) for law, steps in laws
    )
    laws = some_of(laws)
    tilt, split, near = _chosen(laws, question)
    if question is None:
        return CoarsePass(laws, ranges, tilt, step_scale(laws, tilt), variation)
    for _ in range(4):  # of a heavy tail Chernoff's bound lies far beyond the answer until the tail is cut
        reach = 1.5 * max(near, 0.0) + min(60.0, 10.0 - math.log(question.small))  # e^{-10} of δ is charged beyond
        if all(high <= reach for _, high in ranges):
            break
        ranges = [(low, min(high, reach)) for low, high in ranges]
        laws = [(cut_above(law, reach), steps) for law, steps in laws]
        tilt, split, near = _chosen(laws, question)
    scale = step_scale(laws, tilt)
    if split is not None:
        scale = min(scale, step_scale(split.parts(laws)[0], split.tilt))
    if len(pairs) == 1 and pairs[0][1] == 1:
        scale = one_step_scale(laws[0][0], question.small)
        if question.epsilon is not None:  # the loss asked about, unless δ is decided before
            scale = min(scale, max(near, one_step_scale(laws[0][0], max(question.small, 0.01))))
    return CoarsePass(laws, ranges, tilt, scale, variation, split)


def _chosen(laws: Laws, question: Question | None) -> tuple[float, Split | None, float]:
    """Return the tilt, the split, and the ε asked about or that Chernoff's bound proves."""
    tilt = tilt_of(laws, question)
    if question is None:
        return tilt, None, 0.0
    split = best_split(laws, tilt, question.epsilon, question.small)
    if split is not None:
        return tilt, split, split.near
    if question.epsilon is not None:
        return tilt, None, question.epsilon
    return tilt, None, (log_chernoff(laws, tilt) - math.log(question.small)) / tilt


class InconsistentBoundsError(RuntimeError):
    """Two certified bounds contradict each other: an error of this package, never of its user."""


def solve(
    schedule: Schedule, question: Question, direction: Direction, tolerance: float, enough: float = 0.0
) -> PrivacyBounds:
    """Bound one adjacency direction, refining until the bounds are narrow enough or stop improving.

    ``tolerance``: wanted width of the interval, as :meth:`EpsilonAtDelta.is_within` takes it. ``enough``: an upper
    bound that is good enough, such as the bound of the other direction. The bounds always hold. They are as narrow as
    requested unless refinement stopped helping, see ``is_narrow``.
    """
    schedule = gaussians_as_one(schedule)
    if question.epsilon is not None:  # no δ below ``enough`` is of interest
        question = question.sized(min(enough, question.small)) if enough > 0.0 else sized(schedule, question, direction)
    best = interval(0.0, math.inf, direction, question, tolerance)
    level, *more = levels(schedule, question, tolerance)
    work, stalled, patience = 0, 0, 1 if question.epsilon is None else 2
    for _ in range(len(more) + 1):
        width = best.upper - best.lower
        at = Level(schedule, question, direction, level)
        best = intersection(best, _solve_at_level(at, enough), question, tolerance)
        work += at.work
        if best.is_narrow or best.upper <= enough or work > MOST_WORK or _is_hopeless(schedule, question, best):
            break
        stalled = 0 if best.upper - best.lower < 0.8 * width else stalled + 1
        if stalled == (patience if math.isfinite(best.upper) else 2):
            break
        is_near = question.is_within(best.lower, best.upper, 4.0 * tolerance)
        is_found = math.isfinite(best.upper) and (question.epsilon is None or best.lower > 0.0)
        if is_found and not is_near and ends_stay_apart(schedule):
            break
        if is_near:  # widths are of second order
            unit = max(best.upper, 1.0 if question.epsilon is None else 0.0)
            level += min(math.log((best.upper - best.lower) / (tolerance * unit), 4) + 0.2, 1.0)
        else:
            level += 1.0
        question = question.sharpened(best.upper, best.lower)
    return best


def levels(schedule: Schedule, question: Question, tolerance: float) -> list[float]:
    """List how often meshes and bins are halved: first by the usual amount for the tolerance, then more."""
    first = min(max(math.log(question.easy_tolerance / tolerance, 4), LOWEST), 1.0)
    last = 5 if all(step.is_exact for step, _ in schedule) else 2  # each level of a norm's law costs four times more
    return [first + more for more in range(math.ceil(last - first) + 1)]


def _is_hopeless(schedule: Schedule, question: Question, found: PrivacyBounds) -> bool:
    """Return whether an ε of estimated norms, whose laws cost much time, is too large to be useful, or δ too small."""
    is_exact = all(step.is_exact for step, _ in schedule)
    if question.epsilon is not None:
        return question.small <= least_resolved(schedule)
    return not is_exact and found.lower > 20.0 and math.isfinite(found.upper)


def interval(lower: float, upper: float, direction: Direction, question: Question, tolerance: float) -> PrivacyBounds:
    """Combine bounds with an estimate between them, and record whether they are as narrow as requested."""
    at_delta = question.delta if question.epsilon is None else None
    if not math.isfinite(upper):
        return PrivacyBounds(lower, upper, upper, direction, False, at_delta, question.epsilon)
    is_narrow = question.is_within(lower, upper, tolerance)
    # The lower side errs about twice as much; where the interval stays wide, it is most often what falls short.
    estimate = lower + (0.67 if is_narrow else 0.95) * (upper - lower)
    return PrivacyBounds(lower, estimate, upper, direction, is_narrow, at_delta, question.epsilon)


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


def _solve_at_level(at: Level, enough: float) -> dict[Side, float]:
    """Return both answers, or only the upper one where that is ``enough``."""
    assert at.question is not None
    question = at.question
    if at.coarse.total_variation <= question.delta * (1.0 - 1e-9):  # even δ(0) is no larger
        return {"upper": 0.0, "lower": 0.0}
    upper, least = math.inf, 0.0
    if question.epsilon is not None:
        upper, least = at.beyond(question.epsilon), LEAST_DELTA
    if 0.0 < enough < math.inf and upper <= enough:
        return {"upper": max(upper, least)}
    if question.epsilon is not None and question.epsilon >= at.farthest:
        return {"upper": max(upper, least), "lower": 0.0}
    found = question.read(at.curve("upper"), "upper", at.drift)
    upper = found if question.epsilon is None else max(min(found, upper), least)
    if upper <= enough:
        return {"upper": upper}
    lower = question.read(at.curve("lower"), "lower", at.drift)
    if at.direction == "add" and question.epsilon is None:  # losses are bounded, and rounding may put mass beyond
        lower = min(lower, at.farthest)
    return {"upper": upper, "lower": lower}


def step_laws(
    step: Step, count: int, question: Question, direction: Direction, level: float, tail: float
) -> tuple[dict[Side, LossPMF], float]:
    """Return one step's discrete losses from above and from below, on a mesh for ``count`` steps.

    ``tail``: mass that may be cut off per step.
    Returns: the laws, and a bound on the total variation of one step.
    """
    pairs = pairs_at([(step, count)], tail, level, direction)
    coarse = coarse_pass(pairs["upper"], question, tail)
    mesh = _mesh(level, coarse)
    laws = {
        side: laws_of_steps(both, coarse.ranges, mesh, _BULK * coarse.scale, side, coarse.tilt)[0][0]
        for side, both in pairs.items()
    }
    return laws, coarse.total_variation / count
