"""A step's pair of laws: masses of the loss between nodes, and a discrete loss on a mesh, from above and from below.

With u = e^{-L} = dQ/dP, every δ is U(s) = E_P (s - u)_+ up to a factor, U is convex, and pointwise order of
U survives composition (Lemma 1 of ``docs/theory/randomized_clipping.md``). *Above*: interpolate U between
nodes ("connect the dots", Doroshenko et al. 2022, arXiv:2207.04380v1, Algorithm 1). *Below*: lower that
interpolation by what it can exceed U inside a cell, and take the convex minorant.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Protocol

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr, ndtri

from dprmt.accounting.basics._bounds import Direction, Side
from dprmt.accounting.basics._numbers import Array, UnsoundLawError

EPS = float(np.finfo(np.float64).eps)
LARGE_LOSS = 300.0
"""Beyond it losses are rounded to first order: squares of e^{-loss} near underflow."""
BEYOND = 40.0
"""Standard deviations beyond which Φ is 0."""


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
    slack: float

    def loss_range(self, tail: float) -> tuple[float, float]:
        """See :class:`StepPair`."""
        low, high = self.pair.loss_range(tail)
        return -high, -low

    def cells(self, nodes: Array) -> LossCells:
        """See :class:`StepPair`."""
        return self.pair.cells(-nodes[::-1]).mirrored()


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


def row_blocks(size: int, rows: int = 128) -> Iterator[slice]:
    """Iterate over consecutive rows, some at a time: a pair's arrays of (nodes × sensitivities) fit into the cache."""
    return (slice(start, start + rows) for start in range(0, size, rows))


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


@dataclass(frozen=True)
class PublicPair:
    """One step of Poisson-subsampled Gaussian noise whose random sensitivity Z is public, with a discrete law.

    P: (Z, (1-q) N(0,1) + q N(Z/σ, 1)) against Q: (Z, N(0,1)). The loss increases with the second coordinate for each
    value of Z: (A1) of ``docs/theory/randomized_clipping.md``.

    ``infinite``: probability of Z = ∞: the sample's participation is then plain to see.
    ``slack``: extra probability charged to an infinite loss in both directions.
    """

    shift: Array
    mass: Array
    sample_rate: float
    infinite: float = 0.0
    slack: float = 0.0

    def loss_range(self, tail: float) -> tuple[float, float]:
        """Return an interval outside which P has mass at most ``tail`` above and Q at most ``tail`` below."""
        share = np.minimum(tail / (self.mass.size * self.mass), 0.5)
        q, mu = self.sample_rate, self.shift
        highest = np.maximum(mu - ndtri(np.minimum(share / q, 0.5)), -ndtri(share))
        exponent = mu * highest - mu**2 / 2
        if q == 1.0:
            return float(np.min(mu * ndtri(share) - mu**2 / 2)), float(np.max(exponent))
        return float(np.log1p(-q)), float(np.max(np.logaddexp(np.log1p(-q), np.log(q) + exponent)))

    def cells(self, nodes: Array) -> LossCells:
        """Return the masses between increasing loss nodes, mixed over Z."""
        q = self.sample_rate
        ratio = np.concatenate([[-np.inf], log_shift_ratio(nodes, q), [np.inf]])
        absent, present = np.empty((2, nodes.size + 1))
        for rows in row_blocks(nodes.size + 1):
            with np.errstate(over="ignore"):
                y = ratio[rows.start : rows.stop + 1, None] / self.shift + self.shift / 2
            absent[rows] = interval_masses(y) @ self.mass  # without the sample, between losses and beyond them
            present[rows] = interval_masses(y - self.shift) @ self.mass
        p = (1.0 - q) * absent + q * present
        if self.infinite > 0:  # with Z = ∞ the loss is ∞ if the sample takes part, else log(1 - q)
            lowest = int(np.searchsorted(nodes, np.log1p(-q))) if q < 1.0 else 0
            p[lowest] += (1.0 - q) * self.infinite
            absent[lowest] += self.infinite
            p[-1] += q * self.infinite
        return LossCells(
            p=p[1:-1],
            q=absent[1:-1],
            p_below=float(p[0]),
            q_below=float(absent[0]),
            p_above=float(p[-1]),
            q_above=float(absent[-1]),
        )

    def total_variation(self) -> float:
        """Compute H_1 of the pair without subsampling, E[2Φ(μ/2) - 1]."""
        return float((2 * ndtr(self.shift / 2) - 1) @ self.mass) + self.infinite


