"""From steps to certified bounds: choose a mesh, compose both sides, refine until the interval is narrow."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from scipy.fft import next_fast_len

from dprmt.accounting.basics._bounds import Direction, PrivacyBounds, Side
from dprmt.accounting.basics._numbers import LARGEST_LOSS, LEAST_DELTA
from dprmt.accounting.composition._compose import (
    ComposedLoss,
    Curve,
    DeltaCurve,
    OneStepCurve,
    Question,
    Split,
    Window,
    best_split,
    best_tilt,
    composed,
    one_step_scale,
    some_of,
    step_scale,
    window,
)
from dprmt.accounting.pairs._pairs import (
    EPS,
    Laws,
    LossPMF,
    Mirrored,
    Schedule,
    Step,
    StepPair,
    cut_above,
    discretize_step,
    from_above,
    from_below,
    graded_indices,
)
from dprmt.accounting.pairs._renyi import ends_stay_apart

Pairs = Sequence[tuple[StepPair, int]]

LOWEST = -2.0
"""The coarsest level."""
_MESH = 0.04  # at level 0, in units of the scale of a step's loss
_BULK = 5.0  # in the same units: nodes are equidistant so far out
MOST_POINTS = 2**20
"""Points of a window, at most: a transform of a tenth of a second."""
TAIL_SHARE = 1e-4
"""Share of δ, over all steps, that may be charged for mass cut off at the ends of each law."""
_LOSS_DRIFT = 32 * EPS  # bias that rounding to the loss grid may cause in a step's loss (F3)


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
    ``tail``: mass that may be cut off per step, if it is not chosen here.
    """

    def __init__(
        self,
        schedule: Schedule,
        question: Question | None,
        direction: Direction,
        level: float,
        tail: float | None = None,
    ) -> None:
        self.question, self.direction = question, direction
        if tail is None:
            small = 1e-9 if question is None else question.delta
            if question is not None and question.epsilon is not None:
                small = max(small, least_resolved(schedule))
            tail = TAIL_SHARE * small / sum(count for _, count in schedule)
        bins = min(round(320 * 2.0**level), 640)  # of a norm's law
        both = [(step.pairs(bins, tail), count) for step, count in schedule]
        self.pairs: dict[Side, Pairs] = {
            "upper": [(pair if direction == "remove" else Mirrored(pair, pair.slack), n) for (pair, _), n in both],
            "lower": [(pair if direction == "remove" else Mirrored(pair, pair.slack), n) for (_, pair), n in both],
        }
        self.coarse = coarse_pass(self.pairs["upper"], question, tail)
        self.drift = _LOSS_DRIFT * sum(step.steps * count for step, count in schedule)
        self.work = sum(MOST_POINTS for step, _ in schedule if step.steps > 1)  # about, of an epoch's law
        # At least the finest mesh by whose multiples 60 bits number all losses.
        self.finest = 2.0**-60 * abs(max(high for _, high in self.coarse.ranges))
        self.mesh = max(_MESH * 2.0**-level * self.coarse.scale, self.finest)

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

    def ends(self, enough: float) -> tuple[float, float | None]:
        """Return both ends of the answer, the upper one first, or it alone where it is ``enough``."""
        question = self.question
        assert question is not None
        least_variation = question.delta * (1.0 - 1e-9) if question.epsilon is None else 0.0
        if self.coarse.total_variation <= least_variation:  # even δ(0) is no larger
            return 0.0, 0.0
        most, least = math.inf, 0.0
        if question.epsilon is not None:
            most, least = self.beyond(question.epsilon), LEAST_DELTA
            if 0.0 < enough < math.inf and most <= enough:
                return max(most, least), None
            if question.epsilon >= self.farthest:
                return max(most, least), 0.0
        upper = question.read(self.curve("upper"), "upper", self.drift)
        upper = max(min(upper, most), least)
        if upper <= enough:
            return upper, None
        lower = question.read(self.curve("lower"), "lower", self.drift)
        if self.direction == "add" and question.epsilon is None:  # losses are bounded; rounding may put mass beyond
            lower = min(lower, self.farthest)
        return upper, lower

    def curve(self, side: Side) -> Curve:
        """Return δ(ε) from one side, in two parts where large losses are composed apart.

        On a common mesh, coarser if the window would be too long; where that resolves nothing, nothing is known.
        """
        coarse, question, pairs = self.coarse, self.question, self.pairs[side]
        if question is not None and len(pairs) == 1 and pairs[0][1] == 1:
            return self._one_step_curve(side)
        nothing = np.zeros(1)
        losses = [ComposedLoss(nothing, nothing, 0.0, 0.0, float(side == "upper"), 0.0)]
        mesh, bulk, felt = self.mesh, _BULK * coarse.scale, coarse.tilt or 1.0
        while mesh < math.inf:
            each = zip(pairs, coarse.ranges, strict=True)
            laws = [(discretize_step(pair, ends, mesh, bulk, side, felt), count) for (pair, count), ends in each]
            if not all(law.mass.any() for law, _ in laws):  # every loss is beyond what is resolved
                break
            # The coarse laws are from above: for one from below their tilt may be far too large. And at a tilt of more
            # than 8 meshes errors a node below the largest loss exceed that loss's mass.
            tilt = coarse.tilt if side == "upper" else best_tilt(some_of(laws), question)[0]
            parts: list[tuple[Laws, float]] = [(laws, min(tilt, 8.0 / mesh))]
            if coarse.split is not None and (laws[0][0].mass[laws[0][0].losses > coarse.split.large] > 0.0).any():
                parts = coarse.split.parts(laws, side)
            windows = [window(*part) for part in parts]
            first, last = min(each.first for each in windows), max(each.first + each.size for each in windows)
            if last - first > 1.6 * MOST_POINTS:  # a mesh a little coarser would gain little time
                mesh *= 1.1 * (last - first) / MOST_POINTS
                continue
            common = Window(first, next_fast_len(last - first, real=True))
            self.work += common.size * len(laws) * len(parts)
            losses = [composed(*part, common) for part in parts]
            break
        return DeltaCurve(question, *losses)

    def whole(self, side: Side) -> ComposedLoss:
        """Return the composed loss where the whole of a trade-off function is asked for."""
        curve = self.curve(side)
        assert isinstance(curve, DeltaCurve)
        return curve.loss

    def _one_step_curve(self, side: Side) -> OneStepCurve:
        """Return δ(ε) of a single step, which is not composed: on a finer mesh."""
        ((pair, _),), (ends,) = self.pairs[side], self.coarse.ranges
        mesh = max(self.mesh / 8.0, self.finest)
        index = graded_indices(*ends, mesh, self.coarse.scale)
        cells = pair.cells(index * mesh)
        if side == "lower":
            return OneStepCurve(from_below(index, mesh, cells), side)
        law = from_above(index, mesh, cells, to_infinity=True)
        return OneStepCurve(replace(law, infinite=min(law.infinite + pair.slack, 1.0)), side)


