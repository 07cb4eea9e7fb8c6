r"""Second-order discretization of a privacy loss, from above and from below.

With u = e^{-L} = dQ/dP, every δ is U(s) = E_P (s - u)_+ up to a factor, U is convex, and pointwise order of
U survives composition (Lemma 1 of ``docs/theory/randomized_clipping.md``). *Above*: interpolate U between
nodes ("connect the dots", Doroshenko et al. 2022, arXiv:2207.04380v1, Algorithm 1). *Below*: lower that
interpolation by what it can exceed U inside a cell, and take the convex minorant.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dprmt.accounting.basics._bounds import Side
from dprmt.accounting.basics._numbers import Array, UnsoundLawError, isotonic_regression
from dprmt.accounting.pairs._pairs import LARGE_LOSS, LossCells

_EPS = float(np.finfo(np.float64).eps)


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

    @property
    def losses(self) -> Array:
        """The support."""
        return self.index * self.mesh + self.offset


def from_above(index: NDArray[np.int64], mesh: float, cells: LossCells) -> LossPMF:
    """Return a discrete loss that is never more private than the cells, whose nodes are ``index * mesh``.

    Returns: finite part by connecting the dots; all mass above the nodes is charged to infinity.
    """
    mass = connect_the_dots(index * mesh, cells)
    mass[0] += cells.p_below
    return LossPMF(index, mass, mesh, cells.p_above)


def keep_at_last(pmf: LossPMF, cells: LossCells) -> LossPMF:
    """Compute the share of the mass moved to infinity by :func:`from_above` that the cell from the last node to ∞
    keeps at that node.
    """
    loss = float(pmf.losses[-1])
    if loss >= LARGE_LOSS or cells.q_above <= 0.0:
        return pmf
    kept = float(min(cells.q_above * np.exp(loss), cells.p_above))
    mass = np.append(pmf.mass[:-1], pmf.mass[-1] + kept)
    return LossPMF(pmf.index, mass, pmf.mesh, max(pmf.infinite - kept, 0.0))


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
    dots[:-1] += mass * (1.0 - share)  # to what drops takes away no rounding of the whole mass is added
    # V is the interpolation of U minus a drop at each node, made convex by weighted isotonic regression of its
    # slopes, which are kept between 0 and the total mass.
    chord_slope = np.cumsum(dots)[:-1]
    slope = chord_slope - np.diff(drops(mass * width, share)) / width
    slope = np.where(slope < 0.5 * chord_slope, slope - 16 * _EPS * chord_slope, slope)  # mostly cancelled: rounded
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
    _check_drift(np.clip(beyond, 0.0, 1.0), losses, cells)  # next to no P-mass may have any mean, by rounding
    return np.clip(np.where(resolved, share, float(side == "lower")), 0.0, 1.0)


def _check_drift(beyond: Array, losses: Array, cells: LossCells) -> None:
    """Refuse cells whose mean lies beyond their nodes, where keeping them between these moves E u to the wrong side.

    ``beyond``: by how much, in units of each cell's width in u.
    """
    if not beyond.any():
        return
    width = np.exp(-np.maximum(losses[:-1], -LARGE_LOSS)) * -np.expm1(-np.diff(losses))
    drift = (cells.p * width * beyond).sum(axis=-1)
    allowed = 1e-12 * (cells.q.sum(axis=-1) + cells.q_below)
    if np.any(drift > allowed):
        raise UnsoundLawError(
            f"a discrete loss moves E u by {float(np.max(drift)):.3g} to the wrong side: please report this"
        )


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
    base = np.minimum(np.maximum(np.append(gap, 0.0), np.append(0.0, gap)), 0.5 * room)
    lack = np.maximum(gap - share * base[1:] - (1.0 - share) * base[:-1], 0.0)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        right = np.where(lack > 0, base[1:] + lack / share, 0.0)
        left = np.where(lack > 0, base[:-1] + lack / (1.0 - share), 0.0)
    to_left = (left <= room[:-1]) & ((right > room[1:]) | (room[:-1] > room[1:]))
    right, left = np.where(to_left, 0.0, right), np.where(to_left, left, 0.0)
    return np.maximum(base, np.maximum(np.append(0.0, right), np.append(left, 0.0)))
