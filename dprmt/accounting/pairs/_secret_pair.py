r"""One step of Poisson-subsampled Gaussian noise whose sensitivity Z is random and stays secret.

N(0,1) against M = (1-q) N(0,1) + q E_Z N(Z/σ,1): one-dimensional, with a monotone likelihood ratio, so all
follows from the curve T(t) = E Φ(Z/σ - t). From above (C3), (C4) and (C7), from below (C5), §5 of
``docs/theory/randomized_clipping.md``.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from scipy.special import ndtr, ndtri

from dprmt.accounting.basics._numbers import LARGEST_LOSS, Array
from dprmt.accounting.laws._gamma_mixture import NormRatioBins
from dprmt.accounting.pairs._pairs import (
    BEYOND,
    LossCells,
    cells_with_misses,
    interval_masses,
    inverse,
    isotonic_regression,
    log_shift_ratio,
    masses_between,
    row_blocks,
)

FAR = 35.0
"""Threshold beyond which outcomes are merged from below: Q-masses are no numbers at 38."""


def inflection_shift(t: Array) -> Array:
    """Compute μ*(t) = (t + √(t² + 12))/2: Φ(μ - t) is convex in the squared-norm ratio where μ ≤ μ*(t), concave beyond
    (C3).
    """
    root = np.sqrt(t**2 + 12.0)
    value: Array = np.where(t >= 0, (t + root) / 2, 6.0 / (root + np.abs(t)))
    return value


@dataclass(frozen=True)
class SecretUpperPair:
    """A pair that dominates every spectrum: T replaced by E f̂_t, f̂_t a convex majorant of Φ(μ - t).

    ``shift``, ``mass``: values of μ = Z/σ and their probabilities, from a law of the squared-norm ratio spread outward.
    ``below``: probability of squared-norm ratios below the smallest atom.
    """

    shift: Array
    mass: Array
    sample_rate: float
    below: float = 0.0
    slack: float = 0.0

    def loss_range(self, tail: float) -> tuple[float, float]:
        """Return an interval outside which P has mass at most ``tail`` above and Q at most ``tail`` below."""
        high = float(self.log_ratio(np.array([self.last_threshold(tail)]))[0][0])
        high = high if high > -np.inf else LARGEST_LOSS  # beyond t = 1e18 nothing of it is resolved
        if self.sample_rate == 1.0:
            return float(self.log_ratio(ndtri(np.array([tail])))[0][0]), high
        low = float(np.log1p(-self.sample_rate))
        return low, float(np.logaddexp(low, np.log(self.sample_rate) + high))

    def last_threshold(self, tail: float) -> float:
        """Return a threshold beyond which P has mass at most ``tail`` if the sample takes part, and Q as well."""
        share = np.minimum(tail / (self.mass.size * self.mass), 0.5)
        return float(max(np.max(self.shift - ndtri(share)), -ndtri(tail)))

    @property
    def last(self) -> float:
        """The largest threshold for which the bound holds: nothing but β of (C3) lies beyond."""
        return float(self.shift.max()) + BEYOND

    def _uncapped(self, t: Array) -> tuple[Array, Array]:
        """Compute T̂(t) of (C3), before the cap at 1, and 1 - T̂(t), each without cancellation where it is small."""
        value, rest = np.empty(t.size), np.empty(t.size)
        leftover = self.below * (1.0 + 0.2 * (2.0 + self.last))  # β: ratios below the smallest atom, at all thresholds
        for rows in row_blocks(t.size):
            at = t[rows, None]
            star = inflection_shift(at)
            turn = np.maximum(star, self.shift / math.sqrt(3.0))  # where the majorant would fall with t, it stays
            is_convex = self.shift <= star
            x = np.where(is_convex, self.shift - at, 3.0 / turn)
            density = np.exp(-(x**2) / 2) / np.sqrt(2 * np.pi)
            rise = np.where(is_convex, 0.0, turn / 2 * density * (1.0 - (turn / self.shift) ** 2))
            tail = ndtr(-np.abs(x))
            value[rows] = (np.where(x > 0, 1.0 - tail, tail) + rise) @ self.mass
            rest[rows] = (np.where(x > 0, tail, 1.0 - tail) - rise) @ self.mass
        return value + leftover, rest + self.below - leftover

    def log_ratio(self, t: Array) -> tuple[Array, Array]:
        """Log of the likelihood ratio -T̂'(t)/φ(t) of (C4), and its derivative."""
        value, slope = np.empty(t.size), np.empty(t.size)
        for rows in row_blocks(t.size):
            at = t[rows, None]
            star = inflection_shift(at)
            mu, y = np.minimum(self.shift, star), np.minimum(star / self.shift, 1.0) ** 2
            factor = np.maximum(1.5 * y - 0.5, 0.0)
            with np.errstate(divide="ignore", invalid="ignore"):
                exponent = mu * at - mu**2 / 2 + np.log(self.mass * factor)
                tangent = star / (star**2 + 3) * (star**2 + 3 * y / factor)
                peak = np.maximum(exponent.max(axis=1, keepdims=True), -1e300)
                each = np.exp(exponent - peak)
                total = each.sum(axis=1)
                rate = np.where(self.shift <= star, self.shift, np.where(factor > 0.0, tangent, 0.0))
                value[rows] = np.log(total) + peak[:, 0]
                slope[rows] = (each * rate).sum(axis=1) / total
        return value, slope

    def thresholds(self, nodes: Array) -> tuple[Array, Array]:
        """Return the t where the loss reaches each node, and by how much the loss misses the node there.

        Returns: t is -inf below all losses, and never below the cap of (C4) otherwise; ``miss`` is 0 for both.
        """
        target = log_shift_ratio(nodes, self.sample_rate)
        t, miss = inverse(self.log_ratio, *self.table, target)
        t, miss = np.clip(t, self.cap, self.table[0][-1]), np.where(t < self.cap, 0.0, miss)
        return np.where(np.isneginf(target), -np.inf, t), miss

    @cached_property
    def table(self) -> tuple[Array, Array]:
        """Thresholds up to the last, 2% apart where they are large, and the ratio's log there."""
        count = math.ceil(math.log(self.last / BEYOND) / 0.02) + 2
        grid = np.append(np.linspace(-BEYOND, BEYOND, 641), np.geomspace(BEYOND, self.last, count)[1:])
        ratio = self.log_ratio(grid)[0]
        usable = np.isfinite(ratio)
        return grid[usable], np.maximum.accumulate(ratio[usable])

    @cached_property
    def cap(self) -> float:
        """The t below which T̂ is 1 or constant, so that only the loss log(1 - q) is left (C4).

        Returns: not less than that, and more by some roundings, where T̂ is then taken to be 1.
        """
        smallest = float(self.shift.min()) / math.sqrt(3.0)
        low, high = max(smallest - 3.0 / smallest, -BEYOND), self.last
        if self._uncapped(np.array([low]))[1][0] > 0.0:
            return low
        for _ in range(60):
            middle = (low + high) / 2
            low, high = (middle, high) if self._uncapped(np.array([middle]))[1][0] <= 0.0 else (low, middle)
        return high

    def curve(self, t: Array) -> tuple[Array, Array]:
        """Return the bound T̂(t) for thresholds up to the last, and 1 - T̂(t)."""
        value, rest = self._uncapped(t)
        free = t > self.cap
        return np.where(free, np.minimum(value, 1.0), 1.0), np.where(free, np.clip(rest, 0.0, 1.0), 0.0)

    def cells(self, nodes: Array) -> LossCells:
        """Return the masses between increasing loss nodes.

        Returns: the masses; what the inversion of the loss misses is charged to an infinite loss (C7).
        """
        t, miss = self.thresholds(nodes)
        finite = np.isfinite(t)
        value, rest = np.ones(t.size), np.zeros(t.size)
        value[finite], rest[finite] = self.curve(t[finite])
        absent = interval_masses(np.concatenate([[-np.inf], t, [np.inf]]))
        joined = np.maximum(masses_between(value, rest), 0.0)
        present = (1.0 - self.sample_rate) * absent + self.sample_rate * joined
        return cells_with_misses(nodes, present, absent, miss)


