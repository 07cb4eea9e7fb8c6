"""One step's pair as a discrete loss in one adjacency direction, from above or from below."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from dprmt.accounting._bounds import Direction
from dprmt.accounting._cells import StepPair
from dprmt.accounting._discretization import LossPMF, from_above, from_below, keep_at_last
from dprmt.accounting._loss_grid import LARGEST_LOSS, graded_indices
from dprmt.accounting._questions import Side


def discretize_step(
    pair: StepPair,
    index: NDArray[np.int64],
    mesh: float,
    direction: Direction,
    side: Side,
    *,
    to_infinity: bool = False,
) -> LossPMF:
    """One step's loss on grid points, from above (with the pair's slack charged) or from below.

    ``to_infinity``: whether the dots connect the last node to an infinite loss, where otherwise all mass above it is
    infinite.
    """
    losses = index * mesh
    cells = pair.cells(losses) if direction == "remove" else pair.cells(-losses[::-1]).mirrored()
    if side == "lower":
        return from_below(index, mesh, cells)
    pmf = from_above(index, mesh, cells)
    if to_infinity:
        pmf = keep_at_last(pmf, cells)
    return LossPMF(pmf.index, pmf.mass, mesh, min(pmf.infinite + pair.slack, 1.0))


def directed_range(pair: StepPair, tail: float, direction: Direction) -> tuple[float, float]:
    """The range of losses to resolve: P(L < -60) ≤ e^{-60}; losses too large to be of use count as infinite."""
    ends = pair.loss_range(tail)
    low, high = ends if direction == "remove" else (-ends[1], -ends[0])
    return max(low, -60.0), min(high, LARGEST_LOSS)


def rough_law(pair: StepPair, ends: tuple[float, float], direction: Direction, mesh: float) -> LossPMF:
    """The upper law on few nodes, each 5% farther out than the one before: what meshes and tilts are chosen from."""
    index = graded_indices(*ends, mesh, 20 * mesh)
    return discretize_step(pair, index, mesh, direction, "upper")
