"""From steps to certified bounds: choose meshes, compose both sides, refine until the interval is narrow."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Protocol

import numpy as np

from dprmt.accounting._bounds import Direction, PrivacyBounds
from dprmt.accounting._cells import StepPair
from dprmt.accounting._composition import ComposedLoss, composed, log_mgf, loss_deviation, window
from dprmt.accounting._discretization import LossPMF, from_above, from_below
from dprmt.accounting._loss_grid import graded_indices
from dprmt.accounting._questions import Question, Side, WholeCurve
from dprmt.accounting._solve import DeltaCurve

_MAX_WINDOW = 2**21
_MAX_COARSENINGS = 12
_LARGEST_LOSS = 1e12
_LOSS_DRIFT = 32 * float(np.finfo(np.float64).eps)
_FIRST_MESH, _FIRST_BINS = 0.04, 64
_MAX_REFINEMENTS = 5  # of exact norms; each level of randomized clipping costs four times the one before
_MAX_REFINEMENTS_OF_A_LAW = 3
_LEAST_GAIN = 0.95  # two levels in a row that narrow less than this are the last; widths may stall once, then fall
_ESTIMATE_AT = 0.67  # of the way from lower to upper: the lower side errs about twice as much
_WIDE_ESTIMATE_AT = 0.95  # where the interval stays wide, the lower side is most often what falls short


class Step(Protocol):
    """One step of a mechanism, as pairs with finitely many sensitivities."""

    @property
    def tail_share(self) -> float:
        """Share of δ, over all steps, that may be charged for mass cut off at the ends of each law."""
        ...

    @property
    def is_exact(self) -> bool:
        """Whether the sensitivity is one number, so that a step is cheap to discretize."""
        ...

    @property
    def steps(self) -> int:
        """Number of steps that it stands for: each adds its rounding."""
        ...

    def pairs(self, bins: int, tail: float) -> tuple[StepPair, StepPair]:
        """A pair that is never more private than the step, and one that is never less private."""
        ...


class InconsistentBoundsError(RuntimeError):
    """Two certified bounds contradict each other: an error of this package, never of its user."""


Schedule = Sequence[tuple[Step, int]]
Pairs = list[tuple[StepPair, int]]


def solve(schedule: Schedule, question: Question, direction: Direction, tolerance: float) -> PrivacyBounds:
    """Bounds for one adjacency direction, refined until narrow enough or no longer improving.

    ``tolerance``: wanted width of the interval, in units of ``question.unit``.
    Returns: always valid; as narrow as asked unless refinement stopped helping, see ``is_narrow``.
    """
    best = interval(0.0, math.inf, direction, question, tolerance)
    stalled = 0
    for level in range(1 + _most_refinements(schedule)):
        lower, upper = _solve_at_level(schedule, question, direction, level)
        found = _intersection(best, lower, upper, question, tolerance)
        gained = found.upper - found.lower < _LEAST_GAIN * (best.upper - best.lower)
        best, stalled = found, 0 if gained else stalled + 1
        if best.is_narrow or stalled == 2:
            break
        question = question.sharpened(best)
    return best


def _most_refinements(schedule: Schedule) -> int:
    exact = all(step.is_exact for step, _ in schedule)
    return _MAX_REFINEMENTS if exact else _MAX_REFINEMENTS_OF_A_LAW


def interval(lower: float, upper: float, direction: Direction, question: Question, tolerance: float) -> PrivacyBounds:
    """Bounds with an estimate between them, and whether they are no further apart than asked."""
    if not math.isfinite(upper):
        return PrivacyBounds(lower, upper, upper, direction, is_narrow=False)
    is_narrow = upper - lower <= tolerance * question.unit(upper)
    estimate = lower + (_ESTIMATE_AT if is_narrow else _WIDE_ESTIMATE_AT) * (upper - lower)
    return PrivacyBounds(lower, estimate, upper, direction, is_narrow)


def _intersection(
    first: PrivacyBounds, lower: float, upper: float, question: Question, tolerance: float
) -> PrivacyBounds:
    lower, upper = max(first.lower, lower), min(first.upper, upper)
    if lower > upper * (1.0 + 1e-9) + 1e-300:
        raise InconsistentBoundsError(f"a lower bound, {lower!r}, exceeds an upper one, {upper!r}: please report this")
    assert first.direction is not None
    return interval(min(lower, upper), upper, first.direction, question, tolerance)


def _solve_at_level(schedule: Schedule, question: Question, direction: Direction, level: int) -> tuple[float, float]:
    answer: dict[Side, float] = {}
    sides: tuple[Side, Side] = ("upper", "lower")
    tail = _tail(schedule, question.small)
    drift = loss_drift(schedule)
    for side, pairs in zip(sides, _pairs(schedule, tail, level), strict=True):
        loss, around = _compose(pairs, question, direction, side, level, tail)
        answer[side] = question.read(DeltaCurve(loss, around), side, drift)
    return answer["lower"], answer["upper"]


def loss_drift(schedule: Schedule) -> float:
    """Bias that rounding of the losses' grid, step by step, may cause in the composed loss (F3)."""
    return _LOSS_DRIFT * sum(step.steps * count for step, count in schedule)