@dataclass(frozen=True)
class SecretLowerPair:
    """A pair that the law of ``bins`` dominates: chords of a trade-off curve that is nowhere too high."""

    bins: NormRatioBins
    noise_multiplier: float
    sample_rate: float
    slack: float = 0.0

    @cached_property
    def guide(self) -> SecretUpperPair:
        """The pair whose losses determine, roughly, where outcomes are merged: that is valid anywhere."""
        x, mass = self.bins.concentrate(0.0)
        with np.errstate(divide="ignore"):
            return SecretUpperPair(1.0 / (self.noise_multiplier * np.sqrt(x)), mass, self.sample_rate)

    def loss_range(self, tail: float) -> tuple[float, float]:
        """Return the range as in :class:`SecretUpperPair`."""
        return self.guide.loss_range(tail)

    def curve(self, t: Array) -> tuple[Array, Array]:
        """Return a lower bound of E Φ(μ - t), and 1 minus it; each without cancellation where it is small (C5)."""
        bins, sigma = self.bins, self.noise_multiplier
        mass, value, rest = np.append(bins.below, bins.mass), np.empty(t.size), np.empty(t.size)
        with np.errstate(divide="ignore", invalid="ignore"):
            largest = 1.0 / (sigma * np.sqrt(bins.left))
            for rows in row_blocks(t.size):
                at = t[rows, None]
                rate = np.maximum(largest * (largest - at) - 3.0, 0.0) / (2.0 * bins.left)
                x = np.concatenate([largest[:1] - at, 1.0 / (sigma * np.sqrt(bins.center(rate))) - at], axis=1)
                value[rows], rest[rows] = ndtr(x) @ mass, ndtr(-x) @ mass
        return value, rest

    def cells(self, nodes: Array) -> LossCells:
        """Return the masses between increasing loss nodes, after merging outcomes between thresholds."""
        target, (grid, ratio) = log_shift_ratio(nodes, self.sample_rate), self.guide.table
        t = np.unique(np.clip(np.interp(target[target > -np.inf], ratio, grid), self.guide.cap, FAR))
        absent = interval_masses(np.concatenate([[-np.inf], t, [np.inf]]))
        present = (1.0 - self.sample_rate) * absent + self.sample_rate * masses_between(*self.curve(t))
        return merged_cells(nodes, present, absent)


def merged_cells(nodes: Array, present: Array, absent: Array) -> LossCells:
    """Return the cells of outcomes with the given masses, merged so that the likelihood ratio is monotone."""
    keep = absent > 0
    q = np.maximum(absent[keep], 1e-300)
    ratio = np.maximum(isotonic_regression(present[keep] / q, q), 0.0)
    with np.errstate(divide="ignore"):
        place = np.searchsorted(nodes, np.log(ratio), side="right")
    p_cells, q_cells = (np.bincount(place, weights=masses, minlength=nodes.size + 1) for masses in (ratio * q, q))
    return LossCells(
        p_cells[1:-1], q_cells[1:-1], float(p_cells[0]), float(q_cells[0]), float(p_cells[-1]), float(q_cells[-1])
    )
