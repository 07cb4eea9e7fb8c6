r"""The law of a sum of independent likelihood ratios, with a certified error for every point.

One FFT on an integer grid for the many small ratios, direct sums for a few large ones. For many copies the transform's
distance from 1 must be accurate relative to itself. The FFT of the masses does not give this, but the FFT of the put
and call function does: (R2) to (R6) of ``docs/theory/random_allocation.md``.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray
from scipy import fft
from scipy.special import bdtrc, comb

from dprmt.accounting.basics._numbers import Array, isotonic_regression
from dprmt.accounting.pairs._discretization import drops
from dprmt.accounting.pairs._pairs import StepPair

_UNDERFLOW = 1e-290  # Q-mass below which the ratio is unknown, so that the P-mass counts as lost


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
        """Return the atoms that ``keep`` selects, with the same ``lost``."""
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
        """Compute the conditional mean of V in each cell, inside the cell."""
        left, right = self.nodes[:-1], self.nodes[1:]
        with np.errstate(divide="ignore", invalid="ignore"):
            mean = np.where(self.mass > 0, self.moment / self.mass, left)
        return np.clip(mean, left, right)


def ratio_cells(pair: StepPair, nodes: Array) -> RatioCells:
    """Return cells of the ratio of an unsampled step's pair."""
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
    """Move the law of V inward, onto the nodes, keeping its mean (R3)."""
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
    """Find drops at the nodes that leave a convex minorant with the same mass and mean, without masses that allow
    none.
    """
    while True:
        drop = drops(mass * width, share)
        crossed = drop > _gap_to_tangent(mass, width, share) * (1.0 + 1e-9)  # neither end has space left
        beside = (crossed[1:] | crossed[:-1]) & (mass > 0)
        if not beside.any():
            return mass, drop
        mass = np.where(beside, 0.0, mass)


def _gap_to_tangent(mass: Array, width: Array, share: Array) -> Array:
    """Compute how far the interpolated put function of the spread law lies above max(0, its last tangent), at each
    node.
    """
    to_right = mass * share
    dots = np.append(mass - to_right, 0.0) + np.append(0.0, to_right)
    puts = np.append(0.0, np.cumsum(np.cumsum(dots)[:-1] * width))
    calls = np.append(np.cumsum(np.cumsum(dots[::-1])[:-1] * width[::-1])[::-1], 0.0)
    return np.minimum(puts, calls)


def _convex(slope: Array, width: Array) -> Array:
    """Return slopes of the greatest convex minorant, none below 0."""
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


_EPS = float(np.finfo(np.float64).eps)
_TILT_STEP = 7.0  # standard scores between the centres of tilted transforms
_LOG_NOTHING = -120.0  # powers below it are left out of a transform, and charged
_LONGER, _LONGEST = 4, 2**20  # largest useful length of a tilted transform, relative to the window and in points
_FEW_COPIES = 64  # whose powers are products of the values: more need their distance from the total
_LOG_FOLDED = -50.0  # mass outside the window of a tilted transform


@dataclass(frozen=True)
class GridMeasure:
    """A finite measure on the integers.

    Attributes
    ----------
    index : ndarray of int64, shape (n,)
        Increasing, ≥ 0.
    mass : ndarray, shape (n,)
        Non-negative.
    """

    index: NDArray[np.int64]
    mass: Array

    def total(self) -> float:
        """Return all of the mass."""
        return math.fsum(self.mass)

    def log_total(self) -> float:
        """Return its logarithm, off by a rounding of itself: near 1 not by one of the total, which many copies
        multiply.
        """
        total = self.total()
        return math.log1p(math.fsum([*self.mass, -1.0])) if total > 0.5 else math.log(total)


@dataclass(frozen=True)
class GridWindow:
    """Consecutive integers.

    Attributes
    ----------
    first, size : int
        The first of them and how many.
    """

    first: int
    size: int


