"""One step's pair as a discrete loss in one adjacency direction, from above or from below."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dprmt.accounting.basics import LARGEST_LOSS, Array, Direction, Side, graded_indices
from dprmt.accounting.pairs import (
    LossCells,
    LossPMF,
    PublicPair,
    SecretLowerPair,
    StepPair,
    TightPair,
    from_above,
    from_below,
    keep_at_last,
)

_LEAST_CELLS, _MOST_CELLS = 4.0, 200.0
_ROUNDING = 1e-12  # relative, of a mean that is the end
_ASIDE = 1e-4  # of a cell, as a share of what lies beyond it: how far thresholds may move its mean
_ALL = 1e-300  # a tail without mass
MEANS = 4
"""How often the mean of the commonest losses is taken anew on a wide mesh."""


@dataclass(frozen=True)
class MeanCell:
    """The cell of the losses that most steps have, placed at their mean, a node (O1).

    ``index``: index of this node. ``boundary``: the boundary with the next cell. ``end``: the loss log(1 - q), or its
    negative, beyond which no loss lies. All losses between it and ``boundary`` are averaged.
    """

    index: int
    boundary: float
    end: float

    def boundaries(self, index: NDArray[np.int64], loss_grid: LossGrid) -> Array:
        """Compute the cell boundaries; one cell reaches from ``boundary`` to ``end``, even with a node between."""
        nodes, node = loss_grid.nodes(index), self.index * loss_grid.mesh + loss_grid.offset
        outward = 1 if self.end > self.boundary else -1
        missing = max(outward * (self.end - node) - loss_grid.mesh, 0.0)
        beyond = outward * (index - self.index) > 0
        return np.where(index == self.index, self.boundary, np.where(beyond, nodes + outward * missing, nodes))


@dataclass(frozen=True)
class LossGrid:
    """Where the nodes of a step's loss lie: at integer multiples of a mesh plus ``offset`` (O1)."""

    mesh: float
    offset: float = 0.0
    mean_cell: MeanCell | None = None

    def covering(self, ends: tuple[float, float], bulk: float) -> NDArray[np.int64]:
        """Return increasing integers whose nodes cover a range of losses."""
        margin = self.mesh if self.offset or self.mean_cell else 0.0  # outcomes may lie at the end itself
        return graded_indices(ends[0] - self.offset - margin, ends[1] - self.offset + margin, self.mesh, bulk)

    def nodes(self, index: NDArray[np.int64]) -> Array:
        """Return the losses."""
        return index * self.mesh + self.offset

    def boundaries(self, index: NDArray[np.int64]) -> Array:
        """Return the losses at which cells meet."""
        return self.nodes(index) if self.mean_cell is None else self.mean_cell.boundaries(index, self)


@dataclass(frozen=True)
class Meshing:
    """How steps are discretized.

    ``within``: how far log(1 - q) may lie from 0 to get a node; ``bulk``: nodes are equidistant so far out.
    """

    direction: Direction
    side: Side
    mesh: float
    within: float
    bulk: float


def loss_grid(
    pair: StepPair,
    ends: tuple[float, float],
    direction: Direction,
    side: Side,
    mesh: float,
    within: float,
    stretched: bool = False,
) -> LossGrid:
    """Choose a grid with a node at log(1 - q), the loss of most steps, if that is at most ``within`` (O1).

    ``stretched``: whether the mesh may become a little wider for that, if ``within`` does not hold. From above the
    node is at this loss; from below it is at the mean of all losses near it.
    """
    end = ends[0] if direction == "remove" else -ends[1]
    is_near = abs(end) < within
    if not (is_near or (stretched and _LEAST_CELLS * mesh < abs(end) < _MOST_CELLS * mesh)) or _goes_on(pair, end):
        return LossGrid(mesh)
    sign = 1.0 if direction == "remove" else -1.0
    node, boundary = end, None
    if side == "lower":
        node, boundary = _mean_near(pair, end, mesh, direction)
    cells = 0 if is_near else math.floor(abs(node) / mesh)
    index = -round(math.copysign(cells, sign))
    mean_cell = None if boundary is None else MeanCell(index, sign * boundary, sign * end)
    return LossGrid(mesh, sign * node, mean_cell) if is_near else LossGrid(abs(node) / cells, 0.0, mean_cell)


