"""What both sides of one level share: where losses lie, the tilt that decides, and the scale meshes are chosen from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dprmt.accounting.basics import Direction
from dprmt.accounting.composition._composed_loss import some_of, step_scale
from dprmt.accounting.composition._many_phases import discretized, most_variation
from dprmt.accounting.composition._question import DeltaAtEpsilon, Question, WholeCurve
from dprmt.accounting.composition._split_plan import one_step_scale
from dprmt.accounting.composition._step_law import (
    Meshing,
    directed_range,
    discrete_variation,
    law_of_step,
    rough_meshing,
)
from dprmt.accounting.pairs import LossPMF, Schedule, StepPair, cut_above, pairs_of_steps

Pairs = list[tuple[StepPair, int]]

LOWEST = -2.0
"""The coarsest level."""
_BINS = 160  # at level 0
_LARGE_DELTA = 0.01
_ROUGHLY, _LESS_ROUGHLY = 1.125, 1.05  # growth of nodes where many questions, or laws, let one be off; and of one
_FAR, _FARTHER = 1.5, 60.0  # of several phases' losses, as far as one has to tell them from infinite ones


@dataclass(frozen=True)
class Ground:
    """What both sides of one level share.

    Ranges of losses, the tilt at which to compose, the scale of a step's loss, a bound on the total variation of all
    steps, an ε that is large enough, and if all steps are equal a rough law from above and their number; such laws of
    some of the steps.
    """

    ranges: list[tuple[float, float]]
    tilt: float
    scale: float
    total_variation: float
    near: float
    rough: tuple[LossPMF, int] | None
    laws: Sequence[tuple[LossPMF, int]]


def ground_of(
    pairs: Pairs, question: Question | WholeCurve, direction: Direction, tail: float, many: bool = False
) -> Ground:
    ranges = [directed_range(pair, tail, direction) for pair, _ in pairs]
    farthest = max(max(abs(end) for end in ends) for ends in ranges)
    mesh = max(1e-9 * min(farthest, 1e3), 1e-18 * farthest)
    growth = _ROUGHLY if many or len(pairs) > 1 else _LESS_ROUGHLY
    chosen = some_of([((pair, ends), steps) for (pair, steps), ends in zip(pairs, ranges, strict=True)])
    their_ranges = [ends for (_, ends), _ in chosen]
    rough, _ = laws_of(
        [(pair, steps) for (pair, _), steps in chosen], their_ranges, rough_meshing(direction, mesh, growth)
    )
    tilt = question.tilt(rough)
    if len(rough) == len(pairs):
        variation = sum(steps * discrete_variation(law) for law, steps in rough)
    else:
        each = zip(pairs, ranges, strict=True)
        variation = sum(steps * most_variation(pair, ends, direction, mesh) for (pair, steps), ends in each)
    if isinstance(question, WholeCurve):
        return Ground(ranges, tilt, step_scale(rough, tilt), variation, 0.0, None, rough)
    near = question.around(rough, tilt)
    if len(pairs) > 1:
        reach = _FAR * max(near, 0.0) + _FARTHER
        if any(end > reach for _, end in ranges):
            ranges = [(low, min(high, reach)) for low, high in ranges]
            rough = [(cut_above(law, reach), steps) for law, steps in rough]
            tilt = question.tilt(rough)
        return Ground(ranges, tilt, step_scale(rough, tilt), variation, 0.0, None, rough)
    scale = step_scale(rough, tilt)
    law, steps = rough[0]
    if steps == 1:
        scale = _scale_of_one(law, question, near)
    return Ground(ranges, tilt, scale, variation, near, rough[0], rough)


def _scale_of_one(law: LossPMF, question: Question, near: float) -> float:
    """Where a single step is decided: the loss asked about, if that is it, else where δ is about as asked."""
    scale = one_step_scale(law, question.small)
    if isinstance(question, DeltaAtEpsilon):
        return min(scale, max(near, one_step_scale(law, max(question.small, _LARGE_DELTA))))
    return scale


def tail_per_step(schedule: Schedule, small: float) -> float:
    """Mass that may be cut off per step."""
    share = max(step.tail_share for step, _ in schedule)
    return share * small / sum(count for _, count in schedule)


def pairs_at(schedule: Schedule, tail: float, level: float) -> tuple[Pairs, Pairs]:
    if len(schedule) == 1:
        ((step, count),) = schedule
        upper, lower = step.pairs(bins_at(level), tail)
        return [(upper, count)], [(lower, count)]
    of_steps = pairs_of_steps([step for step, _ in schedule], bins_at(level), tail)
    both = [(pair, count) for pair, (_, count) in zip(of_steps, schedule, strict=True)]
    return [(pair[0], count) for pair, count in both], [(pair[1], count) for pair, count in both]


def laws_of(
    pairs: Pairs, ranges: Sequence[tuple[float, float]], how: Meshing
) -> tuple[list[tuple[LossPMF, int]], float]:
    """The steps' discrete losses, each less an offset, and the sum of all offsets."""
    if len(pairs) > 1:
        return discretized(pairs, ranges, how)
    ((pair, count),) = pairs
    law, offset = law_of_step(pair, ranges[0], how)
    return [(law, count)], count * offset


def bins_at(level: float) -> int:
    return round(_BINS * 2.0**level)