def chernoff_window(measure: GridMeasure, copies: int, log_outside: float, log_weight: float) -> GridWindow:
    """Find integers outside which the sum of ``copies`` has little mass on either side, and little first moment.

    ``log_weight``: above, E[sum; outside] · e^{log_weight} is kept as small as the mass.
    """
    center = _mean(measure)
    bounds = []
    for sign in (1.0, -1.0):
        theta = sign * _tilts(measure, copies)
        cumulant, mean = _cumulants(measure, copies, theta)
        log_moment = np.zeros(theta.size)
        if sign > 0:
            log_moment = np.maximum(np.log(np.maximum(mean + copies * center, 1e-300)) + log_weight, 0.0)
        bounds.append(float(np.min((cumulant + log_moment - log_outside) / np.abs(theta))))
    first = max(int(np.floor(copies * center - bounds[1])) - 1, copies * int(measure.index[0]))
    last = min(int(np.ceil(copies * center + bounds[0])) + 1, copies * int(measure.index[-1]))
    return GridWindow(first, max(last - first + 1, 16))


def _mean(measure: GridMeasure) -> float:
    return float(measure.mass @ measure.index) / measure.total()


def _tilts(measure: GridMeasure, copies: int) -> Array:
    """List candidates for |θ|, around the inverse deviation of the sum."""
    variance = float(measure.mass @ (measure.index - _mean(measure)) ** 2) / measure.total()
    tilts: Array = np.exp(np.linspace(-9.0, 6.0, 91)) / max(float(np.sqrt(copies * variance)), 1e-3)
    return tilts


def _cumulants(measure: GridMeasure, copies: int, theta: Array) -> tuple[Array, Array]:
    """Log E e^{θS} of the centred sum S, mass included, and the mean of S under that tilt."""
    occupied = measure.mass > 0
    offset = measure.index[occupied] - _mean(measure)
    exponent = np.multiply.outer(theta, offset) + np.log(measure.mass[occupied])
    peak = exponent.max(axis=1)
    weight = np.exp(exponent - peak[:, None])
    sums = weight.sum(axis=1)
    return copies * (np.log(sums) + peak), copies * (weight @ offset) / sums