def least_resolved(schedule: Schedule) -> float:
    """Return the least δ that is resolved."""
    if any(step.steps > 1 for step, _ in schedule):  # each level of an epoch costs many transforms
        return 1e-40
    # The laws of estimated norms are rounded too much in tails below about 1e-80.
    return LEAST_DELTA if all(step.is_exact for step, _ in schedule) else 1e-60


def sized(schedule: Schedule, question: Question, direction: Direction) -> Question:
    """Return the question with a guess of its answer's size, by Chernoff's bound, where δ is far smaller than assumed.

    Truncation, mesh and tilt are then right from the start; a search from a wrong size does not converge (§6).
    """
    given, found, least = question.delta, question, least_resolved(schedule)
    epsilon, level = question.epsilon or 0.0, 0.0 if any(step.steps > 1 for step, _ in schedule) else LOWEST
    for _ in range(10):
        coarse = Level(schedule, found, direction, level).coarse
        laws, (tilt, log_bound) = coarse.laws, best_tilt(coarse.laws, found)
        log_guess = log_bound - tilt * epsilon + math.log(0.01)  # Chernoff's is too large
        guess = math.exp(min(max(log_guess, math.log(least)), 0.0))
        if guess >= given > found.delta:  # so heavy a tail that one step decides
            ((law, _), *more), total = laws, sum(count for _, count in laws)
            beyond = law.losses > epsilon
            one = float(law.mass[beyond] @ -np.expm1(epsilon - law.losses[beyond])) + law.infinite
            guess = given if more else total * one
            return found.sized(guess) if guess < 0.01 * given else question
        if guess >= 0.01 * found.delta:
            return found.sized(min(guess, given)) if found.delta < given else question
        found = found.sized(max(guess, found.delta**2))  # farther losses, not yet seen, may make it larger
    return found


