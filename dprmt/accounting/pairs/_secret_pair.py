r"""One step of Poisson-subsampled Gaussian noise whose sensitivity Z is random and stays secret.

N(0,1) against M = (1-q) N(0,1) + q E_Z N(Z/σ,1): one-dimensional, with a monotone likelihood ratio, so all
follows from the curve T(t) = E Φ(Z/σ - t). From above (C1) to (C7), from below (C5), §5 of
``docs/theory/randomized_clipping.md``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from scipy.special import log_ndtr, ndtr, ndtri

from dprmt.accounting.basics._numbers import LARGEST_LOSS, Array, isotonic_regression
from dprmt.accounting.laws import NormRatioBins
from dprmt.accounting.pairs._pairs import LossCells, interval_masses
from dprmt.accounting.pairs._public_pair import log_shift_ratio

ROWS_AT_A_TIME = 128
"""Thresholds per block: so few that they lie close together, and few shifts near any of them."""
SEEN = 38.5
"""Beyond so many standard deviations ndtr is 0."""
FULL = 8.5
"""Beyond so many ndtr is 1."""


def blocks(size: int) -> Iterator[slice]:
    """Iterate over consecutive rows, some at a time."""
    for start in range(0, size, ROWS_AT_A_TIME):
        yield slice(start, min(start + ROWS_AT_A_TIME, size))


def two_sides(difference: Array) -> tuple[Array, Array]:
    """Compute Φ(x) and Φ(-x), both without cancellation, by one evaluation."""
    tail = ndtr(-np.abs(difference))
    positive = difference > 0
    return np.where(positive, 1.0 - tail, tail), np.where(positive, tail, 1.0 - tail)


def suffix_sums(values: Array) -> Array:
    """Compute Σ_{i ≥ j} values[i] for j = 0 … n."""
    sums: Array = np.append(np.cumsum(values[::-1])[::-1], 0.0)
    return sums


def prefix_sums(values: Array) -> Array:
    """Compute Σ_{i < j} values[i] for j = 0 … n."""
    sums: Array = np.insert(np.cumsum(values), 0, 0.0)
    return sums


def normal_sums(t: Array, points: Array, weight: Array, sign: float) -> Array:
    """Return Σ weight · Φ(sign · (points - t)) for each t."""
    if points.size == 0:
        return np.zeros(t.size)
    x = np.subtract(points, t[:, None]) if sign > 0 else np.subtract(t[:, None], points)
    value: Array = ndtr(x, out=x) @ weight
    return value


def reach(least: float) -> float:
    """Find the standard deviations beyond which a law's normal tails are negligible in a sum of at least ``least``."""
    return min(-float(ndtri(1e-18 * least)), SEEN) if least > 0.0 else SEEN


_SQRT3 = float(np.sqrt(3.0))
_NEGLIGIBLE = 45.0  # a summand e^{-45} times the largest is lost to rounding
_MOST_NEWTON_STEPS = 12
_CAP_ROUNDS = 7


def _density(x: Array) -> Array:
    value: Array = np.exp(-(x**2) / 2) / np.sqrt(2 * np.pi)
    return value