class GridSums:
    """Sums of independent copies of a measure on the integers; all numbers of copies share their transforms (R5)."""

    def __init__(self, measure: GridMeasure) -> None:
        used = measure.mass > 0.0  # otherwise an index without mass could be a tilt's peak, and all others would vanish
        self._measure = measure if used.all() else GridMeasure(measure.index[used], measure.mass[used])
        self._tilts: dict[float, tuple[GridMeasure, float, float]] = {}
        self._transforms: dict[float, Transform] = {}

    def of(self, copies: int, log_outside: float, weight: float, enough: float) -> tuple[int, Array, Array]:
        """Return the masses of the sum of ``copies``, and a bound on the error of each.

        ``log_outside``: logarithm of what may lie outside the grid on each side: mass, and E[sum; outside] · ``weight``
        above.
        ``enough``: if the errors' sum is below it, with ``weight`` and without, no tilted transform is computed.
        """
        window = _fast(chernoff_window(self._measure, copies, log_outside, math.log(weight)))
        mass, rounding = self._transform(0.0, self._measure, window.size).power(copies, window)
        error = np.full(mass.size, rounding + 2.0 * np.exp(log_outside))
        points = window.first + np.arange(window.size, dtype=np.int64)
        if float(error @ np.maximum(points * weight, 1.0)) <= enough:
            return window.first, mass, error
        for number in range(1, int(np.sqrt(-2 * log_outside) / _TILT_STEP) + 1):
            for sign in (1.0, -1.0):
                self._improve(mass, error, window, copies, sign * number * _TILT_STEP)
        return window.first, mass, error

    def _transform(self, score: float, measure: GridMeasure, size: int) -> Transform:
        """Return the transform of a tilted measure, on at least so many points."""
        if score not in self._transforms or self._transforms[score].size < size:
            self._transforms[score] = Transform(measure, size)
        return self._transforms[score]

    def _tilted(self, copies: int, score: float) -> tuple[GridMeasure, float, float]:
        """Return the measure tilted by e^{θk} and normalised, the logarithm of its total, and θ.

        θ puts the sum of ``copies`` where Chernoff's exponent is score²/2; fewer copies take the same θ.
        """
        if score not in self._tilts:
            measure = self._measure
            candidates = math.copysign(1.0, score) * _tilts(measure, copies)
            cumulant, mean = _cumulants(measure, copies, candidates)
            reached = candidates * mean - cumulant + copies * np.log(measure.total())
            tilt = float(candidates[min(int(np.searchsorted(reached, score**2 / 2)), candidates.size - 1)])
            exponents = tilt * (measure.index - round(_mean(measure)))
            peak = float(exponents.max())
            weights = np.exp(exponents - peak) * measure.mass
            total = float(weights.sum())
            self._tilts[score] = GridMeasure(measure.index, weights / total), math.log(total) + peak, tilt
        return self._tilts[score]

    def _improve(self, mass: Array, error: Array, window: GridWindow, copies: int, score: float) -> None:
        """Replace masses by the transform of the tilted measure where that is more accurate."""
        tilted, log_total, tilt = self._tilted(copies, score)
        span = _fast(chernoff_window(tilted, copies, _LOG_FOLDED, -np.inf))
        # Of a few large ratios it may be spread far beyond where the sum is wanted.
        if span.size > min(_LONGER * window.size, _LONGEST):
            return
        low, high = max(window.first, span.first), min(window.first + window.size, span.first + span.size)
        if low >= high:
            return
        found, rounding = self._transform(score, tilted, span.size).power(copies, span)
        points, center = np.arange(low, high, dtype=np.int64), round(_mean(self._measure))
        log_factor = copies * log_total - tilt * (points - copies * center)
        factor = np.exp(np.minimum(log_factor, 700.0))
        found = found[low - span.first : high - span.first]
        # Each tilted mass is off by some roundings of its exponent, and so is the factor.
        largest = float(np.abs(tilt * (self._measure.index - center)).max())
        relative = 8 * _EPS * (copies * (2.0 + largest) + np.abs(log_factor))
        known = factor * (rounding + 2.0 * np.exp(_LOG_FOLDED) + relative * found)
        here = slice(low - window.first, high - window.first)
        better = known < error[here]
        mass[here] = np.where(better, factor * found, mass[here])
        error[here] = np.where(better, known, error[here])


def _fast(window: GridWindow) -> GridWindow:
    return GridWindow(window.first, int(fft.next_fast_len(window.size, real=True)))