def log_shift_ratio(loss: Array, sample_rate: float) -> Array:
    """Log of the likelihood ratio r of the unsampled pair at a given loss, from exp(loss) = 1 - q + q r."""
    if sample_rate == 1.0:
        return loss
    low = np.log1p(-sample_rate)
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        above = np.log((1.0 - sample_rate) * np.expm1(np.maximum(loss - low, 0.0)))
        large = loss + np.log1p(-(1.0 - sample_rate) * np.exp(-loss))
    return np.where(loss > 1.0, large, above) - np.log(sample_rate)


@dataclass(frozen=True)
class LossPMF:
    """A discrete privacy loss on integer multiples of a mesh, all of them moved by an offset.

    Attributes
    ----------
    index : ndarray of int64, shape (n,)
        Increasing; the losses are ``index * mesh + offset``.
    mass : ndarray, shape (n,)
        P-probabilities; their sum may be below 1.
    mesh : float
        Spacing of the underlying grid.
    infinite : float
        Probability of an infinite loss.
    offset : float
        At most a mesh.
    """

    index: NDArray[np.int64]
    mass: Array
    mesh: float
    infinite: float
    offset: float = 0.0

    @cached_property
    def losses(self) -> Array:
        """The support."""
        return self.index * self.mesh + self.offset


Laws = Sequence[tuple[LossPMF, int]]
"""Discrete losses of steps, and how often each is taken."""


def from_above(index: NDArray[np.int64], mesh: float, cells: LossCells, *, to_infinity: bool = False) -> LossPMF:
    """Return a discrete loss that is never more private than the cells, whose nodes are ``index * mesh``.

    ``to_infinity``: whether the dots connect the last node to an infinite loss.
    Returns: finite part by connecting the dots; all (other) mass above the nodes is charged to infinity.
    """
    losses, kept = index * mesh, 0.0
    mass = connect_the_dots(losses, cells)
    mass[0] += cells.p_below
    if to_infinity and losses[-1] < LARGE_LOSS:
        kept = max(float(min(cells.q_above * np.exp(losses[-1]), cells.p_above)), 0.0)
        mass[-1] += kept
    return LossPMF(index, mass, mesh, cells.p_above - kept)


def cut_above(pmf: LossPMF, loss: float) -> LossPMF:
    """Move larger losses to infinity: never more private."""
    kept = max(int(np.searchsorted(pmf.losses, loss, side="right")), 1)
    infinite = pmf.infinite + float(pmf.mass[kept:].sum())
    return LossPMF(pmf.index[:kept], pmf.mass[:kept], pmf.mesh, infinite, pmf.offset)


def connect_the_dots(losses: Array, cells: LossCells) -> Array:
    """Return the masses at the nodes that keep each cell's P- and Q-mass; where rounding forbids, the cell moves up."""
    left = cells.p * _left_share(losses, cells, "upper")
    return np.append(left, 0.0) + np.append(0.0, cells.p - left)


def from_below(
    index: NDArray[np.int64], mesh: float, cells: LossCells, offset: float = 0.0, at_nodes: Array | float = 0.0
) -> LossPMF:
    """Return a discrete loss that is never less private than the cells, whose nodes are ``index * mesh + offset``.

    ``at_nodes``: P-masses that lie at the nodes, beside the cells.
    Returns: mass above the nodes is moved down to the last one; mass below the nodes, or at losses below -300, is
    dropped.
    """
    first = min(int(np.searchsorted(index * mesh, -LARGE_LOSS)), index.size - 2)
    beyond = np.zeros(index.size) + at_nodes
    beyond[-1] += cells.p_above
    index, beyond = index[first:], beyond[first:]
    losses = index * mesh + offset
    cells = LossCells(cells.p[first:], cells.q[first:], 0.0, 0.0, cells.p_above, cells.q_above)
    share = _left_share(losses, cells, "lower")
    share[np.diff(losses) > 30.0] = 1.0  # it is 0 or 1 to rounding
    # In increasing s = e^{-loss}; segment i joins nodes i and i + 1.
    width = np.maximum(np.diff(np.exp(-np.maximum(losses, -LARGE_LOSS)[::-1])), 1e-220)
    mass = pulled_in(width, cells.p[::-1], share[::-1], beyond[::-1])[::-1]
    return LossPMF(index, mass, mesh, 0.0, offset)


