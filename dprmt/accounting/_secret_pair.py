r"""One step of Poisson-subsampled Gaussian noise whose sensitivity Z is random and stays secret.

N(0,1) against M = (1-q) N(0,1) + q E_Z N(Z/σ,1): one-dimensional, with a monotone likelihood ratio, so all
follows from the curve T(t) = E Φ(Z/σ - t). Section 5 of ``docs/theory/randomized_clipping.md``.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.special import ndtr, ndtri

from dprmt.accounting._cells import LossCells
from dprmt.accounting._gaussian_cells import ROWS_AT_A_TIME, interval_masses
from dprmt.accounting._norm_ratio import NormRatioBins
from dprmt.accounting._revealed_pair import log_shift_ratio
from dprmt.accounting._types import Array

_SQRT3 = float(np.sqrt(3.0))


def _density(x: Array) -> Array:
    value: Array = np.exp(-(x**2) / 2) / np.sqrt(2 * np.pi)
    return value


def inflection_shift(t: Array) -> Array:
    """μ*(t) = (t + √(t² + 12))/2: Φ(μ - t) is convex in the norm ratio where μ ≤ μ*(t), concave beyond (C2)."""
    root = np.sqrt(t**2 + 12.0)
    value: Array = np.where(t >= 0, (t + root) / 2, 6.0 / (root + np.abs(t)))
    return value


@dataclass(frozen=True)
class SecretUpperPair:
    """A pair that dominates every spectrum: T replaced by E f̂_t, f̂_t a convex majorant of Φ(μ - t).

    ``shift``, ``mass``: values of μ = Z/σ and their probabilities, from a law of the norm ratio spread outward.
    """

    shift: Array
    mass: Array
    sample_rate: float
    below: float = 0.0
    slack: float = 0.0

    def loss_range(self, tail: float) -> tuple[float, float]:
        """An interval outside which P has mass at most ``tail`` above and Q at most ``tail`` below."""
        high_t = _upper_end(self.shift, self.mass, tail)
        high = float(self.log_ratio(np.array([high_t]))[0][0])
        if self.sample_rate == 1.0:
            return float(self.log_ratio(ndtri(np.array([tail])))[0][0]), high
        low = float(np.log1p(-self.sample_rate))
        return low, float(np.logaddexp(low, np.log(self.sample_rate) + high))

    def _curve(self, t: Array) -> tuple[Array, Array]:
        """T̂(t) of (C3), before the cap at 1, and 1 - T̂(t); each without cancellation where it is small."""
        pairs = [self._curve_block(block) for block in _blocks(t)]
        return np.concatenate([value for value, _ in pairs]), np.concatenate([rest for _, rest in pairs])

    def _curve_block(self, t: Array) -> tuple[Array, Array]:
        mu, t = self.shift, t[:, None]
        star, y, _ = self._tangency(t)
        rise = star / 2 * _density(3.0 / star) * (1.0 - y)
        value = np.where(y < 1.0, ndtr(3.0 / star) + rise, ndtr(mu - t)) @ self.mass
        rest = np.where(y < 1.0, ndtr(-3.0 / star) - rise, ndtr(t - mu)) @ self.mass
        return value, rest

    def _tangency(self, t: Array) -> tuple[Array, Array, Array]:
        """μ* and y = (μ*/μ)² per (t, atom), both frozen at y = 1/3, and where they are frozen."""
        star = inflection_shift(t)
        y = np.minimum((star / self.shift) ** 2, 1.0)
        frozen = y < 1.0 / 3.0
        return np.where(frozen, self.shift / _SQRT3, star), np.maximum(y, 1.0 / 3.0), frozen

    def log_ratio(self, t: Array) -> tuple[Array, Array]:
        """Log of the likelihood ratio -T̂'(t)/φ(t) of (C4), and its derivative."""
        pairs = [self._log_ratio_block(block) for block in _blocks(t)]
        return np.concatenate([value for value, _ in pairs]), np.concatenate([slope for _, slope in pairs])

    def _log_ratio_block(self, t: Array) -> tuple[Array, Array]:
        t = t[:, None]
        star, y, frozen = self._tangency(t)
        tangent = y < 1.0
        tilt = np.where(tangent, star, self.shift)
        factor = np.where(tangent, 1.5 * y - 0.5, 1.0)
        rate = np.where(tangent, star / (star**2 + 3) * (factor * star**2 + 3 * y), self.shift * factor)
        with np.errstate(divide="ignore"):
            exponent = tilt * t - tilt**2 / 2 + np.log(self.mass)
        exponent = np.where(frozen, -np.inf, exponent)
        peak = np.maximum(exponent.max(axis=1, keepdims=True), -1e300)
        weight = np.exp(exponent - peak)
        total = (weight * factor).sum(axis=1)
        with np.errstate(divide="ignore", invalid="ignore"):
            value = np.log(total) + peak[:, 0]
            slope = (weight * rate).sum(axis=1) / total
        return value, slope

    def thresholds(self, nodes: Array) -> tuple[Array, Array]:
        """The t where the loss reaches each node, and by how much the loss misses the node there.

        Returns: t is -inf below all losses, and never below the cap of (C6) otherwise; ``miss`` is 0 for both.
        """
        target = log_shift_ratio(nodes, self.sample_rate)
        top, cap = float(self.shift.max()) + 80.0, self._cap(0.0)
        grid = np.concatenate([np.linspace(-40.0, 40.0, 400), np.geomspace(40.0, top, 200)[1:]])
        grid = np.append(cap, grid[grid > cap])
        table, _ = self.log_ratio(grid)
        usable = np.isfinite(table)
        grid, table = grid[usable], table[usable]
        t = np.interp(target, table, grid)
        for _ in range(3):
            value, slope = self.log_ratio(t)
            t = np.clip(t + np.clip((target - value) / slope, -0.5, 0.5), grid[0], grid[-1])
        inside = (target > table[0]) & (target < table[-1])
        with np.errstate(invalid="ignore"):
            miss = np.where(inside, np.abs(self.log_ratio(t)[0] - target), 0.0)
        t = np.maximum.accumulate(np.where(target <= table[0], cap, np.where(target >= table[-1], grid[-1], t)))
        if self.below > 0.0:
            cap = self._cap(float(t[-1]))
            t, miss = np.maximum(t, cap), np.where(t < cap, 0.0, miss)
        return np.where(np.isneginf(target), -np.inf, t), miss

    def _cap(self, last: float) -> float:
        """The t below which T̂ is 1 or constant, so that only the loss log(1 - q) is left, with β of ``last`` (C6)."""
        smallest = float(self.shift.min()) / _SQRT3
        low, high = max(smallest - 3.0 / smallest, -40.0), float(self.shift.max()) + 40.0
        if not self._reaches_one(np.array([low]), last)[0]:
            return low
        for _ in range(10):
            t = np.linspace(low, high, 33)
            place = int(np.count_nonzero(self._reaches_one(t, last)))
            low, high = float(t[max(place - 1, 0)]), float(t[min(place, 32)])
        return high

    def _reaches_one(self, t: Array, last: float) -> Array:
        _, rest = self._curve(t)
        reached: Array = rest + self.below - self._leftover(np.maximum(t, last)) <= 0.0
        return reached

    def _leftover(self, last: Array) -> Array:
        """β of (C3): what norm ratios below the smallest atom add at thresholds up to ``last``."""
        value: Array = self.below * (1.0 + 0.2 * (2.0 + np.abs(last)))
        return value

    def cells(self, nodes: Array) -> LossCells:
        """Masses between increasing loss nodes.

        Returns: the masses; what the inversion of the loss misses is charged to an infinite loss (C7).
        """
        q = self.sample_rate
        t, miss = self.thresholds(nodes)
        finite = np.isfinite(t)
        leftover = float(self._leftover(t[-1]))
        curve, rest = np.ones(t.size), np.zeros(t.size)
        value, complement = self._curve(t[finite])
        curve[finite] = np.minimum(value + leftover, 1.0)
        rest[finite] = np.clip(complement + self.below - leftover, 0.0, 1.0)
        absent = interval_masses(np.concatenate([[-np.inf], t, [np.inf]]))
        step = np.where(curve[:-1] < 0.5, -np.diff(curve), np.diff(rest))
        p = (1.0 - q) * absent[1:-1] + q * np.maximum(step, 0.0)
        missed = 2.0 * (miss[1:] ** 2 + miss[:-1] ** 2) / np.diff(nodes)
        return LossCells(
            p=p,
            q=absent[1:-1],
            p_below=float((1.0 - q) * absent[0] + q * rest[0]),
            q_below=float(absent[0] + absent[1:-1] @ missed),
            p_above=float((1.0 - q) * absent[-1] + q * curve[-1] + p @ missed),
            q_above=float(absent[-1]),
        )