class Transform:
    """The transform of a measure on so many points, around an integer near its mean."""

    def __init__(self, measure: GridMeasure, size: int) -> None:
        self.size, self._measure = size, measure
        self._total, self._center = measure.total(), round(_mean(measure))
        self._offset = measure.index - self._center
        self._plain = fft.rfft(np.bincount(self._place(self._offset), weights=measure.mass, minlength=size))

    def _place(self, index: NDArray[np.int64]) -> NDArray[np.intp]:
        return (index % self.size).astype(np.intp)

    def power(self, copies: int, window: GridWindow) -> tuple[Array, float]:
        """Return the masses of the sum of ``copies`` on the window, and a bound on the error of each; what lies
        outside is added in, modulo the transform's size.
        """
        # Most frequencies leave nothing of the power.
        unit = _unit(self.size)
        modulus = np.abs(self._plain)
        kept = np.flatnonzero(modulus + unit * self._total > math.exp(_LOG_NOTHING / copies))
        if copies <= _FEW_COPIES:
            power, power_error = self._power_of_few(copies, modulus[kept], kept)
        else:
            power, power_error = self._power_of_many(copies, kept)
        error = 2.0 * float(np.sum(power_error + unit * np.abs(power))) / self.size + 2.0 * np.exp(_LOG_NOTHING)
        spectrum = np.zeros(self._plain.size, dtype=np.complex128)
        spectrum[kept] = power
        mass = np.roll(fft.irfft(spectrum, self.size), copies * self._center - window.first)[: window.size]
        return np.maximum(mass, 0.0), error

    def _power_of_few(self, copies: int, modulus: Array, kept: NDArray[np.intp]) -> tuple[Array, Array]:
        """Return powers of the values by multiplying, and their errors."""
        power, square, left = np.ones(kept.size), self._plain[kept], copies
        while left:
            power = power * square if left & 1 else power
            left >>= 1
            square = square * square if left else square
        plain_error = _unit(self.size) * self._total
        rest = (modulus + plain_error) ** (copies - 1)
        return power, copies * (plain_error + 8 * _EPS * modulus) * rest

    def _power_of_many(self, copies: int, kept: NDArray[np.intp]) -> tuple[Array, Array]:
        """Return powers of the values, by their logarithms, and their errors."""
        total, plain_error = self._total, _unit(self.size) * self._total
        distance, distance_error = self._distance_from_total(kept)
        # Use the more accurate of the distance from ``total`` and the value.
        distance = np.where(distance_error < plain_error, distance, self._plain[kept] - total)
        error_of_one = np.minimum(distance_error, plain_error)
        log_of_rest = complex_log1p(distance / total)
        log_total = self._measure.log_total()
        log_transform = log_total + log_of_rest
        power = np.exp(copies * log_transform)
        error = copies * error_of_one * np.exp((copies - 1) * np.log(np.exp(log_transform.real) + error_of_one))
        error += 8 * _EPS * (2.0 + copies * (np.abs(log_of_rest) + abs(log_total))) * np.abs(power)
        return power, error

    def _distance_from_total(self, frequencies: NDArray[np.intp]) -> tuple[Array, Array]:
        """Return Σ mass · (e^{-iω offset} - 1), by (e^{-iω} - 1)(m + (e^{-iω} - 1) ĝ), and its error; small ω best."""
        mass, omega = self._measure.mass, 2.0 * np.pi * frequencies / self.size
        shift = -2.0 * np.sin(omega / 2.0) ** 2 - 1j * np.sin(omega)  # e^{-iω} - 1 without cancellation
        curve, curve_sum = self._curve
        distance = shift * (float(mass @ self._offset) + shift * curve[frequencies])
        sums = 4 * mass.size * _EPS
        error = sums * float(mass @ np.abs(self._offset)) + np.abs(shift) * (_unit(self.size) + sums) * curve_sum
        return distance, np.abs(shift) * error + 8 * _EPS * np.abs(distance)

    @cached_property
    def _curve(self) -> tuple[Array, float]:
        """Compute the transform ĝ of the put and call function, and the function's sum."""
        low, curve = _put_call_curve(self._offset, self._measure.mass)
        place = self._place(low + np.arange(curve.size, dtype=np.int64))
        return fft.rfft(np.bincount(place, weights=curve, minlength=self.size)), float(curve.sum())


def _unit(size: int) -> float:
    """Bound the error of one output of an FFT of numbers whose moduli sum to 1: (F2) of the theory of randomized
    clipping.
    """
    return 8 * _EPS * float(np.log2(size))


def _put_call_curve(offset: NDArray[np.int64], mass: Array) -> tuple[int, Array]:
    """Compute E(offset - l - 1)+ at l = 0, 1, … and E(l + 1 - offset)+ at l = …, -2, -1; return the first l, and the
    values.
    """
    low, high = min(int(offset[0]), 0), max(int(offset[-1]), 0)
    knots = np.union1d(offset, [low, 0, high])
    weight = np.bincount(np.searchsorted(knots, offset), weights=mass, minlength=knots.size)
    gaps = np.diff(knots)
    at_most, beyond = np.cumsum(weight)[:-1], np.cumsum(weight[::-1])[::-1][1:]
    puts = np.append(0.0, np.cumsum(gaps * at_most))
    calls = np.append(np.cumsum((gaps * beyond)[::-1])[::-1], 0.0)
    where = np.arange(low, high, dtype=np.int64) + 1
    return low, np.where(where <= 0, np.interp(where, knots, puts), np.interp(where, knots, calls))