def inflection_shift(t: Array) -> Array:
    """Compute μ*(t) = (t + √(t² + 12))/2: Φ(μ - t) is convex in the squared-norm ratio where μ ≤ μ*(t), concave beyond
    (C2).
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
        high_t = self.last_threshold(tail)
        high = float(self.log_ratio(np.array([high_t]))[0][0])
        high = high if high > -np.inf else LARGEST_LOSS  # beyond t = 1e18 nothing of it is resolved
        if self.sample_rate == 1.0:
            return float(self.log_ratio(ndtri(np.array([tail])))[0][0]), high
        low = float(np.log1p(-self.sample_rate))
        return low, float(np.logaddexp(low, np.log(self.sample_rate) + high))

    def last_threshold(self, tail: float) -> float:
        """Return a threshold beyond which P has mass at most ``tail`` if the sample takes part, and Q as well."""
        return upper_end(self.shift, self.mass, tail)

    @cached_property
    def _sums(self) -> _Sums:
        return _Sums.of(self.shift, self.mass)

    def _bounds(self, t: Array) -> tuple[Array, Array, Array]:
        """Compute μ*, and how many shifts are at most μ* and at most √3 μ*: the rest is frozen at y = 1/3."""
        star = inflection_shift(t)
        shift = self._sums.shift
        return star, np.searchsorted(shift, star, side="right"), np.searchsorted(shift, _SQRT3 * star, side="right")

    def _curve(self, t: Array) -> tuple[Array, Array]:
        """Compute T̂(t) of (C3), before the cap at 1, and 1 - T̂(t), each without cancellation where it is small."""
        sums = self._sums
        star, convex, tangent = self._bounds(t)
        value, rest = sums.convex_part(t, convex)
        weight = sums.mass_from[convex] - sums.mass_from[tangent]
        at, beside = two_sides(3.0 / star)
        rise = (
            star / 2 * _density(3.0 / star) * (weight - star**2 * (sums.ratio_from[convex] - sums.ratio_from[tangent]))
        )
        value += at * weight + rise + sums.frozen_from[tangent]
        rest += beside * weight - rise + sums.frozen_rest_from[tangent]
        return value, rest

    def log_ratio(self, t: Array) -> tuple[Array, Array]:
        """Log of the likelihood ratio -T̂'(t)/φ(t) of (C4), and its derivative."""
        sums = self._sums
        star, convex, tangent = self._bounds(t)
        weight = sums.mass_from[convex] - sums.mass_from[tangent]
        ratio = star**2 * (sums.ratio_from[convex] - sums.ratio_from[tangent])  # Σ m y
        factor = np.maximum(1.5 * ratio - 0.5 * weight, 0.0)  # Σ m (3y/2 - 1/2)
        with np.errstate(divide="ignore", invalid="ignore"):
            log_tangent = star * t - star**2 / 2 + np.log(factor)
            rate = star / (star**2 + 3) * (star**2 + 3 * np.where(factor > 0.0, ratio / factor, 0.0))
        value, slope = np.empty(t.size), np.empty(t.size)
        for rows in blocks(t.size):
            exponent, shift = sums.exponents(t[rows], convex[rows])
            peak = np.maximum(exponent.max(axis=1, initial=-np.inf), log_tangent[rows])
            peak = np.maximum(peak, -1e300)
            each = np.exp(exponent - peak[:, None])
            scale = np.exp(log_tangent[rows] - peak)
            total = each.sum(axis=1) + scale
            with np.errstate(divide="ignore", invalid="ignore"):
                value[rows] = np.log(total) + peak
                slope[rows] = (each @ shift + scale * rate[rows]) / total
        return value, slope

    def thresholds(self, nodes: Array, last: float | None = None) -> tuple[Array, Array]:
        """Return the t where the loss reaches each node, and by how much the loss misses the node there.

        ``last``: the largest threshold for which the bound has to hold, if it is not the last node's. Returns: t is
        -inf below all losses, and never below the cap of (C6) otherwise; ``miss`` is 0 for both.
        """
        target = log_shift_ratio(nodes, self.sample_rate)
        grid, table, slope = self._table(float(np.max(target, initial=0.0)))
        inside = (target > table[0]) & (target < table[-1])
        t, miss = np.full(target.size, grid[0]), np.zeros(target.size)
        t[target >= table[-1]] = grid[-1]
        t[inside], miss[inside] = self._solve(target[inside], grid, table, slope)
        t = np.maximum.accumulate(t)
        cap = self._cap(_limit(float(t[-1])) if last is None else last)
        t, miss = np.maximum(t, cap), np.where(t < cap, 0.0, miss)
        return np.where(np.isneginf(target), -np.inf, t), miss

    def _table(self, highest: float) -> tuple[Array, Array, Array]:
        """Return thresholds to beyond the ``highest`` log ratio, 2% apart where they are large; the ratio's log and
        slope.
        """
        top = min(float(self.shift.max()), _limit(float(np.sqrt(2 * max(highest, 0.0))))) + 80.0
        if top not in self._tables:
            count = max(int(np.ceil(np.log(top / 40.0) / 0.02)), 1)
            grid = np.concatenate([np.linspace(-40.0, 40.0, 321), np.geomspace(40.0, top, count + 1)[1:]])
            ratio, slope = self.log_ratio(grid)
            usable = np.isfinite(ratio)
            self._tables[top] = grid[usable], ratio[usable], slope[usable]
        return self._tables[top]

    @cached_property
    def _tables(self) -> dict[float, tuple[Array, Array, Array]]:
        return {}

    def _solve(self, target: Array, grid: Array, table: Array, slope: Array) -> tuple[Array, Array]:
        """Solve by Newton's method inside the cells of a table, from Hermite's interpolation of the inverse."""
        right = np.clip(np.searchsorted(table, target), 1, table.size - 1)
        low, high = grid[right - 1], grid[right]
        t = np.clip(_hermite(target, right, table, grid, slope), low, high)
        miss = np.empty(t.size)
        active = np.arange(t.size, dtype=np.int64)
        for _ in range(_MOST_NEWTON_STEPS):
            value, rate = self.log_ratio(t[active])
            error = value - target[active]
            miss[active] = np.abs(error)
            moving = np.abs(error) > 1e-12 * np.maximum(np.abs(target[active]), 1.0)
            with np.errstate(divide="ignore", invalid="ignore"):
                step = np.nan_to_num(error / rate, nan=0.0, posinf=0.0, neginf=0.0)
            active, step = active[moving], step[moving]
            if active.size == 0:
                break
            t[active] = np.clip(t[active] - step, low[active], high[active])
        else:
            miss[active] = np.abs(self.log_ratio(t[active])[0] - target[active])
        return t, miss

    def is_capped(self, t: float, last: float) -> bool:
        """Return whether T̂ is 1 or constant at a threshold, if it has to hold for thresholds up to ``last`` (C6)."""
        return t <= self._cap(last)

    def _cap(self, last: float) -> float:
        if last not in self._caps:
            self._caps[last] = self._found_cap(last)
        return self._caps[last]

    @cached_property
    def _caps(self) -> dict[float, float]:
        return {}

    def _found_cap(self, last: float) -> float:
        """Return the t below which T̂ is 1 or constant, so that only the loss log(1 - q) is left, with β of ``last``
        (C6).

        Returns: not less than that, and more by 1e-8 or so, where T̂ is then taken to be 1.
        """
        smallest = float(self.shift.min()) / _SQRT3
        low = max(smallest - 3.0 / smallest, -40.0)
        if not self._reaches_one(np.array([low]), last)[0]:
            return low
        high = self._sums.middle + 10.0
        if self._reaches_one(np.array([high]), last)[0]:
            high = float(self.shift.max()) + 40.0
        for _ in range(_CAP_ROUNDS):
            t = np.linspace(low, high, 33)
            place = int(np.count_nonzero(self._reaches_one(t, last)))
            low, high = float(t[max(place - 1, 0)]), float(t[min(place, 32)])
        return high

    def _reaches_one(self, t: Array, last: float) -> Array:
        _, rest = self._curve(t)
        reached: Array = rest + self.below - self._leftover(np.maximum(t, last)) <= 0.0
        return reached

    def _leftover(self, last: Array) -> Array:
        """Return β of (C3): what squared-norm ratios below the smallest atom add at thresholds up to ``last``."""
        value: Array = self.below * (1.0 + 0.2 * (2.0 + np.abs(last)))
        return value

    def capped_curve(self, t: Array, last: float) -> tuple[Array, Array]:
        """Return the bound T̂(t) for thresholds up to ``last``, and 1 - T̂(t)."""
        leftover = float(self._leftover(np.array([last]))[0])
        value, complement = self._curve(t)
        beside = complement + self.below - leftover
        free = t > self._cap(last)
        return np.where(free, np.minimum(value + leftover, 1.0), 1.0), np.where(free, np.clip(beside, 0.0, 1.0), 0.0)

    def cells(self, nodes: Array) -> LossCells:
        """Return the masses between increasing loss nodes.

        Returns: the masses; what the inversion of the loss misses is charged to an infinite loss (C7).
        """
        t, miss = self.thresholds(nodes)
        finite = np.isfinite(t)
        curve, rest = np.ones(t.size), np.zeros(t.size)
        curve[finite], rest[finite] = self.capped_curve(t[finite], _limit(float(t[-1])))
        return cells_between(nodes, t, miss, curve, rest, self.sample_rate)