@dataclass(frozen=True)
class SecretLowerPair:
    """A pair that the law of ``bins`` dominates: chords of a trade-off curve that is nowhere too high."""

    bins: NormRatioBins
    noise_multiplier: float
    sample_rate: float
    slack: float = 0.0

    def _guide(self) -> SecretUpperPair:
        x, mass = self.bins.concentrate(0.0)
        return SecretUpperPair(1.0 / (self.noise_multiplier * np.sqrt(x)), mass, self.sample_rate)

    def loss_range(self, tail: float) -> tuple[float, float]:
        """As in :class:`SecretUpperPair`."""
        return self._guide().loss_range(tail)

    def _curve(self, t: Array) -> tuple[Array, Array]:
        """A lower bound of E Φ(μ - t), and 1 minus it; each without cancellation where it is small (C5)."""
        pairs = [self._curve_block(block) for block in _blocks(t)]
        return np.concatenate([value for value, _ in pairs]), np.concatenate([rest for _, rest in pairs])

    def _curve_block(self, t: Array) -> tuple[Array, Array]:
        # Bin by bin: Jensen's inequality where convex, a chord where concave, else the right end.
        bins, sigma = self.bins, self.noise_multiplier
        with np.errstate(divide="ignore", invalid="ignore"):
            at_left, at_right, at_mean = (1.0 / (sigma * np.sqrt(x)) for x in (bins.left, bins.right, bins.mean))
            share = (bins.mean - bins.left) / (bins.right - bins.left)
        star, t = inflection_shift(t)[:, None], t[:, None]
        convex = (at_left <= star) & np.isfinite(at_mean)
        concave = (at_right >= star) & np.isfinite(share) & ~convex
        first = np.where(convex, at_mean, at_right)
        share = np.clip(np.where(concave, share, 1.0), 0.0, 1.0)
        lowest = at_left[0]

        def expectation(sign: float) -> Array:
            inner = share * ndtr(sign * (first - t)) + (1.0 - share) * ndtr(sign * (at_left - t))
            return inner @ bins.mass + bins.below * ndtr(sign * (lowest - t[:, 0]))

        return expectation(1.0), expectation(-1.0)

    def cells(self, nodes: Array) -> LossCells:
        """Masses between increasing loss nodes, after merging outcomes between thresholds."""
        q = self.sample_rate
        t, _ = self._guide().thresholds(nodes)
        t = np.unique(t[np.isfinite(t)])
        value, rest = self._curve(t)
        value, rest = np.concatenate([[1.0], value, [0.0]]), np.concatenate([[0.0], rest, [1.0]])
        step = np.where(value[:-1] < 0.5, -np.diff(value), np.diff(rest))
        absent = interval_masses(np.concatenate([[-np.inf], t, [np.inf]]))
        present = (1.0 - q) * absent + q * step
        return _regroup(nodes, present, absent)