def coarse_pass(pairs: Pairs, question: Question | None, tail: float) -> CoarsePass:
    """See :class:`CoarsePass`."""
    ranges = []
    for pair, _ in pairs:  # P(L < -60) ≤ e^{-60}, and losses too large to be of use count as infinite
        low, high = pair.loss_range(tail)
        ranges.append((max(low, -60.0), min(high, LARGEST_LOSS)))
    farthest = max(max(abs(end) for end in ends) for ends in ranges)
    mesh = max(1e-9 * min(farthest, 1e3), 1e-18 * farthest)
    each = zip(pairs, ranges, strict=True)
    laws: Laws = [(discretize_step(pair, ends, mesh, 20.0 * mesh, "upper"), count) for (pair, count), ends in each]
    variation = sum(
        steps * (float(law.mass @ -np.expm1(-np.maximum(law.losses, 0.0))) + law.infinite) for law, steps in laws
    )
    laws = some_of(laws)
    if question is None:
        return CoarsePass(laws, ranges, 0.0, step_scale(laws, 0.0), variation)
    for is_last in (False, False, False, False, True):  # of a heavy tail Chernoff's bound lies far beyond the answer
        tilt, log_bound = best_tilt(laws, question)
        split = best_split(laws, tilt, question)
        if split is not None:
            near = split.near
        elif question.epsilon is not None:
            near = question.epsilon
        else:
            near = (log_bound - math.log(question.delta)) / tilt
        reach = max(near, 0.0) + 12.0  # e^{-12} of δ is charged beyond
        if question.epsilon is not None:  # curves are also asked elsewhere, where δ is smaller
            reach += 0.5 * max(near, 0.0) + min(48.0, -2.0 - math.log(question.delta))
        if is_last or all(high <= reach for _, high in ranges):
            break
        ranges = [(low, min(high, reach)) for low, high in ranges]
        laws = [(cut_above(law, reach), steps) for law, steps in laws]
    scale = step_scale(laws, tilt)
    if split is not None:
        few = split.parts(laws)[0][0]
        scale = min(scale, step_scale(few, best_tilt(few, question)[0]))
    if len(pairs) == 1 and pairs[0][1] == 1:
        scale = one_step_scale(laws[0][0], question.delta)
        if question.epsilon is not None:  # the loss asked about, unless δ is decided before
            scale = min(scale, max(near, one_step_scale(laws[0][0], max(question.delta, 0.01))))
    return CoarsePass(laws, ranges, tilt, scale, variation, split)


class InconsistentBoundsError(RuntimeError):
    """Two certified bounds contradict each other: an error of this package, never of its user."""


def solve(
    schedule: Schedule, question: Question, direction: Direction, tolerance: float, enough: float = 0.0
) -> PrivacyBounds:
    """Bound one adjacency direction, refining until the bounds are narrow enough or stop improving.

    ``tolerance``: wanted width of the interval, as :meth:`Question.is_within` takes it. ``enough``: an upper
    bound that is good enough, such as the bound of the other direction. The bounds always hold. They are as narrow as
    requested unless refinement stopped helping, see ``is_narrow``.
    """
    is_epsilon = question.epsilon is None
    if not is_epsilon:  # no δ below ``enough`` is of interest
        question = question.sized(min(enough, question.delta)) if enough > 0.0 else sized(schedule, question, direction)
    best = interval(0.0, math.inf, direction, question, tolerance)
    level, *more = levels(schedule, question, tolerance)
    work = stalled = 0
    for _ in range(len(more) + 1):
        before = best.upper - best.lower
        at = Level(schedule, question, direction, level)
        best = intersection(best, at.ends(enough), question, tolerance)
        work += at.work
        if best.is_narrow or best.upper <= enough or work > 4 * MOST_POINTS:
            break
        width = best.upper - best.lower
        is_hopeless = question.delta <= least_resolved(schedule)
        if is_epsilon:  # of estimated norms, whose laws cost much time: too large to be useful, or to be narrow ever
            limit = max(width - (before - width) / 3.0, 0.0)  # errors are of second order
            is_wide = not question.is_within(best.upper - limit, best.upper, tolerance)
            is_costly = math.isfinite(best.upper) and not all(step.is_exact for step, _ in schedule)
            is_hopeless = is_costly and (best.lower > 20.0 or is_wide)
        stalled = 0 if width < 0.8 * before else stalled + 1
        if is_hopeless or stalled == (1 if is_epsilon and math.isfinite(best.upper) else 2):
            break
        is_near = question.is_within(best.lower, best.upper, 4.0 * tolerance)
        is_found = math.isfinite(best.upper) and (is_epsilon or best.lower > 0.0)
        if is_found and not is_near and ends_stay_apart(schedule):
            break
        if is_near:  # widths are of second order
            unit = max(best.upper, 1.0 if is_epsilon else 0.0)
            level += min(math.log(width / (tolerance * unit), 4) + 0.2, 1.0)
        else:
            level += 1.0
        question = question.sharpened(best.upper, best.lower)
    return best