def pulled_in(width: Array, mass: Array, share: Array, at_nodes: Array) -> Array:
    """Return the masses at nodes of a law whose U(s) = E(s - u)₊ is nowhere larger: (D2), in increasing u.

    ``width``, ``mass``, ``share``: of each cell, the latter of its right node in the law that keeps mass and mean.
    ``at_nodes``: mass that lies at the nodes.
    """
    dots = at_nodes.copy()
    dots[1:] += mass * share
    dots[:-1] += mass * (1.0 - share)  # to what drops take away no rounding of the whole mass is added
    # V is the interpolation of U minus a drop at each node, made convex by weighted isotonic regression of its
    # slopes, which are kept between 0 and the total mass.
    chord_slope = np.cumsum(dots)[:-1]
    slope = chord_slope - np.diff(drops(mass * width, share)) / width
    slope = np.where(slope < 0.5 * chord_slope, slope - 16 * EPS * chord_slope, slope)  # mostly cancelled: rounded
    slope = np.clip(isotonic_regression(slope, width), 0.0, dots.sum())
    return np.maximum(np.diff(np.concatenate([[0.0], slope, [dots.sum()]])), 0.0)


def _left_share(losses: Array, cells: LossCells, side: Side) -> Array:
    """Share of each cell's P-mass that goes to its left node so that P- and Q-mass are both kept."""
    step = np.diff(losses)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore", under="ignore"):
        u_ratio = np.exp(np.log(cells.q) - np.log(cells.p) + losses[:-1])
        share = 1.0 - (1.0 - u_ratio) / -np.expm1(-step)
    resolved = (losses[1:] < LARGE_LOSS) & np.isfinite(share)
    beyond = np.where(resolved, share - 1.0 if side == "lower" else -share, 0.0)
    if np.any(beyond > 0.0):
        _check_drift(np.clip(beyond, 0.0, 1.0), losses, cells)  # next to no P-mass may have any mean, by rounding
    return np.clip(np.where(resolved, share, float(side == "lower")), 0.0, 1.0)


def _check_drift(beyond: Array, losses: Array, cells: LossCells) -> None:
    """Refuse cells whose mean lies beyond their nodes, where keeping them between these moves E u to the wrong side.

    ``beyond``: by how much, in units of each cell's width in u.
    """
    width = np.exp(-np.maximum(losses[:-1], -LARGE_LOSS)) * -np.expm1(-np.diff(losses))
    drift = float((cells.p * width * beyond).sum())
    if drift > 1e-12 * (cells.q.sum() + cells.q_below):
        raise UnsoundLawError(f"a discrete loss moves E u by {drift:.3g} to the wrong side: please report this")


def drops(moment: Array, share: Array) -> Array:
    """Compute how far V lies below U at each node, so that it lies below U in every cell (D2).

    For n cells ``moment`` is mass · width and ``share`` belongs to the right node.
    """
    # Inside a cell of mass p and width w, U lies above the curve with all of p at the cell's mean of u
    # (Jensen), whose kink is p·r(1-r)·w below the chord, r being the share of the right node. It is enough that
    # r·(right drop) + (1-r)·(left drop) reaches that gap. Each node takes the larger gap of its two cells, but at
    # most half its height over U's tangents from either side, beyond which V would not be convex. What then lacks
    # goes to the right node, whose height over the tangent from the left always suffices, unless the left node
    # alone has room on both sides.
    gap = moment * share * (1.0 - share)
    room = np.minimum(np.append(0.0, moment * (1.0 - share)), np.append(moment * share, 0.0))
    drop = np.minimum(np.maximum(np.append(gap, 0.0), np.append(0.0, gap)), 0.5 * room)
    lack = np.maximum(gap - share * drop[1:] - (1.0 - share) * drop[:-1], 0.0)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        right = np.where(lack > 0, drop[1:] + lack / share, 0.0)
        left = np.where(lack > 0, drop[:-1] + lack / (1.0 - share), 0.0)
    to_left = (left <= room[:-1]) & ((right > room[1:]) | (room[:-1] > room[1:]))
    right, left = np.where(to_left, 0.0, right), np.where(to_left, left, 0.0)
    return np.maximum(drop, np.maximum(np.append(0.0, right), np.append(left, 0.0)))


