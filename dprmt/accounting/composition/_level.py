"""A composition on the meshes of one level: what both sides share, and δ(ε) from above and from below."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from dprmt.accounting.basics import Direction, Side, graded_indices, resolvable
from dprmt.accounting.composition._composed_loss import (
    ComposedLoss,
    Window,
    chernoff,
    composed,
    moved,
    some_of,
    step_scale,
    window,
)
from dprmt.accounting.composition._delta_curve import DeltaCurve
from dprmt.accounting.composition._many_phases import discretized, most_variation
from dprmt.accounting.composition._one_step_curve import OneStepCurve, one_step_scale
from dprmt.accounting.composition._question import Curve, DeltaAtEpsilon, Question, WholeCurve
from dprmt.accounting.composition._step_law import (
    Lattice,
    Meshing,
    directed_range,
    discrete_variation,
    discretize_step,
    lattice,
    law_of_step,
    rough_meshing,
)
from dprmt.accounting.pairs import LossPMF, Schedule, Step, StepPair, cut_above, pairs_of_steps

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
_CUTS = 4  # of a tail, each of which brings Chernoff's bound closer


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
        self.ground = ground_of(upper, question, direction, tail, many)
        self.drift = loss_drift(schedule)

    @cached_property
    def at_most(self) -> float:
        """Chernoff's bound on the answer; ∞ where steps differ."""
        assert not isinstance(self.question, WholeCurve)
        if self.ground.rough is None:
            return math.inf
        tilt = self.ground.tilt
        return self.question.at_most(*chernoff(*self.ground.rough, tilt), tilt, self.drift)

    @property
    def farthest(self) -> float:
        """The largest loss of all steps, except for what is cut off."""
        each = zip(self.pairs["upper"], self.ground.ranges, strict=True)
        return sum(count * max(high, 0.0) for (_, count), (_, high) in each)

    def curve(self, side: Side) -> Curve:
        """One side."""
        assert not isinstance(self.question, WholeCurve)
        pair, steps = self.pairs[side][0]
        if len(self.pairs[side]) == 1 and steps == 1:
            return self._of_one_step(pair, side)
        phases = self._on_one_mesh(side)
        if phases is None:
            return DeltaCurve(_nothing_known(side), 0.0)
        around = self.question.around(phases.laws, phases.tilt, phases.offset) + phases.offset
        return DeltaCurve(phases.composed(), around)

    def composed(self, side: Side) -> ComposedLoss:
        """The composed loss itself."""
        phases = self._on_one_mesh(side)
        return _nothing_known(side) if phases is None else phases.composed()

    def _of_one_step(self, pair: StepPair, side: Side) -> OneStepCurve:
        ends, scale = self.ground.ranges[0], self.ground.scale
        mesh = resolvable(_MESH_OF_ONE * 2.0**-self.level * scale, ends[1])
        index = graded_indices(*ends, mesh, scale)
        return OneStepCurve(discretize_step(pair, index, Lattice(mesh), self.direction, side, to_infinity=True), side)

    def _on_one_mesh(self, side: Side) -> _Phases | None:
        """Discretize on a common mesh, coarser if the FFT window would be too long; None if that resolves nothing."""
        ground = self.ground
        mesh = _mesh_at(self.level, ground)
        for _ in range(_MAX_COARSENINGS):
            how = Meshing(
                self.direction, side, mesh, _LUMP * ground.scale, _BULK * ground.scale, coarse=self.level <= 0.0
            )
            laws, offset = laws_of(self.pairs[side], ground.ranges, how)
            if not all(law.mass.any() for law, _ in laws):  # every loss is beyond what is resolved
                return None
            # The rough law is one from above: for one from below its tilt may be far too large.
            shared = len(laws) == 1 and side == "upper"
            tilt = ground.tilt if shared else self.question.tilt(some_of(laws), offset)
            span = window(laws, tilt)
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
        """Their sum."""
        return moved(composed(self.laws, self.tilt, self.window), self.offset)


def step_laws(
    step: Step, count: int, question: Question, direction: Direction, level: float, tail: float
) -> tuple[dict[Side, LossPMF], float]:
    """One step's discrete losses from above and from below, on a mesh for ``count`` steps.

    ``tail``: mass that may be cut off per step.
    Returns: the laws, and a bound on the total variation of one step.
    """
    upper, lower = pairs_at([(step, count)], tail, level)
    ground = ground_of(upper, question, direction, tail)
    mesh, (ends,) = _mesh_at(level, ground), ground.ranges
    sides: dict[Side, Pairs] = {"upper": upper, "lower": lower}
    laws: dict[Side, LossPMF] = {}
    for side, ((pair, _),) in sides.items():
        grid = lattice(pair, ends, direction, side, mesh, within=0.0, stretched=True)
        laws[side] = discretize_step(pair, grid.covering(ends, _BULK * ground.scale), grid, direction, side)
    return laws, ground.total_variation / count


def loss_drift(schedule: Schedule) -> float:
    """Bias that rounding of the losses' grid, step by step, may cause in the composed loss (F3)."""
    return _LOSS_DRIFT * sum(step.steps * count for step, count in schedule)


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
    for _ in range(_CUTS):  # of a heavy tail Chernoff's bound lies far beyond the answer until the tail is cut
        reach = _FAR * max(near, 0.0) + _FARTHER
        if all(high <= reach for _, high in ranges):
            break
        ranges = [(low, min(high, reach)) for low, high in ranges]
        rough = [(cut_above(law, reach), steps) for law, steps in rough]
        tilt = question.tilt(rough)
        near = question.around(rough, tilt)
    scale = step_scale(rough, tilt)
    if len(pairs) > 1:
        return Ground(ranges, tilt, scale, variation, 0.0, None, rough)
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
    """Each step's pair that is never more private, and that is never less private, beside how often it is taken."""
    bins = round(_BINS * 2.0**level)
    if len(schedule) == 1:
        ((step, count),) = schedule
        upper, lower = step.pairs(bins, tail)
        return [(upper, count)], [(lower, count)]
    of_steps = pairs_of_steps([step for step, _ in schedule], bins, tail)
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


def _mesh_at(level: float, ground: Ground) -> float:
    return resolvable(_MESH * 2.0**-level * ground.scale, max(high for _, high in ground.ranges))


def _nothing_known(side: Side) -> ComposedLoss:
    """What bounds every loss on one side."""
    nowhere = np.zeros(1)
    return ComposedLoss(nowhere, nowhere, tilt=0.0, log_scale=0.0, infinite=float(side == "upper"), error=0.0)
