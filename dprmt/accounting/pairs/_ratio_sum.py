r"""The law of a sum of independent likelihood ratios, with a certified error for every point.

One FFT on an integer grid for the many small ratios, direct sums for a few large ones. For many copies the transform's
distance from 1 must be accurate relative to itself. The FFT of the masses does not give this, but the FFT of the put
and call function does: (R2) to (R6) of ``docs/theory/random_allocation.md``.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import fft
from scipy.special import bdtrc, comb

from dprmt.accounting.basics._numbers import LEAST_DELTA, Array
from dprmt.accounting.pairs._pairs import StepPair, drops, isotonic_regression

_EPS = float(np.finfo(np.float64).eps)


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
    unclear : float
        Q-mass to charge to a loss of -∞.
    """

    ratio: Array
    mass: Array
    lost: float = 0.0
    unclear: float = 0.0


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
    mass_above: float = 0.0
    moment_above: float = 0.0

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
    cut += float(cells.moment[cells.mass < LEAST_DELTA].sum())
    mass = (1.0 - slack) * mass
    mass[0] += slack
    return RatioLaw(cells.nodes, mass, min(cells.moment_above + cut + slack, 1.0))


def spread(cells: RatioCells) -> RatioLaw:
    """Send every cell's mass to its ends, keeping mass and mean."""
    to_right = cells.mass * (cells.means() - cells.nodes[:-1]) / np.diff(cells.nodes)
    mass = np.append(cells.mass - to_right, 0.0) + np.append(0.0, to_right)
    return RatioLaw(cells.nodes, np.maximum(mass, 0.0))


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
    return RatioLaw(cells.nodes, np.maximum(atoms, 0.0))


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
    return RatioLaw(cells.means(), cells.mass)


def _without_excess(ratio: Array, mass: Array) -> tuple[Array, float]:
    """Cut Q-mass beyond 1 from the largest ratios; also the P-mass that this cuts (R2)."""
    excess = float(mass.sum()) - 1.0
    if excess <= 64 * _EPS:
        return mass, 0.0
    above = np.cumsum(mass[::-1])[::-1]
    cut = np.clip(excess - np.append(above[1:], 0.0), 0.0, mass)
    return mass - cut, float(cut @ ratio)


LOG_NOTHING = -120.0
"""Powers below e to this are left out of a transform, and charged."""


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

    def mean(self) -> float:
        """Return its mean."""
        return float(self.mass @ self.index) / self.total()


def chernoff_window(measure: GridMeasure, copies: int, log_outside: float, log_weight: float) -> tuple[int, int]:
    """Find the first and the last integer outside which the sum of ``copies`` has little mass, and little first moment.

    ``log_weight``: above, E[sum; outside] · e^{log_weight} is kept as small as the mass.
    """
    center, occupied = measure.mean(), measure.mass > 0
    offset, log_mass = measure.index[occupied] - center, np.log(measure.mass[occupied])
    variance = float(measure.mass @ (measure.index - center) ** 2) / measure.total()
    theta = np.exp(np.linspace(-9.0, 6.0, 91)) / max(math.sqrt(copies * variance), 1e-3)
    reach = []
    for sign in (-1.0, 1.0):
        exponent = np.multiply.outer(sign * theta, offset) + log_mass
        peak = exponent.max(axis=1)
        weight = np.exp(exponent - peak[:, None])
        sums = weight.sum(axis=1)
        log_bound = copies * (np.log(sums) + peak) - log_outside
        if sign > 0:
            mean = copies * (weight @ offset / sums + center)
            log_bound += np.maximum(np.log(np.maximum(mean, 1e-300)) + log_weight, 0.0)
        reach.append(float(np.min(log_bound / theta)))
    first = max(math.floor(copies * center - reach[0]) - 1, copies * int(measure.index[0]))
    last = min(math.ceil(copies * center + reach[1]) + 1, copies * int(measure.index[-1]))
    return first, max(last, first + 15)