def cells_between(nodes: Array, t: Array, miss: Array, curve: Array, rest: Array, sample_rate: float) -> LossCells:
    """Return the masses between loss nodes with thresholds ``t``, where T̂ is ``curve`` and 1 - T̂ is ``rest``; (C7)."""
    q = sample_rate
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
class _Sums:
    """Increasing shifts, and suffix sums over them of all that does not depend on the threshold."""

    shift: Array
    mass: Array
    log_mass: Array
    mass_before: Array
    mass_from: Array
    ratio_from: Array
    frozen_from: Array
    frozen_rest_from: Array
    middle: float

    @classmethod
    def of(cls, shift: Array, mass: Array) -> _Sums:
        order = np.argsort(shift)
        shift, mass = shift[order], mass[order]
        star = shift / _SQRT3
        at, beside = two_sides(3.0 / star)
        rise = star / 3 * _density(3.0 / star)
        with np.errstate(divide="ignore"):
            log_mass = np.log(mass)
        return cls(
            shift,
            mass,
            log_mass,
            prefix_sums(mass),
            suffix_sums(mass),
            suffix_sums(mass / shift**2),
            suffix_sums(mass * (at + rise)),
            suffix_sums(mass * (beside - rise)),
            float(shift[min(int(np.searchsorted(np.cumsum(mass), mass.sum() / 2)), shift.size - 1)]),
        )

    def convex_part(self, t: Array, count: Array) -> tuple[Array, Array]:
        """Return Σ m Φ(μ - t) and Σ m Φ(t - μ) over the first ``count`` shifts: the smaller one summed, the other from
        it.
        """
        value, rest, whole = np.empty(t.size), np.empty(t.size), self.mass_before[count]
        for rows in blocks(t.size):
            beyond = t[rows] >= self.middle
            if beyond.all():
                value[rows] = self._above(t[rows], count[rows])
                rest[rows] = whole[rows] - value[rows]
                continue
            rest[rows] = self._below(t[rows], count[rows])
            value[rows] = whole[rows] - rest[rows]
            if beyond.any():
                value[rows] = np.where(beyond, self._above(t[rows], count[rows]), value[rows])
        return value, rest

    def _above(self, t: Array, count: Array) -> Array:
        lowest, highest = float(t.min()), float(t.max())
        seen = reach(float(self.mass_from[np.searchsorted(self.shift, highest)]) / 2)
        first, last = np.searchsorted(self.shift, [lowest - seen, highest + FULL])
        last = min(int(last), int(count.max()))
        beyond: Array = self.mass_from[np.minimum(last, count)] - self.mass_from[count]
        return beyond + self._masked(t, count, min(int(first), last), last, 1.0)

    def _below(self, t: Array, count: Array) -> Array:
        lowest, highest = float(t.min()), float(t.max())
        seen = reach(float(self.mass_before[np.searchsorted(self.shift, lowest)]) / 2)
        first, last = np.searchsorted(self.shift, [lowest - FULL, highest + seen])
        last = min(int(last), int(count.max()))
        first = min(int(first), last)
        before: Array = self.mass_before[np.minimum(first, count)]
        return before + self._masked(t, count, first, last, -1.0)

    def _masked(self, t: Array, count: Array, first: int, last: int, sign: float) -> Array:
        """Return sums over the shifts from ``first`` to ``last``, of those the first ``count``."""
        always = min(max(int(count.min()), first), last)
        value = normal_sums(t, self.shift[first:always], self.mass[first:always], sign)
        if always < last:
            x = sign * (self.shift[always:last] - t[:, None])
            mass = np.where(np.arange(always, last, dtype=np.int64) < count[:, None], self.mass[always:last], 0.0)
            value += (ndtr(x, out=x) * mass).sum(axis=1)
        return value

    def exponents(self, t: Array, count: Array) -> tuple[Array, Array]:
        """Compute log m e^{μt - μ²/2} for the first ``count`` shifts that matter anywhere in the block."""
        nearest = np.clip(np.searchsorted(self.shift, t), 0, np.maximum(count - 1, 0))
        distance = (self.shift[nearest] - t) ** 2 - 2 * self.log_mass[nearest]
        reach = np.sqrt(float(distance.max()) + 2 * _NEGLIGIBLE)
        first, last = np.searchsorted(self.shift, [float(t.min()) - reach, float(t.max()) + reach])
        last = min(int(last), int(count.max()))
        some = slice(min(int(first), last), last)
        shift = self.shift[some]
        exponent = shift * t[:, None] - shift**2 / 2 + self.log_mass[some]
        return np.where(np.arange(some.start, some.stop, dtype=np.int64) < count[:, None], exponent, -np.inf), shift