def _mean_near(pair: StepPair, end: float, mesh: float, direction: Direction) -> tuple[float, float | None]:
    """Return the mean of all losses up to a mesh above ``end``; of a wide mesh, which may cut these, above that mean.

    The mean is moved by a rounding margin to the safe side, where (D2) would not place it on the neighbouring node.
    """
    node, boundary = end, None
    for _ in range(MEANS if is_wide(mesh, end) else 1):
        start = node + mesh
        beyond = np.empty(0) if isinstance(pair, PublicPair) else np.geomspace(1.0, 1e6, 60)
        near = pair.cells(start + mesh * np.append(0.0, beyond))  # elsewhere where nodes are decides what lies below
        node, boundary = at_mean(near, end, start)
        if boundary is None:
            return node, boundary
    if direction == "add" and isinstance(pair, SecretLowerPair):
        node = min(node + _ASIDE * mesh * (float(near.p.sum()) + near.p_above), start)
    return node, boundary


def _goes_on(pair: StepPair, end: float) -> bool:
    """Return whether losses lie below ``end``: without sampling, or where a sample is replaced, all numbers are
    losses.
    """
    plain = pair.rank_one if isinstance(pair, TightPair) else pair  # its cells have all mass at nodes
    return plain.cells(end * np.array([1.0 + _ROUNDING, 1.0])).p_below > 0.0


def is_wide(mesh: float, end: float) -> bool:
    """Return whether few nodes would lie between 0 and the commonest loss."""
    return mesh > abs(end) / _LEAST_CELLS


def at_mean(near: LossCells, end: float, boundary: float) -> tuple[float, float | None]:
    """Return the mean of all losses up to a boundary, and the boundary; the end itself if there are none, or others
    beyond.
    """
    if near.p_below > 0.0 and near.q_below > 0.0:
        mean = math.log(near.p_below / near.q_below)
        if mean >= end - _ROUNDING * abs(end):
            return min(max(mean, end), boundary), boundary
    return end, None


def discretize_step(
    pair: StepPair,
    index: NDArray[np.int64],
    loss_grid: LossGrid,
    direction: Direction,
    side: Side,
    *,
    to_infinity: bool = False,
) -> LossPMF:
    """Return one step's loss on a grid of losses, less its offset: from above (with the pair's slack charged) or from
    below.

    ``to_infinity``: whether the dots connect the last node to an infinite loss, where otherwise all mass above it is
    infinite.
    """
    losses, mesh = loss_grid.boundaries(index), loss_grid.mesh
    cells = pair.cells(losses) if direction == "remove" else pair.cells(-losses[::-1]).mirrored()
    if side == "lower":
        return from_below(index, mesh, cells, loss_grid.offset)
    pmf = from_above(index, mesh, cells, loss_grid.offset)
    if to_infinity:
        pmf = keep_at_last(pmf, cells, loss_grid.offset)
    return LossPMF(pmf.index, pmf.mass, mesh, min(pmf.infinite + pair.slack, 1.0))


def law_of_step(pair: StepPair, ends: tuple[float, float], how: Meshing) -> tuple[LossPMF, float]:
    """Return one step's discrete loss less an offset, and the offset."""
    if how.side == "lower" and isinstance(pair, PublicPair):  # its losses may end where those of the upper pair go on
        own = directed_range(pair, _ALL, how.direction)
        ends = max(ends[0], own[0]), min(ends[1], own[1])
    grid = loss_grid(pair, ends, how.direction, how.side, how.mesh, within=how.within)
    return discretize_step(pair, grid.covering(ends, how.bulk), grid, how.direction, how.side), grid.offset


def laws_of_steps(
    pairs: Sequence[tuple[StepPair, int]], ranges: Sequence[tuple[float, float]], how: Meshing
) -> tuple[list[tuple[LossPMF, int]], float]:
    """Return the steps' discrete losses, each less an offset, and the sum of all offsets."""
    laws, total = [], 0.0
    for (pair, count), ends in zip(pairs, ranges, strict=True):
        law, offset = law_of_step(pair, ends, how)
        laws.append((law, count))
        total += count * offset
    return laws, total


def rough_meshing(direction: Direction, mesh: float, growth: float) -> Meshing:
    """Choose a mesh with few nodes, each farther out by a factor, for choosing meshes and tilts."""
    return Meshing(direction, "upper", mesh, 0.0, mesh / (growth - 1.0))


def discrete_variation(law: LossPMF) -> float:
    """Compute H_1 of an upper law; for a composition it is at most the sum."""
    return float(law.mass @ -np.expm1(-np.maximum(law.losses, 0.0))) + law.infinite


def directed_range(pair: StepPair, tail: float, direction: Direction) -> tuple[float, float]:
    """Return the range of losses to resolve: P(L < -60) ≤ e^{-60}; losses too large to be of use count as infinite."""
    ends = pair.loss_range(tail)
    low, high = ends if direction == "remove" else (-ends[1], -ends[0])
    return max(low, -60.0), min(high, LARGEST_LOSS)
