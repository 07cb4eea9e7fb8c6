"""What is composed: pairs of distributions of a step, by the masses of the loss between nodes; schedules."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
from scipy.special import ndtr

from dprmt.accounting.basics._bounds import Direction
from dprmt.accounting.basics._numbers import Array

LARGE_LOSS = 300.0
"""Beyond it losses are rounded to first order: squares of e^{-loss} near underflow."""
LEAST = 1e-290
"""Smaller masses are not resolved."""
BEYOND = 40.0
"""Standard deviations beyond which Φ is 0."""
ROWS_AT_A_TIME = 128
"""Loss nodes per block: the arrays of (nodes × sensitivities) that a pair needs then fit into the cache."""


@dataclass(frozen=True)
class LossCells:
    """Masses of the privacy loss L = log(dP/dQ) between consecutive nodes.

    Attributes
    ----------
    p, q : ndarray, shape (n - 1,)
        P and Q of {l_i < L ≤ l_{i+1}} for the n nodes.
    p_below, q_below, p_above, q_above : float
        The same outside the nodes; points where Q (or P) vanishes count as above (or below).
    """

    p: Array
    q: Array
    p_below: float
    q_below: float
    p_above: float
    q_above: float

    def mirrored(self) -> LossCells:
        """Return the cells of the exchanged pair (Q, P) on the negated, reversed nodes."""
        return LossCells(
            p=self.q[::-1],
            q=self.p[::-1],
            p_below=self.q_above,
            q_below=self.p_above,
            p_above=self.q_below,
            q_above=self.p_below,
        )


class StepPair(Protocol):
    """A pair (P, Q) of one step: P when the sample may take part, Q when it is absent."""

    @property
    def slack(self) -> float:
        """Probability to be charged to an infinite loss, once per step, in either direction."""
        ...

    def loss_range(self, tail: float) -> tuple[float, float]:
        """Return an interval outside which P has mass at most ``tail`` above and Q at most ``tail`` below."""
        ...

    def cells(self, nodes: Array) -> LossCells:
        """Return the masses between increasing loss nodes."""
        ...


@dataclass(frozen=True)
class Mirrored:
    """The exchanged pair (Q, P): adding the sample, where ``pair`` is for removing it."""

    pair: StepPair

    @property
    def slack(self) -> float:
        """See :class:`StepPair`."""
        return self.pair.slack

    def loss_range(self, tail: float) -> tuple[float, float]:
        """See :class:`StepPair`."""
        low, high = self.pair.loss_range(tail)
        return -high, -low

    def cells(self, nodes: Array) -> LossCells:
        """See :class:`StepPair`."""
        return self.pair.cells(-nodes[::-1]).mirrored()


def facing(pair: StepPair, direction: Direction) -> StepPair:
    """Return the pair as an adjacency direction sees it."""
    return pair if direction == "remove" else Mirrored(pair)


def interval_masses(points: Array) -> Array:
    """Compute Φ(points[i + 1]) - Φ(points[i]) along the first axis, without cancellation in either tail.

    The masses are non-negative, each with an absolute error of a few roundings of the smaller tail.
    """
    # Beyond 38 standard deviations ndtr is 0: most of a grid of losses and sensitivities lies there.
    outer = np.zeros(points.shape)
    seen = np.abs(points) < 38.5
    outer[seen] = ndtr(-np.abs(points[seen]))
    positive = points > 0
    difference = np.abs(np.diff(outer, axis=0))
    straddles = positive[1:] & ~positive[:-1]
    across = 1.0 - outer[1:] - outer[:-1]
    return np.where(straddles, across, difference)


def row_blocks(size: int) -> Iterator[slice]:
    """Iterate over consecutive rows, some at a time."""
    for start in range(0, size, ROWS_AT_A_TIME):
        yield slice(start, start + ROWS_AT_A_TIME)


def inverse(
    function: Callable[[Array], tuple[Array, Array]], grid: Array, table: Array, target: Array
) -> tuple[Array, Array]:
    """Find where an increasing function reaches each target, and by how much it misses the target there.

    ``function``: returns values and derivatives. ``table``: its values at ``grid``. Returns: -∞ below the table and ∞
    above it, and where the function steps across a target the right end of the step; nothing is missed there.
    """
    t, miss = np.where(target <= table[0], -np.inf, np.inf), np.zeros(target.size)
    active = np.flatnonzero((target > table[0]) & (target < table[-1]))
    right = np.clip(np.searchsorted(table, target), 1, table.size - 1)
    low, high, rise = grid[right - 1], grid[right], table[right] - table[right - 1]
    with np.errstate(divide="ignore", invalid="ignore"):
        share = np.nan_to_num((target - table[right - 1]) / rise, nan=0.5)
    t[active] = (low + share * (high - low))[active]
    for round_number in range(80):  # Newton's method, halving where it leaves a bracket, or does not converge
        value, slope = function(t[active])
        error = value - target[active]
        miss[active] = np.abs(error)
        above = error >= 0.0
        high[active[above]], low[active[~above]] = t[active[above]], t[active[~above]]
        is_open = miss[active] > 1e-12 * np.maximum(np.abs(target[active]), 1.0)
        is_step = is_open & (high[active] - low[active] <= 4e-16 * np.maximum(np.abs(high[active]), 1.0))
        t[active[is_step]], miss[active[is_step]] = high[active[is_step]], 0.0
        is_open &= ~is_step
        active, error, slope = active[is_open], error[is_open], slope[is_open]
        if not active.size:
            break
        with np.errstate(divide="ignore", invalid="ignore"):
            step = t[active] - error / slope
        is_inside = (step > low[active]) & (step < high[active]) & (round_number < 12)
        t[active] = np.where(is_inside, step, (low[active] + high[active]) / 2)
    return t, miss


def masses_between(value: Array, rest: Array) -> Array:
    """Return the masses between thresholds, and outside them, of a falling curve and 1 minus it."""
    step = np.where(value[:-1] < 0.5, -np.diff(value), np.diff(rest))
    return np.concatenate([rest[:1], step, value[-1:]])


def cells_with_misses(nodes: Array, present: Array, absent: Array, miss: Array) -> LossCells:
    """Return the cells from masses between outcomes, and outside them, whose losses miss the nodes by so much (C7)."""
    missed = 2.0 * (miss[1:] ** 2 + miss[:-1] ** 2) / np.diff(nodes)
    p, q = present[1:-1], absent[1:-1]
    return LossCells(
        p=p,
        q=q,
        p_below=float(present[0]),
        q_below=float(absent[0] + q @ missed),
        p_above=float(present[-1] + p @ missed),
        q_above=float(absent[-1]),
    )


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
        """Return a pair that is never more private than the step, and one that is never less private."""
        ...


Schedule = Sequence[tuple[Step, int]]


@dataclass(frozen=True)
class AtomicPair:
    """A pair whose loss takes finitely many values.

    ``p``: P-masses. ``infinite``: P-mass at an infinite loss. ``vanishing``: Q-mass at its negative, by default the
    same. ``reach``: how far losses are resolved at least.
    """

    losses: Array
    p: Array
    infinite: float
    reach: float = 0.0
    slack: float = 0.0
    vanishing: float | None = None

    def loss_range(self, tail: float) -> tuple[float, float]:
        """Return the range of the atoms; ``tail`` is not needed."""
        del tail
        return min(float(self.losses[0]), -self.reach), max(float(self.losses[-1]), self.reach)

    def cells(self, nodes: Array) -> LossCells:
        """Return the masses between increasing loss nodes."""
        place = np.searchsorted(nodes, self.losses)
        p = np.bincount(place, weights=self.p, minlength=nodes.size + 1)
        q = np.bincount(place, weights=self.p * np.exp(-self.losses), minlength=nodes.size + 1)
        return LossCells(
            p=p[1:-1],
            q=q[1:-1],
            p_below=float(p[0]),
            q_below=float(q[0]) + (self.infinite if self.vanishing is None else self.vanishing),
            p_above=float(p[-1]) + self.infinite,
            q_above=float(q[-1]),
        )

    def total_variation(self) -> float:
        """Bound H_1 of the represented pair from above, in either direction."""
        more = self.p * -np.expm1(-self.losses)
        vanishing = self.infinite if self.vanishing is None else self.vanishing
        removed, added = np.maximum(more, 0.0).sum() + self.infinite, np.maximum(-more, 0.0).sum() + vanishing
        return float(max(removed, added)) + self.slack


def charged_cells(pair: StepPair, nodes: Array) -> dict[Direction, LossCells]:
    """Return cells of an upper pair in both adjacency directions.

    ``nodes``: strictly increasing losses of the direction "remove"; the direction "add" has ``-nodes[::-1]``. Returns:
    keys ``"remove"`` and ``"add"``. Each ``p_above`` has all mass that counts as an infinite loss: mass above the last
    node, mass that the pair moves there, and its slack. So masses may sum to more than 1.
    """
    cells = pair.cells(nodes)
    both: dict[Direction, LossCells] = {"remove": cells, "add": cells.mirrored()}
    return {way: replace(each, p_above=min(each.p_above + pair.slack, 1.0)) for way, each in both.items()}