def _limit(last: float) -> float:
    """Return a bound of the thresholds up to ``last``; one of few, so that what depends on it can be kept."""
    return float(2.0 ** np.ceil(np.log2(max(last, 1.0))))


def _hermite(target: Array, right: Array, table: Array, grid: Array, slope: Array) -> Array:
    """Return the inverse of a table with slopes, cubic in each cell."""
    left = right - 1
    width, rise = table[right] - table[left], grid[right] - grid[left]
    with np.errstate(divide="ignore", invalid="ignore"):
        u = (target - table[left]) / width
        start, end = width / slope[left] / rise, width / slope[right] / rise
        share = u * u * (3 - 2 * u) + start * u * (1 - u) ** 2 - end * u * u * (1 - u)
    share = np.where(np.isfinite(share) & (share >= 0.0) & (share <= 1.0), share, u)
    return grid[left] + share * rise


def upper_end(shift: Array, mass: Array, tail: float) -> float:
    """Return a t with E Φ(μ - t) ≤ ``tail`` (and Φ(-t) ≤ ``tail``)."""
    share = np.minimum(tail / (mass.size * mass), 0.5)
    return float(max(np.max(shift - ndtri(share)), -ndtri(tail)))


_FAR = 35.0  # thresholds beyond which Q-masses are kept as logarithms: Φ(-38.5) is 0


