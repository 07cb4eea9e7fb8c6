"""One step's pair as a discrete loss on multiples of a mesh, from above or from below."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from dprmt.accounting.basics import LARGEST_LOSS, Side, graded_indices
from dprmt.accounting.pairs import LossPMF, StepPair, from_above, from_below, keep_at_last

Laws = Sequence[tuple[LossPMF, int]]
"""Discrete losses of steps, and how often each is taken."""


def discretize_step(
    pair: StepPair, index: NDArray[np.int64], mesh: float, side: Side, *, to_infinity: bool = False
) -> LossPMF:
    """Return one step's loss at multiples of a mesh: from above (with the pair's slack charged) or from below.

    ``to_infinity``: whether the dots connect the last node to an infinite loss, where otherwise all mass above it is
    infinite.
    """
    cells = pair.cells(index * mesh)
    if side == "lower":
        return from_below(index, mesh, cells)
    law = from_above(index, mesh, cells)
    if to_infinity:
        law = keep_at_last(law, cells)
    return LossPMF(law.index, law.mass, mesh, min(law.infinite + pair.slack, 1.0))


def laws_of_steps(
    pairs: Sequence[tuple[StepPair, int]], ranges: Sequence[tuple[float, float]], mesh: float, bulk: float, side: Side
) -> list[tuple[LossPMF, int]]:
    """Return the steps' discrete losses; nodes are equidistant up to ``bulk``, and farther and farther apart beyond."""
    laws = []
    for (pair, count), (low, high) in zip(pairs, ranges, strict=True):
        index = graded_indices(low - mesh, high + mesh, mesh, bulk)  # most outcomes may lie at an end itself
        laws.append((discretize_step(pair, index, mesh, side), count))
    return laws


def resolved_range(pair: StepPair, tail: float) -> tuple[float, float]:
    """Return the range of losses to resolve: P(L < -60) ≤ e^{-60}; losses too large to be of use count as infinite."""
    low, high = pair.loss_range(tail)
    return max(low, -60.0), min(high, LARGEST_LOSS)
