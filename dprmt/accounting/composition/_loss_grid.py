"""One step's pair as a discrete loss on multiples of a mesh, from above or from below."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from dprmt.accounting.basics._bounds import Side
from dprmt.accounting.basics._numbers import LARGEST_LOSS, graded_indices
from dprmt.accounting.pairs import LossCells, LossPMF, StepPair, from_above, from_below, keep_at_last

_MOST = 0.1  # P-mass of a cell, from which on its mean is a node from below

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


def _from_below(pair: StepPair, index: NDArray[np.int64], mesh: float, tilt: float) -> LossPMF:
    """Return one step's loss from below; where one cell has much of it, the mean of that and of the cells beside it may
    be a node (O1).

    ``tilt``: at which the less private of both ways is chosen.
    """
    nodes = index * mesh
    cells = pair.cells(nodes)
    plain = from_below(index, mesh, cells)
    at = int(np.argmax(cells.p))
    first, last = at - 1, at + 2  # nodes
    if not cells.p[at] > _MOST or first < 1 or last > index.size - 2:
        return plain
    p, q = float(cells.p[first:last].sum()), float(cells.q[first:last].sum())
    if q == 0.0:  # underflow: the loss is above 700
        return plain
    ends, mean = nodes[[first, last]], math.log(p) - math.log(q)
    if not ends[0] <= mean <= ends[1]:
        return plain
    at = first + int(np.argmin(np.abs(nodes[first : last + 1] - mean)))
    offset = mean - float(nodes[at])
    nodes = nodes + offset
    left, right = np.searchsorted(nodes, ends)
    parts = pair.cells(np.concatenate([nodes[:left], ends, nodes[right:]]))
    beside = np.zeros((2, index.size - 1))
    for masses, found in zip(beside, (parts.p, parts.q), strict=True):
        masses[:left], masses[right - 1 :] = found[:left], found[left + 1 :]
    at_nodes = np.zeros(index.size)
    at_nodes[at] = parts.p[left]
    rest = LossCells(beside[0], beside[1], parts.p_below, parts.q_below, parts.p_above, parts.q_above)
    return max(from_below(index, mesh, rest, offset, at_nodes), plain, key=lambda law: _log_moment(law, tilt))


def _log_moment(law: LossPMF, tilt: float) -> float:
    with np.errstate(divide="ignore"):
        return float(np.logaddexp.reduce(np.log(law.mass) + tilt * law.losses))


def laws_of_steps(
    pairs: Sequence[tuple[StepPair, int]],
    ranges: Sequence[tuple[float, float]],
    mesh: float,
    bulk: float,
    side: Side,
    tilt: float = 1.0,
) -> list[tuple[LossPMF, int]]:
    """Return the steps' discrete losses; nodes are equidistant up to ``bulk``, and farther and farther apart beyond.

    ``tilt``: at which a loss from below is felt.
    """
    laws = []
    for (pair, count), (low, high) in zip(pairs, ranges, strict=True):
        is_upper = side == "upper"
        margin = (1 if is_upper else 3) * mesh  # most outcomes may lie at an end, and from below at the mean around it
        index = graded_indices(low - margin, high + margin, mesh, bulk)
        law = discretize_step(pair, index, mesh, side) if is_upper else _from_below(pair, index, mesh, tilt)
        laws.append((law, count))
    return laws


def resolved_range(pair: StepPair, tail: float) -> tuple[float, float]:
    """Return the range of losses to resolve: P(L < -60) ≤ e^{-60}; losses too large to be of use count as infinite."""
    low, high = pair.loss_range(tail)
    return max(low, -60.0), min(high, LARGEST_LOSS)