@dataclass(frozen=True)
class SecretLowerPair:
    """A pair that the law of ``bins`` dominates: chords of a trade-off curve that is nowhere too high."""

    bins: NormRatioBins
    noise_multiplier: float
    sample_rate: float
    slack: float = 0.0

    @cached_property
    def guide(self) -> SecretUpperPair:
        """The pair whose thresholds determine where outcomes are merged."""
        x, mass = self.bins.concentrate(0.0)
        return SecretUpperPair(self._shift(x), mass, self.sample_rate)

    def _shift(self, x: Array) -> Array:
        with np.errstate(divide="ignore", invalid="ignore"):
            value: Array = 1.0 / (self.noise_multiplier * np.sqrt(x))
        return value

    def loss_range(self, tail: float) -> tuple[float, float]:
        """Return the range as in :class:`SecretUpperPair`."""
        return self.guide.loss_range(tail)

    def curve(self, t: Array) -> tuple[Array, Array]:
        """Return a lower bound of E Φ(μ - t), and 1 minus it; each without cancellation where it is small (C5)."""
        bins = self._points
        value, rest = np.empty(t.size), np.empty(t.size)
        for rows in blocks(t.size):
            beyond = t[rows] >= bins.middle
            if beyond.all():
                value[rows] = bins.above(t[rows])
                rest[rows] = bins.whole - value[rows]
                continue
            rest[rows] = bins.beside(t[rows])
            value[rows] = bins.whole - rest[rows]
            if beyond.any():
                value[rows] = np.where(beyond, bins.above(t[rows]), value[rows])
        return value, rest

    @cached_property
    def _points(self) -> _Points:
        return _Points.of(self.bins, self._shift)

    def thresholds(self, nodes: Array) -> Array:
        """Choose outcomes that are distinguished; any choice is valid."""
        return self.guide.thresholds(nodes)[0]

    def cells(self, nodes: Array) -> LossCells:
        """Return the masses between increasing loss nodes, after merging outcomes between thresholds."""
        t = finite(self.thresholds(nodes))
        return cells_of_curve(nodes, t, *self.curve(t), self.sample_rate)