def complex_log1p(value: Array) -> Array:
    """Compute log(1 + z), relatively accurate for small z; numpy's is not in its real part."""
    x, y = value.real, value.imag
    with np.errstate(divide="ignore"):
        real = 0.5 * np.log1p(np.maximum(x * (2.0 + x) + y**2, -1.0))
    real = np.maximum(real, -800.0)
    result: Array = real + 1j * np.arctan2(y, 1.0 + x)
    return result


_MOST_LARGE = 12
_BESIDE_ONE, _BESIDE_SEVERAL = 0.003, 0.03  # mesh of small ratios beside large ones, in deviations of theirs
_FEW_NODES = 800  # nodes for several large summands
_OUTSIDE = 1e-9  # mass outside the window of the FFT, relative to the tail that may be charged
_ENOUGH = 3.0  # rounding, relative to the same, below which one FFT will do


@dataclass(frozen=True)
class SumLaw:
    """A law of W.

    Attributes
    ----------
    ratio, mass : ndarray, shape (n,)
        Values of W and their Q-masses.
    lost : float
        P-mass to charge to an infinite loss.
    unclear : float
        Q-mass to charge to a loss of -∞.
    """

    ratio: Array
    mass: Array
    lost: float
    unclear: float


@dataclass(frozen=True)
class _Charged:
    """Atoms of the sum with a number of large summands, and what rounding and truncation may have misplaced."""

    law: RatioLaw
    lost: float
    unclear: float


def sum_from_above(law: RatioLaw, on_grid: int, mesh: float, copies: int, tail: float) -> SumLaw:
    """Return a law of W that is never more private, for a law of V that is not.

    ``on_grid``: number of atoms that are summed by FFT; the others are the large summands.
    """
    small, large = _split(law, on_grid, mesh)
    large_mass, large_moment = float(large.mass.sum()), float(large.mass @ large.ratio)
    small_moment = float(small.mass @ small.index) * mesh
    most = _most_large(copies, large_mass, large_moment, tail)
    parts = _parts(small, large, mesh, copies, most, tail, above=True)
    beyond = _more_than(most, copies, large_mass)
    lost = law.lost + sum(part.lost for part in parts)
    if beyond > 0:  # to W = 0: its P-mass, E[V_1; more than ``most`` large summands], is lost
        lost += small_moment * _more_than(most, copies - 1, large_mass)
        lost += large_moment * _more_than(most - 1, copies - 1, large_mass)
    unclear = beyond + sum(part.unclear for part in parts)
    return _joined(parts, copies, lost, unclear)


def sum_from_below(law: RatioLaw, on_grid: int, mesh: float, copies: int, tail: float) -> SumLaw:
    """Return a law of W that is never less private, for a law of V that is not. Arguments as in
    :func:`sum_from_above`.
    """
    small, large = _split(law, on_grid, mesh)
    large_mass, large_moment = float(large.mass.sum()), float(large.mass @ large.ratio)
    most = _most_large(copies, large_mass, large_moment, tail)
    return _joined(_parts(small, large, mesh, copies, most, tail, above=False), copies, 0.0, 0.0)


def _split(law: RatioLaw, on_grid: int, mesh: float) -> tuple[GridMeasure, RatioLaw]:
    index = np.rint(law.ratio[:on_grid] / mesh).astype(np.int64)
    large = np.arange(law.mass.size, dtype=np.int64) >= on_grid
    return GridMeasure(index, law.mass[:on_grid]), law.part(large & (law.mass > 0))


def _joined(parts: list[_Charged], copies: int, lost: float, unclear: float) -> SumLaw:
    ratio = np.concatenate([part.law.ratio for part in parts]) / copies
    mass = np.concatenate([part.law.mass for part in parts])
    keep = mass > 0
    return SumLaw(ratio[keep], mass[keep], min(lost, 1.0), min(unclear, 1.0))