def grid_sum(measure: GridMeasure, copies: int, log_outside: float, weight: float) -> tuple[int, Array, Array]:
    """Return the masses of the sum of ``copies``, the first one's integer, and a bound on the error of each (R5).

    ``log_outside``: logarithm of what may lie outside the window on each side: mass, and E[sum; outside] · ``weight``
    above.
    """
    used = measure.mass > 0.0
    measure = GridMeasure(measure.index[used], measure.mass[used])
    first, last = chernoff_window(measure, copies, log_outside, math.log(weight))
    size = int(fft.next_fast_len(last - first + 1, real=True))
    unit, total, center = 8 * _EPS * math.log2(size), measure.total(), round(measure.mean())  # (F2)
    offset = measure.index - center

    def transform(places: NDArray[np.int64], values: Array) -> Array:
        return fft.rfft(np.bincount((places % size).astype(np.intp), weights=values, minlength=size))

    plain = transform(offset, measure.mass)
    kept = np.flatnonzero(np.abs(plain) + unit * total > math.exp(LOG_NOTHING / copies))  # most leave nothing
    # The distance from the total is Σ mass · (e^{-iω offset} - 1) = ζ (m + ζ ĝ), where ζ = e^{-iω} - 1, and ĝ is the
    # transform of the put and call function; or else it is that of the value. The more accurate one is used.
    omega = 2.0 * np.pi * kept / size
    shift = -2.0 * np.sin(omega / 2.0) ** 2 - 1j * np.sin(omega)
    low, curve = _put_call_curve(offset, measure.mass)
    curve_transform = transform(low + np.arange(curve.size, dtype=np.int64), curve)[kept]
    distance = shift * (float(measure.mass @ offset) + shift * curve_transform)
    sums = 4 * measure.mass.size * _EPS
    error = sums * float(measure.mass @ np.abs(offset)) + np.abs(shift) * (unit + sums) * float(curve.sum())
    error = np.abs(shift) * error + 8 * _EPS * np.abs(distance)
    distance = np.where(error < unit * total, distance, plain[kept] - total)
    error = np.minimum(error, unit * total)
    log_rest, log_total = complex_log1p(distance / total), measure.log_total()
    power = np.exp(copies * (log_total + log_rest))
    moved = copies * error * np.exp((copies - 1) * np.log(np.exp(log_total + log_rest.real) + error))
    moved += 8 * _EPS * (2.0 + copies * (np.abs(log_rest) + abs(log_total))) * np.abs(power)
    rounding = 2.0 * float(np.sum(moved + unit * np.abs(power))) / size + 2.0 * math.exp(LOG_NOTHING)
    spectrum = np.zeros(plain.size, dtype=np.complex128)
    spectrum[kept] = power
    mass = np.maximum(np.roll(fft.irfft(spectrum, size), copies * center - first), 0.0)
    return first, mass, np.full(size, rounding + 2.0 * math.exp(log_outside))


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


def sum_from_above(law: RatioLaw, on_grid: int, mesh: float, copies: int, tail: float) -> RatioLaw:
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


def sum_from_below(law: RatioLaw, on_grid: int, mesh: float, copies: int, tail: float) -> RatioLaw:
    """Return a law of W that is never less private, for a law of V that is not. Arguments as in
    :func:`sum_from_above`.
    """
    small, large = _split(law, on_grid, mesh)
    most = _most_large(copies, float(large.mass.sum()), float(large.mass @ large.ratio), tail)
    return _joined(_parts(small, large, mesh, copies, most, tail, above=False), copies, 0.0, 0.0)


def _split(law: RatioLaw, on_grid: int, mesh: float) -> tuple[GridMeasure, RatioLaw]:
    index = np.rint(law.ratio[:on_grid] / mesh).astype(np.int64)
    seen = on_grid + np.flatnonzero(law.mass[on_grid:] > 0)
    return GridMeasure(index, law.mass[:on_grid]), RatioLaw(law.ratio[seen], law.mass[seen])


def _joined(parts: list[RatioLaw], copies: int, lost: float, unclear: float) -> RatioLaw:
    ratio = np.concatenate([part.ratio for part in parts]) / copies
    mass = np.concatenate([part.mass for part in parts])
    keep = mass > 0
    return RatioLaw(ratio[keep], mass[keep], min(lost, 1.0), min(unclear, 1.0))