@dataclass(frozen=True)
class _Points:
    """Bins by falling shifts: at their left end, their mean, their right end; an atom for what lies below them."""

    at_left: Array
    at_mean: Array
    at_right: Array
    mass: Array
    to_right: Array
    before: Array
    after: Array
    middle: float

    @classmethod
    def of(cls, bins: NormRatioBins, shift: Callable[[Array], Array]) -> _Points:
        first = bins.left[:1]
        left, right = (np.concatenate([first, ends]) for ends in (bins.left, bins.right))
        mean, mass = np.concatenate([first, bins.mean]), np.concatenate([[bins.below], bins.mass])
        with np.errstate(divide="ignore", invalid="ignore"):
            to_right = np.clip((mean - left) / (right - left), 0.0, 1.0)
        at_left, at_right = shift(left), shift(right)
        before = prefix_sums(mass)
        middle = int(np.searchsorted(before[1:], before[-1] / 2))
        return cls(
            at_left,
            np.where(np.isfinite(mean), shift(mean), at_right),
            at_right,
            mass,
            np.where(np.isfinite(to_right), to_right, 1.0),
            before,
            suffix_sums(mass),
            float(at_left[min(middle, mass.size - 1)]),
        )

    @property
    def whole(self) -> float:
        """All mass."""
        return float(self.before[-1])

    def above(self, t: Array) -> Array:
        """Return Σ of lower bounds of E[Φ(μ - t); bin]: those far above t count in full, those far below not at all."""
        lowest, highest = float(t.min()), float(t.max())
        seen = reach(float(self.before[np.searchsorted(-self.at_left, -highest)]) / 2)
        first = int(np.searchsorted(-self.at_right, -(highest + FULL)))
        last = max(int(np.searchsorted(-self.at_left, seen - lowest)), first)
        return self._between(t, first, last, 1.0) + self.before[first]

    def beside(self, t: Array) -> Array:
        """Sum the mass not in :meth:`above` directly."""
        lowest, highest = float(t.min()), float(t.max())
        seen = reach(float(self.after[np.searchsorted(-self.at_left, -lowest)]) / 2)
        first = int(np.searchsorted(-self.at_right, -(highest + seen)))
        last = max(int(np.searchsorted(-self.at_left, FULL - lowest)), first)
        return self._between(t, first, last, -1.0) + self.after[last]

    def _between(self, t: Array, first: int, last: int, sign: float) -> Array:
        """Apply Jensen's inequality where all of a bin is convex, a chord where it is concave, else the right end."""
        star = inflection_shift(t)
        chords = int(np.searchsorted(-self.at_right, -float(star.max()), side="right"))
        means = int(np.searchsorted(-self.at_left, -float(star.min())))
        chords, means = min(max(chords, first), last), min(max(means, first), last)
        means = max(means, chords)
        value = normal_sums(t, self.at_mean[means:last], self.mass[means:last], sign)
        value += normal_sums(t, self.at_right[first:chords], (self.mass * self.to_right)[first:chords], sign)
        value += normal_sums(t, self.at_left[first:chords], (self.mass * (1.0 - self.to_right))[first:chords], sign)
        some = slice(chords, means)
        if chords == means:
            return value
        convex = self.at_left[some] <= star[:, None]
        concave = ~convex & (self.at_right[some] >= star[:, None])
        share = np.where(concave, self.to_right[some], 1.0)
        one = ndtr(sign * (np.where(convex, self.at_mean[some], self.at_right[some]) - t[:, None]))
        left = ndtr(sign * (self.at_left[some] - t[:, None]))
        result: Array = value + (share * one + (1.0 - share) * left) @ self.mass[some]
        return result