def levels(schedule: Schedule, question: Question, tolerance: float) -> list[float]:
    """List how often meshes and bins are halved: first by the usual amount for the tolerance, then more."""
    easy = 1e-3 if question.epsilon is None else 1e-2  # most often met by level 0; δ falls faster than ε grows
    first = min(max(math.log(easy / tolerance, 4), LOWEST), 1.0)
    last = 5 if all(step.is_exact for step, _ in schedule) else 2  # each level of a norm's law costs four times more
    return [first + more for more in range(math.ceil(last - first) + 1)]


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
    first: PrivacyBounds, ends: tuple[float, float | None], question: Question, tolerance: float
) -> PrivacyBounds:
    """Intersect bounds with an upper end and, if there is one, a lower end; they must not contradict each other."""
    lower = max(first.lower, first.lower if ends[1] is None else ends[1])
    upper = min(first.upper, ends[0])
    if lower > upper * (1.0 + 1e-9) + 1e-300:
        raise InconsistentBoundsError(f"a lower bound, {lower!r}, exceeds an upper one, {upper!r}: please report this")
    assert first.direction is not None
    return interval(min(lower, upper), upper, first.direction, question, tolerance)


def worst_of(by_direction: dict[Direction, PrivacyBounds]) -> PrivacyBounds:
    """Return bounds on the larger of both directions, named after the one whose upper bound is larger.

    Parameters
    ----------
    by_direction : dict
        As from ``epsilon_by_direction``.

    Returns
    -------
    PrivacyBounds
        As narrow as the direction that decides, and not narrow where none certainly does.

    Formal guarantees
    -----------------
    The larger quantity lies between the larger lower end and the larger upper end.

    Examples
    --------
    >>> worst_of({"remove": PrivacyBounds(1.0, 1.1, 1.2), "add": PrivacyBounds(0.0, 0.5, 1.3, is_narrow=False)})
    PrivacyBounds(lower=1.0, estimate=1.1, upper=1.3, direction='add', is_narrow=False)
    """
    name = max(by_direction, key=lambda direction: by_direction[direction].upper)
    lower = max(bounds.lower for bounds in by_direction.values())
    alike = len(set(by_direction.values())) == 1 and by_direction[name].direction is None  # samples are replaced
    return PrivacyBounds(
        lower=lower,
        estimate=max(bounds.estimate for bounds in by_direction.values()),
        upper=by_direction[name].upper,
        direction=None if alike else name,
        is_narrow=by_direction[name].is_narrow or all(b.is_narrow or b.upper <= lower for b in by_direction.values()),
        at_delta=by_direction[name].at_delta,
        at_epsilon=by_direction[name].at_epsilon,
    )


def step_laws(
    step: Step, count: int, question: Question, direction: Direction, level: float, tail: float
) -> tuple[dict[Side, LossPMF], float, float]:
    """Return one step's discrete losses from above and from below, on a mesh for ``count`` steps.

    ``tail``: mass that may be cut off per step.
    Returns: the laws, and bounds on the total variation of one step and on the drift of its loss.
    """
    at = Level([(step, count)], question, direction, level, tail)
    bulk, (ends,) = _BULK * at.coarse.scale, at.coarse.ranges
    laws = {
        side: discretize_step(pair, ends, at.mesh, bulk, side, at.coarse.tilt)
        for side, ((pair, _),) in at.pairs.items()
    }
    return laws, at.coarse.total_variation / count, at.drift / count