def _most_large(copies: int, large_mass: float, large_moment: float, tail: float) -> int:
    """Find the number of large ratios beyond which the P-mass is a hundredth of ``tail``."""
    if large_mass == 0.0:
        return 0
    for number in range(min(_MOST_LARGE, copies)):
        rest = _more_than(number, copies - 1, large_mass)
        if rest + large_moment * _more_than(number - 1, copies - 1, large_mass) <= 1e-2 * tail:
            return number
    return min(_MOST_LARGE, copies)


def _more_than(number: int, copies: int, probability: float) -> float:
    """Compute P(a binomial variable exceeds ``number``)."""
    if number < 0 or number >= copies:
        return 1.0 if number < 0 else 0.0
    return float(bdtrc(number, copies, probability))


def _parts(
    small: GridMeasure, large: RatioLaw, mesh: float, copies: int, most: int, tail: float, above: bool
) -> list[_Charged]:
    """Return the sums with j = 0, 1, … large summands: C(t, j) times t - j small ones convolved with j large ones."""
    parts, sums, coarse, coarse_mesh = [], GridSums(small), small, mesh
    several: RatioLaw | None = None
    few = _on_fewer_nodes(large, above) if most > 1 else large  # two together are rare enough for coarser nodes
    for number in range(most + 1):
        if number == 2 or (number == 1 and above):  # from below a coarser grid loses mass, which one large ratio shows
            coarse, coarse_mesh = _on_coarser_grid(small, mesh, _BESIDE_ONE if number == 1 else _BESIDE_SEVERAL, above)
            sums = GridSums(coarse)
        if number == 1:
            several = large
        elif number > 1:
            several = _convolved(few if several is None or number == 2 else several, few, above, 400)
        ways = float(comb(copies, number))
        share = ways * float(several.mass.sum()) if several is not None else 1.0
        enough = _ENOUGH * tail / max(share, 1e-300)
        small_sum, outside = _small_law(sums, coarse, coarse_mesh, copies - number, copies, tail, enough, above)
        parts.append(_with_large(small_sum, outside, several, ways, copies, above))
    return parts