def finite(thresholds: Array) -> Array:
    """Return increasing ones."""
    return np.unique(thresholds[np.isfinite(thresholds)])


def cells_of_curve(nodes: Array, t: Array, value: Array, rest: Array, sample_rate: float) -> LossCells:
    """Return the masses between loss nodes of the pair whose curve joins the points at thresholds ``t``; ``rest`` is 1
    - value.
    """
    ends = np.concatenate([[-np.inf], t, [np.inf]])
    present, absent = masses_between(ends, value, rest, sample_rate)
    far = int(np.searchsorted(ends, _FAR))
    p_masses, q_masses, ratio = merged(present[:far], absent[:far])
    _merge_far(p_masses, q_masses, ratio, present[far:], _log_masses(ends[far:]))
    return by_node(nodes, np.array(p_masses), np.array(q_masses), np.array(ratio))


def masses_between(ends: Array, value: Array, rest: Array, sample_rate: float) -> tuple[Array, Array]:
    """Compute P- and Q-masses between thresholds, the first of which is -∞ and the last ∞, by a curve at the inner
    ones.
    """
    value, rest = np.concatenate([[1.0], value, [0.0]]), np.concatenate([[0.0], rest, [1.0]])
    step = np.where(value[:-1] < 0.5, -np.diff(value), np.diff(rest))
    absent = interval_masses(ends)
    return (1.0 - sample_rate) * absent + sample_rate * step, absent


def _log_masses(points: Array) -> Array:
    """Log of Φ(-points[i]) - Φ(-points[i + 1]), for points far above 0."""
    above = log_ndtr(-points)
    with np.errstate(divide="ignore", invalid="ignore"):
        share = np.where(np.isneginf(above[1:]), 0.0, np.exp(above[1:] - above[:-1]))
        value: Array = above[:-1] + np.log1p(-share)
    return value


def merged(present: Array, absent: Array) -> tuple[list[float], list[float], list[float]]:
    """Merge outcomes into a monotone likelihood ratio: P-masses, Q-masses, logs of the ratio."""
    keep = absent > 0
    weights = np.maximum(absent[keep], 1e-300)
    ratio = np.maximum(isotonic_regression(present[keep] / weights, weights), 0.0)
    with np.errstate(divide="ignore"):
        return (ratio * absent[keep]).tolist(), absent[keep].tolist(), np.log(ratio).tolist()


def _merge_far(p: list[float], q: list[float], ratio: list[float], present: Array, log_absent: Array) -> None:
    """Go on, in place, with outcomes whose Q-masses are given as logarithms."""
    logs = [math.log(mass) for mass in q]
    for mass, log_mass in zip(present.tolist(), log_absent.tolist(), strict=True):
        p.append(mass)
        logs.append(log_mass)
        ratio.append(_log_ratio(mass, log_mass))
        while len(p) > 1 and ratio[-1] <= ratio[-2]:
            p[-2:] = [p[-2] + p[-1]]
            logs[-2:] = [_log_sum(logs[-2], logs[-1])]
            ratio[-2:] = [_log_ratio(p[-1], logs[-1])]
    q[:] = [math.exp(log_mass) for log_mass in logs]


def _log_ratio(mass: float, log_mass: float) -> float:
    return math.log(mass) - log_mass if mass > 0.0 else -math.inf


def _log_sum(a: float, b: float) -> float:
    high, low = max(a, b), min(a, b)
    return high + math.log1p(math.exp(low - high)) if low > -math.inf else high


def by_node(nodes: Array, p: Array, q: Array, log_ratio: Array) -> LossCells:
    """Return cells of outcomes with the given masses and losses."""
    place = np.searchsorted(nodes, log_ratio, side="right")
    p_cells = np.bincount(place, weights=np.maximum(p, 0.0), minlength=nodes.size + 1)
    q_cells = np.bincount(place, weights=q, minlength=nodes.size + 1)
    return LossCells(
        p=p_cells[1:-1],
        q=q_cells[1:-1],
        p_below=float(p_cells[0]),
        q_below=float(q_cells[0]),
        p_above=float(p_cells[-1]),
        q_above=float(q_cells[-1]),
    )