def whole_loss(schedule: Schedule, direction: Direction, level: int) -> dict[Side, ComposedLoss]:
    """The composed loss without tilt, from above and from below."""
    sides: tuple[Side, Side] = ("upper", "lower")
    question = WholeCurve()
    tail = _tail(schedule, question.small)
    both = zip(sides, _pairs(schedule, tail, level), strict=True)
    return {side: _compose(pairs, question, direction, side, level, tail)[0] for side, pairs in both}


def _tail(schedule: Schedule, small: float) -> float:
    """Mass that may be cut off per step."""
    share = max(step.tail_share for step, _ in schedule)
    return share * small / sum(count for _, count in schedule)


def _pairs(schedule: Schedule, tail: float, level: int) -> tuple[Pairs, Pairs]:
    both = [(step.pairs(_FIRST_BINS << level, tail), count) for step, count in schedule]
    return [(pair[0], count) for pair, count in both], [(pair[1], count) for pair, count in both]


def _compose(
    pairs: Pairs, question: Question | WholeCurve, direction: Direction, side: Side, level: int, tail: float
) -> tuple[ComposedLoss, float]:
    """Discretize on a common mesh (coarser if the FFT window would be too long) and compose."""
    ranges = [_directed(pair.loss_range(tail), direction) for pair, _ in pairs]
    farthest = max(max(abs(end) for end in ends) for ends in ranges)
    rough_mesh = max(1e-9 * min(farthest, 1e3), 1e-16 * farthest)
    rough = _discretize(pairs, ranges, direction, "upper", rough_mesh, 20 * rough_mesh)
    scale = _step_scale(rough, question.tilt(rough))
    mesh = _FIRST_MESH / 2**level * scale
    for _ in range(_MAX_COARSENINGS):
        phases = _discretize(pairs, ranges, direction, side, mesh, 5 * scale)
        tilt = question.tilt(phases)
        span = window(phases, tilt)
        if span.size <= _MAX_WINDOW:
            break
        mesh *= 1.1 * span.size / _MAX_WINDOW
    else:
        return _nothing_known(side), 0.0
    around = 0.0 if isinstance(question, WholeCurve) else question.around(phases, tilt)
    return composed(phases, tilt, span), around


def _nothing_known(side: Side) -> ComposedLoss:
    """What bounds every loss on one side."""
    nowhere = np.zeros(1)
    infinite = 1.0 if side == "upper" else 0.0
    return ComposedLoss(nowhere, nowhere, tilt=0.0, log_scale=0.0, infinite=infinite, error=0.0)


def _directed(ends: tuple[float, float], direction: Direction) -> tuple[float, float]:
    """The range of losses to resolve: P(L < -60) ≤ e^{-60}; losses too large to be of use count as infinite."""
    low, high = ends if direction == "remove" else (-ends[1], -ends[0])
    return max(low, -60.0), min(high, _LARGEST_LOSS)


def _discretize(
    pairs: Pairs,
    ranges: list[tuple[float, float]],
    direction: Direction,
    side: Side,
    mesh: float,
    bulk: float,
) -> list[tuple[LossPMF, int]]:
    phases = []
    for (pair, count), (low, high) in zip(pairs, ranges, strict=True):
        index = graded_indices(low, high, mesh, bulk)
        phases.append((discretize_step(pair, index, mesh, direction, side), count))
    return phases


def discretize_step(
    pair: StepPair,
    index: np.ndarray[tuple[int], np.dtype[np.int64]],
    mesh: float,
    direction: Direction,
    side: Side,
) -> LossPMF:
    """One step's loss on grid points, from above (with the pair's slack charged) or from below."""
    losses = index * mesh
    cells = pair.cells(losses) if direction == "remove" else pair.cells(-losses[::-1]).mirrored()
    if side == "lower":
        return from_below(index, mesh, cells)
    pmf = from_above(index, mesh, cells)
    return LossPMF(pmf.index, pmf.mass, mesh, min(pmf.infinite + pair.slack, 1.0))


def _step_scale(phases: list[tuple[LossPMF, int]], tilt: float) -> float:
    """Standard deviation of one step's loss as the answer feels it: √(2K(λ)/(λ(1 + λ))), averaged over steps."""
    steps = sum(count for _, count in phases)
    smallest = 4 * min(pmf.mesh for pmf, _ in phases)
    if tilt == 0.0:
        return max(loss_deviation(phases) / math.sqrt(steps), smallest)
    log_total = sum(count * math.log(max(float(pmf.mass.sum()), 1e-300)) for pmf, count in phases)
    cumulant = float(log_mgf(phases, np.array([tilt]))[0]) - log_total
    return max(math.sqrt(max(2 * cumulant / (tilt * (1 + tilt) * steps), 0.0)), smallest)