def _blocks(t: Array) -> list[Array]:
    return np.split(t, range(ROWS_AT_A_TIME, t.size, ROWS_AT_A_TIME))


def _regroup(nodes: Array, present: Array, absent: Array) -> LossCells:
    """Merge outcomes into a monotone likelihood ratio (a coarsening), then by loss node."""
    from scipy.optimize import isotonic_regression  # on use: a third of the room's import time

    keep = absent > 0
    weights = np.maximum(absent[keep], 1e-300)
    ratio = np.maximum(isotonic_regression(present[keep] / weights, weights=weights).x, 0.0)
    p, q = ratio * absent[keep], absent[keep]
    with np.errstate(divide="ignore"):
        place = np.searchsorted(nodes, np.log(ratio), side="right")
    p_cells = np.bincount(place, weights=p, minlength=nodes.size + 1)
    q_cells = np.bincount(place, weights=q, minlength=nodes.size + 1)
    return LossCells(
        p=p_cells[1:-1],
        q=q_cells[1:-1],
        p_below=float(p_cells[0]),
        q_below=float(q_cells[0]),
        p_above=float(p_cells[-1]),
        q_above=float(q_cells[-1]),
    )


def _upper_end(shift: Array, mass: Array, tail: float) -> float:
    """A t with E Φ(μ - t) ≤ ``tail`` (and Φ(-t) ≤ ``tail``)."""
    share = np.minimum(tail / (mass.size * mass), 0.5)
    return float(max(np.max(shift - ndtri(share)), -ndtri(tail)))
