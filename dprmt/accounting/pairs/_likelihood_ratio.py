r"""Discrete laws of the likelihood ratio V = dP/dQ of one unsampled step, never more or never less private.

A law of V under Q is all that random allocation asks of a step: (R1)-(R3) of ``docs/theory/random_allocation.md``.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dprmt.accounting.basics import Array, isotonic_regression
from dprmt.accounting.pairs._cells import StepPair
from dprmt.accounting.pairs._discretization import drops

_UNDERFLOW = 1e-290  # Q-masses below it say nothing of the ratio: their P-mass counts as lost
_ROUNDING = 64 * float(np.finfo(np.float64).eps)


@dataclass(frozen=True)
class RatioLaw:
    """A measure of likelihood ratios under Q.

    Attributes
    ----------
    ratio, mass : ndarray, shape (n,)
        Increasing values ≥ 0 and their Q-probabilities.
    lost : float
        P-probability that the values do not account for: 1 - Σ ratio · mass, summed from its parts. It is an infinite
        loss for a law that is never more private, and of no concern for one that is never less private.
    """

    ratio: Array
    mass: Array
    lost: float

    def part(self, keep: Array) -> RatioLaw:
        """The atoms that ``keep`` selects, with the same ``lost``."""
        return RatioLaw(self.ratio[keep], self.mass[keep], self.lost)


@dataclass(frozen=True)
class RatioCells:
    """The law of V on consecutive cells: Q-mass and mean of each.

    Attributes
    ----------
    nodes : ndarray, shape (n + 1,)
        Ends of the cells; the first is 0.
    mass, moment : ndarray, shape (n,)
        Q(V in cell) and E_Q[V; V in cell].
    mass_above, moment_above : float
        The same above the last node; the latter with every charge of the pair, as P-mass.
    """

    nodes: Array
    mass: Array
    moment: Array
    mass_above: float
    moment_above: float

    def means(self) -> Array:
        """Conditional mean of V in each cell, inside the cell."""
        left, right = self.nodes[:-1], self.nodes[1:]
        with np.errstate(divide="ignore", invalid="ignore"):
            mean = np.where(self.mass > 0, self.moment / self.mass, left)
        return np.clip(mean, left, right)


def ratio_cells(pair: StepPair, nodes: Array) -> RatioCells:
    """Cells of the ratio of an unsampled step's pair."""
    cells = pair.cells(np.log(nodes[1:]))
    return RatioCells(
        nodes=nodes,
        mass=np.append(cells.q_below, cells.q),
        moment=np.append(cells.p_below, cells.p),
        mass_above=cells.q_above,
        moment_above=cells.p_above,
    )


def never_more_private(cells: RatioCells, slack: float) -> RatioLaw:
    """Spread every cell to its ends, keeping its mean; all above the last node, and the slack, become V = 0 (R2)."""
    mass = spread(cells).mass
    mass[0] += cells.mass_above
    mass, cut = _without_excess(cells.nodes, mass)
    cut += float(cells.moment[cells.mass < _UNDERFLOW].sum())
    mass = (1.0 - slack) * mass
    mass[0] += slack
    return RatioLaw(cells.nodes, mass, min(cells.moment_above + cut + slack, 1.0))


def spread(cells: RatioCells) -> RatioLaw:
    """Send every cell's mass to its ends, keeping mass and mean."""
    to_right = cells.mass * (cells.means() - cells.nodes[:-1]) / np.diff(cells.nodes)
    mass = np.append(cells.mass - to_right, 0.0) + np.append(0.0, to_right)
    return RatioLaw(cells.nodes, np.maximum(mass, 0.0), 0.0)


def never_less_private(cells: RatioCells) -> RatioLaw:
    """Pull the law of V in, onto the nodes, keeping its mean (R3)."""
    width = np.diff(cells.nodes)
    share = (cells.means() - cells.nodes[:-1]) / width
    mass, drop = _with_mean_kept(cells.mass, width, share)
    to_right = mass * share
    dots = np.append(mass - to_right, 0.0) + np.append(0.0, to_right)
    # Slopes from the left end and, beyond the middle, from the right: masses in both tails stay relatively accurate.
    tilt = np.diff(drop) / width
    middle = int(np.clip(np.searchsorted(cells.nodes, 1.0), 1, width.size - 1))
    below = _convex(np.cumsum(dots)[:middle] - tilt[:middle], width[:middle])
    above = _convex(np.cumsum(dots[::-1])[: width.size - middle] + tilt[middle:][::-1], width[middle:][::-1])
    between = float(dots.sum()) - below[-1] - above[-1]
    if between < 0.0:  # not convex across the middle: from the left alone
        below, above = _convex(np.cumsum(dots)[:-1] - tilt, width), np.empty(0)
        between = max(float(dots.sum()) - below[-1], 0.0)
    atoms = np.concatenate([np.diff(below, prepend=0.0), [between], np.diff(above, prepend=0.0)[::-1]])
    return RatioLaw(cells.nodes, np.maximum(atoms, 0.0), 0.0)


def _with_mean_kept(mass: Array, width: Array, share: Array) -> tuple[Array, Array]:
    """Drops at the nodes that leave a convex minorant with the same mass and mean; masses that allow none left out."""
    while True:
        drop = drops(mass * width, share)
        crossed = drop > _room(mass, width, share) * (1.0 + 1e-9)  # there is no room at either end
        beside = (crossed[1:] | crossed[:-1]) & (mass > 0)
        if not beside.any():
            return mass, drop
        mass = np.where(beside, 0.0, mass)


def _room(mass: Array, width: Array, share: Array) -> Array:
    """How far the interpolated put function of the spread law lies above max(0, its last tangent), at each node."""
    to_right = mass * share
    dots = np.append(mass - to_right, 0.0) + np.append(0.0, to_right)
    puts = np.append(0.0, np.cumsum(np.cumsum(dots)[:-1] * width))
    calls = np.append(np.cumsum(np.cumsum(dots[::-1])[:-1] * width[::-1])[::-1], 0.0)
    return np.minimum(puts, calls)


def _convex(slope: Array, width: Array) -> Array:
    """Slopes of the greatest convex minorant, none below 0."""
    return np.maximum(isotonic_regression(slope, width), 0.0)


def merged(cells: RatioCells) -> RatioLaw:
    """Put every cell's mass on its mean: never less private, by Jensen's inequality (R3)."""
    return RatioLaw(cells.means(), cells.mass, 0.0)


def _without_excess(ratio: Array, mass: Array) -> tuple[Array, float]:
    """Cut Q-mass beyond 1 from the largest ratios; also the P-mass that this cuts (R2)."""
    excess = float(mass.sum()) - 1.0
    if excess <= _ROUNDING:
        return mass, 0.0
    above = np.cumsum(mass[::-1])[::-1]
    cut = np.clip(excess - np.append(above[1:], 0.0), 0.0, mass)
    return mass - cut, float(cut @ ratio)