def isotonic_regression(values: Array, weights: Array) -> Array:
    """Pool adjacent violators. Its sums with the weights are the slopes of a greatest convex minorant.

    The result equals ``scipy.optimize.isotonic_regression``, whose import takes longer than a typical bound.
    """
    falls = np.flatnonzero(values[1:] < values[:-1])
    if falls.size == 0:
        return values
    start = int(falls[0])  # what lies before may yet be pooled
    means, sums, sizes = values[:start].tolist(), weights[:start].tolist(), [1] * start
    for value, weight in zip(values[start:].tolist(), weights[start:].tolist(), strict=True):
        size = 1
        while means and means[-1] >= value:
            before = sums.pop()
            value = (means.pop() * before + value * weight) / (before + weight)
            weight += before
            size += sizes.pop()
        means.append(value)
        sums.append(weight)
        sizes.append(size)
    pooled: Array = np.repeat(means, sizes)
    return pooled


def graded_indices(low: float, high: float, mesh: float, bulk: float) -> NDArray[np.int64]:
    """Return increasing integers i such that the nodes i·mesh cover [low, high].

    They follow each other up to ``bulk``, and are farther and farther apart beyond, in geometric progression.

    Examples
    --------
    >>> graded_indices(-0.02, 0.5, mesh=0.1, bulk=0.2).tolist()
    [-1, 0, 1, 2, 3, 5]
    """
    last = int(np.ceil(max(high, -low, mesh) / mesh))
    inner = max(int(np.ceil(bulk / mesh)), 1)
    right = np.arange(1, min(inner, last) + 1, dtype=np.int64)
    if last > inner:
        growth = 1.0 + 1.0 / inner
        count = int(np.ceil(np.log(last / inner) / np.log(growth))) + 1
        outer = np.unique(np.ceil(inner * growth ** np.arange(1, count + 1, dtype=np.int64)).astype(np.int64))
        right = np.append(right, outer[outer > inner])
    nodes = np.concatenate([-right[::-1], [0], right])
    first = np.searchsorted(nodes, np.floor(low / mesh), side="right") - 1
    after = np.searchsorted(nodes, np.ceil(high / mesh), side="left") + 1
    return nodes[max(first, 0) : after]


def discretize_step(
    pair: StepPair, ends: tuple[float, float], mesh: float, bulk: float, side: Side, tilt: float = 1.0
) -> LossPMF:
    """Return one step's loss at multiples of a mesh, from above (with the pair's slack charged) or from below.

    ``ends``: losses to resolve. ``bulk``: where nodes begin to lie farther apart. ``tilt``: at which a loss from below
    is felt.
    """
    # Most outcomes may lie at an end, and from below at the mean around it.
    margin = (1 if side == "upper" else 3) * mesh
    index = graded_indices(ends[0] - margin, ends[1] + margin, mesh, bulk)
    cells = pair.cells(index * mesh)
    if side == "upper":
        law = from_above(index, mesh, cells)
        return replace(law, infinite=min(law.infinite + pair.slack, 1.0))
    plain, at = from_below(index, mesh, cells), int(np.argmax(cells.p))
    if not (cells.p[at] > 0.1 and 2 <= at <= index.size - 4):
        return plain
    with np.errstate(divide="ignore"):
        laws = [plain, *_with_mean_at_node(pair, index, mesh, cells, at)]
        return max(laws, key=lambda law: float(np.logaddexp.reduce(np.log(law.mass) + tilt * law.losses)))


def _with_mean_at_node(
    pair: StepPair, index: NDArray[np.int64], mesh: float, cells: LossCells, at: int
) -> list[LossPMF]:
    """Return the loss from below, if there is one, with the mean of a heavy cell and of those beside it as a node (O1).

    ``at``: the cell that has much of the loss.
    """
    nodes, first, last = index * mesh, at - 1, at + 2
    p, q = float(cells.p[first:last].sum()), float(cells.q[first:last].sum())
    if q == 0.0:  # underflow: the loss is above 700
        return []
    ends, mean = nodes[[first, last]], math.log(p) - math.log(q)
    if not ends[0] <= mean <= ends[1]:
        return []
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
    return [from_below(index, mesh, rest, offset, at_nodes)]