def _on_coarser_grid(small: GridMeasure, mesh: float, spacing: float, above: bool) -> tuple[GridMeasure, float]:
    """Regroup small ratios on a mesh of so many of their deviations, if it is coarser; also this mesh."""
    mean = float(small.mass @ small.index) / max(small.total(), 1e-300)
    deviation = math.sqrt(float(small.mass @ (small.index - mean) ** 2) / max(small.total(), 1e-300))
    factor = int(spacing * deviation)
    if factor < 2:
        return small, mesh
    index = np.union1d(small.index // factor, -(-small.index // factor))
    nodes = index * (factor * mesh)
    place = np.minimum(np.searchsorted(index * factor, small.index, side="right") - 1, nodes.size - 2)
    cells = _cells_of(RatioLaw(small.index * mesh, small.mass, 0.0), place, nodes)
    law = spread(cells) if above else never_less_private(cells)
    return GridMeasure(index, law.mass), factor * mesh


def _small_law(
    sums: GridSums,
    small: GridMeasure,
    mesh: float,
    copies_left: int,
    copies: int,
    tail: float,
    enough: float,
    above: bool,
) -> tuple[RatioLaw, float]:
    """Sum of ``copies_left`` small summands, no mass too small (or too large); what may lie outside the grid."""
    if not copies_left or not small.mass.any():  # of a law from below on too wide a mesh nothing is left
        return RatioLaw(np.zeros(1), np.full(1, float(not copies_left)), 0.0), 0.0
    log_outside = float(np.log(tail * _OUTSIDE))
    first, mass, error = sums.of(copies_left, log_outside, mesh / copies, enough)
    ratio = (first + np.arange(mass.size, dtype=np.float64)) * mesh
    return RatioLaw(ratio, mass + error if above else np.maximum(mass - error, 0.0), 0.0), 2.0 * tail * _OUTSIDE


def _with_large(
    small_sum: RatioLaw, outside: float, large: RatioLaw | None, ways: float, copies: int, above: bool
) -> _Charged:
    """Add large summands to the sum of small ones, outside which ``outside`` bounds the Q-mass, and the P-mass without
    large summands.
    """
    if large is None:
        return _Charged(small_sum, outside, outside)
    law = _convolved(_coarser(small_sum, above), large, above, 2000)
    large_mass, large_moment = float(large.mass.sum()), float(large.mass @ large.ratio)
    lost = ways * outside * (large_mass + large_moment / copies)
    return _Charged(RatioLaw(law.ratio, ways * law.mass, 0.0), lost, ways * outside * large_mass)


def _coarser(law: RatioLaw, above: bool) -> RatioLaw:
    """Return a law on a few hundred atoms, as far apart as what is added to it allows."""
    total = float(law.mass.sum())
    if law.mass.size < 400 or total <= 0.0:
        return law
    center = float(law.mass @ law.ratio) / total
    deviation = max(float(np.sqrt(law.mass @ (law.ratio - center) ** 2 / total)), 1e-300)
    offsets = np.concatenate([np.linspace(0.0, 6.0, 61), np.geomspace(6.0, 1e6, 240)[1:]]) * deviation
    nodes = center + np.concatenate([-offsets[::-1], offsets[1:]])
    first, last = float(law.ratio[0]), float(law.ratio[-1])
    nodes = np.concatenate([[first], nodes[(nodes > first) & (nodes < last)], [last]])
    place = np.searchsorted(nodes, law.ratio, side="right") - 1
    return _regrouped(law, np.clip(place, 0, nodes.size - 2), nodes, above)


def _on_fewer_nodes(law: RatioLaw, above: bool) -> RatioLaw:
    """Return a law of large summands on some hundred nodes in geometric progression."""
    if law.mass.size <= _FEW_NODES:
        return law
    low, high = float(law.ratio[0]), float(law.ratio[-1])
    nodes = np.geomspace(low, high, _FEW_NODES + 1)
    nodes[0], nodes[-1] = low, high
    place = np.clip(np.searchsorted(nodes, law.ratio, side="right") - 1, 0, _FEW_NODES - 1)
    return _regrouped(law, place, nodes, above)


def _convolved(first: RatioLaw, second: RatioLaw, above: bool, most: int) -> RatioLaw:
    """Return the law of a sum of two independent ratios, on at most so many nodes in geometric progression."""
    ratio = np.add.outer(first.ratio, second.ratio).ravel()
    mass = np.multiply.outer(first.mass, second.mass).ravel()
    low, high = float(ratio.min()), float(ratio.max())
    if not high > low * (1.0 + 1e-9):
        return RatioLaw(np.array([low]), np.array([mass.sum()]), 0.0)
    span = float(np.log(high / low))
    count = int(np.clip(most / 10 * span, 100, most))
    nodes = low * np.exp(span / count * np.arange(count + 1, dtype=np.int64))
    nodes[-1] = max(nodes[-1], high)
    place = (np.log(ratio / low) * (count / span)).astype(np.intp)
    return _regrouped(RatioLaw(ratio, mass, 0.0), np.clip(place, 0, count - 1), nodes, above)


def _regrouped(law: RatioLaw, place: NDArray[np.intp], nodes: Array, above: bool) -> RatioLaw:
    """Spread atoms to the ends of their cells, or merge them there."""
    cells = _cells_of(law, place, nodes)
    return spread(cells) if above else merged(cells)


def _cells_of(law: RatioLaw, place: NDArray[np.intp], nodes: Array) -> RatioCells:
    """Return cells between nodes, of atoms whose cells are known."""
    mass = np.bincount(place, weights=law.mass, minlength=nodes.size - 1)
    moment = np.bincount(place, weights=law.mass * law.ratio, minlength=nodes.size - 1)
    return RatioCells(nodes, mass, moment, 0.0, 0.0)