def _most_large(copies: int, large_mass: float, large_moment: float, tail: float) -> int:
    """Find the number of large ratios beyond which the P-mass is a hundredth of ``tail``."""
    if large_mass == 0.0:
        return 0
    most = min(12, copies)
    for number in range(most):
        rest = _more_than(number, copies - 1, large_mass)
        if rest + large_moment * _more_than(number - 1, copies - 1, large_mass) <= 1e-2 * tail:
            return number
    return most


def _more_than(number: int, copies: int, probability: float) -> float:
    """Compute P(a binomial variable exceeds ``number``)."""
    if number < 0 or number >= copies:
        return 1.0 if number < 0 else 0.0
    return float(bdtrc(number, copies, probability))


def _parts(
    small: GridMeasure, large: RatioLaw, mesh: float, copies: int, most: int, tail: float, above: bool
) -> list[RatioLaw]:
    """Return the sums with j = 0, 1, … large summands: C(t, j) times t - j small ones convolved with j large ones."""
    parts: list[RatioLaw] = []
    several, few = large, _thinned(large, 800, above)  # two together are rare enough for fewer nodes
    for number in range(most + 1):
        if number > 1:
            several = _convolved(few if number == 2 else several, few, above, 400)
        small_sum, outside = _small_law(small, mesh, copies - number, copies, tail, above)
        if number == 0:
            parts.append(RatioLaw(small_sum.ratio, small_sum.mass, outside, outside))
            continue
        law = _convolved(_thinned(small_sum, 400, above), several, above, 2000)
        mass, moment = float(several.mass.sum()), float(several.mass @ several.ratio)
        ways = float(comb(copies, number))
        lost = ways * outside * (mass + moment / copies)
        parts.append(RatioLaw(law.ratio, ways * law.mass, lost, ways * outside * mass))
    return parts


def _small_law(
    small: GridMeasure, mesh: float, number: int, copies: int, tail: float, above: bool
) -> tuple[RatioLaw, float]:
    """Sum of ``number`` small summands, no mass too small (or too large); what may lie outside the grid."""
    if not number or not small.mass.any():  # of a law from below on too wide a mesh nothing is left
        return RatioLaw(np.zeros(1), np.full(1, float(not number))), 0.0
    outside = 1e-9 * tail  # of the tail that may be charged
    first, mass, error = grid_sum(small, number, math.log(outside), mesh / copies)
    ratio = (first + np.arange(mass.size, dtype=np.float64)) * mesh
    return RatioLaw(ratio, mass + error if above else np.maximum(mass - error, 0.0)), 2.0 * outside


def _thinned(law: RatioLaw, most: int, above: bool) -> RatioLaw:
    """Return a law on at most so many of the atoms."""
    if law.mass.size <= most:
        return law
    nodes = law.ratio[np.linspace(0.0, law.mass.size - 1.0, most).round().astype(np.intp)]
    place = np.searchsorted(nodes, law.ratio, side="right") - 1
    return _regrouped(law, np.clip(place, 0, nodes.size - 2), nodes, above)


def _convolved(first: RatioLaw, second: RatioLaw, above: bool, most: int) -> RatioLaw:
    """Return the law of a sum of two independent ratios, on at most so many nodes in geometric progression."""
    ratio = np.add.outer(first.ratio, second.ratio).ravel()
    mass = np.multiply.outer(first.mass, second.mass).ravel()
    low, high = float(ratio.min()), float(ratio.max())
    if not high > low * (1.0 + 1e-9):
        return RatioLaw(np.array([low]), np.array([mass.sum()]))
    span = float(np.log(high / low))
    count = int(np.clip(most / 10 * span, 100, most))
    nodes = low * np.exp(span / count * np.arange(count + 1, dtype=np.int64))
    nodes[-1] = max(nodes[-1], high)
    place = (np.log(ratio / low) * (count / span)).astype(np.intp)
    return _regrouped(RatioLaw(ratio, mass), np.clip(place, 0, count - 1), nodes, above)


def _regrouped(law: RatioLaw, place: NDArray[np.intp], nodes: Array, above: bool) -> RatioLaw:
    """Spread atoms whose cells are known to the ends of these, or merge them there."""
    mass = np.bincount(place, weights=law.mass, minlength=nodes.size - 1)
    moment = np.bincount(place, weights=law.mass * law.ratio, minlength=nodes.size - 1)
    cells = RatioCells(nodes, mass, moment)
    return spread(cells) if above else merged(cells)
