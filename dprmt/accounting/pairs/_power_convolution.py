r"""The law of a sum of independent copies on an integer grid, with a certified error for every point.

One FFT. For many copies the transform is needed to a *relative* accuracy of its distance from 1, which the FFT of
the masses does not give and the FFT of the put and call function does: (R5) of ``docs/theory/random_allocation.md``.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import fft

from dprmt.accounting.basics import Array

_EPS = float(np.finfo(np.float64).eps)
_TILT_STEP = 7.0  # standard scores between the centres of tilted transforms
_LOG_NOTHING = -120.0  # powers below it are left out of a transform, and charged
_LONGER = 4  # a tilted transform, over the window, beyond which it costs more than it tells
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
        """All of the mass."""
        return math.fsum(self.mass)

    def log_total(self) -> float:
        """Its logarithm, off by a rounding of itself: near 1 not by one of the total, which many copies multiply."""
        return math.log1p(math.fsum([*self.mass, -1.0]))


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
    """Integers outside which the sum of ``copies`` has little mass on either side, and little of its first moment.

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
    """Candidates for |θ|, around the inverse deviation of the sum."""
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


def sum_on_grid(
    measure: GridMeasure, copies: int, log_outside: float, weight: float, enough: float
) -> tuple[int, Array, Array]:
    """Masses of the sum of ``copies``, and a bound on the error of each.

    ``log_outside``: logarithm of what may lie outside the grid on each side: mass, and E[sum; outside] · ``weight``
    above.
    ``enough``: if the errors' sum is below it, with ``weight`` and without, no tilted transform is computed.
    """
    window = _fast(chernoff_window(measure, copies, log_outside, float(np.log(weight))))
    mass, rounding = power_convolution(measure, copies, window)
    error = np.full(mass.size, rounding + 2.0 * np.exp(log_outside))
    points = window.first + np.arange(window.size, dtype=np.int64)
    if float(error @ np.maximum(points * weight, 1.0)) <= enough:
        return window.first, mass, error
    for exponent in np.arange(1, int(np.sqrt(-2 * log_outside) / _TILT_STEP) + 1, dtype=np.int64) * _TILT_STEP:
        for sign in (1.0, -1.0):
            _improve(mass, error, window, measure, copies, _tilt(measure, copies, sign, exponent**2 / 2))
    return window.first, mass, error


def _fast(window: GridWindow) -> GridWindow:
    return GridWindow(window.first, int(fft.next_fast_len(window.size, real=True)))


def _tilt(measure: GridMeasure, copies: int, sign: float, exponent: float) -> float:
    """The θ at which the sum, tilted by e^{θ·sum}, sits where Chernoff's exponent is about that large."""
    theta = sign * _tilts(measure, copies)
    cumulant, mean = _cumulants(measure, copies, theta)
    reached = theta * mean - cumulant + copies * np.log(measure.total())
    return float(theta[min(int(np.searchsorted(reached, exponent)), theta.size - 1)])


def _improve(mass: Array, error: Array, window: GridWindow, measure: GridMeasure, copies: int, tilt: float) -> None:
    """Where the transform of the tilted measure knows the masses better, take them from there."""
    center = round(float(measure.mass @ measure.index) / measure.total())
    used = measure.mass > 0.0  # else one without mass might be the peak, and all others vanish beside it
    measure = GridMeasure(measure.index[used], measure.mass[used])
    exponents = tilt * (measure.index - center)
    peak = float(exponents.max())
    weights = np.exp(exponents - peak) * measure.mass
    total = float(weights.sum())
    tilted = GridMeasure(measure.index, weights / total)
    span = _fast(chernoff_window(tilted, copies, _LOG_FOLDED, -np.inf))
    if span.size > _LONGER * window.size:  # of a few large ratios, spread far beyond where the sum is wanted
        return
    found, rounding = power_convolution(tilted, copies, span)
    low, high = max(window.first, span.first), min(window.first + window.size, span.first + span.size)
    if low >= high:
        return
    points = np.arange(low, high, dtype=np.int64)
    log_factor = copies * (np.log(total) + peak) - tilt * (points - copies * center)
    factor = np.exp(np.minimum(log_factor, 700.0))
    found = found[low - span.first : high - span.first]
    # Each tilted mass is off by some roundings of its exponent, and so is the factor.
    relative = 8 * _EPS * (copies * (2.0 + float(np.abs(exponents).max())) + np.abs(log_factor))
    known = factor * (rounding + 2.0 * np.exp(_LOG_FOLDED) + relative * found)
    here = slice(low - window.first, high - window.first)
    better = known < error[here]
    mass[here] = np.where(better, factor * found, mass[here])
    error[here] = np.where(better, known, error[here])


def power_convolution(measure: GridMeasure, copies: int, window: GridWindow) -> tuple[Array, float]:
    """Masses of the sum of ``copies`` on the window; what lies outside is added in, modulo the window's size.

    ``window``: where the sum is wanted; its size is best one that the FFT likes.
    """
    size, total = window.size, measure.total()
    center = round(_mean(measure))
    place = ((measure.index - center) % size).astype(np.intp)
    plain = fft.rfft(np.bincount(place, weights=measure.mass, minlength=size))
    plain_error = _unit(size) * total
    # Most frequencies leave nothing of the power.
    log_bound = copies * np.log(np.abs(plain) + plain_error)
    kept = np.flatnonzero(log_bound > _LOG_NOTHING)
    distance, distance_error = _distance_from_total(measure, center, size, kept)
    # Whichever is known more accurately, as a distance from ``total`` or as it is.
    distance = np.where(distance_error < plain_error, distance, plain[kept] - total)
    error_of_one = np.minimum(distance_error, plain_error)
    log_of_rest = complex_log1p(distance / total)
    log_transform = measure.log_total() + log_of_rest
    power = np.exp(copies * log_transform)
    power_error = copies * error_of_one * np.exp((copies - 1) * np.log(np.exp(log_transform.real) + error_of_one))
    power_error += 8 * _EPS * (2.0 + copies * (np.abs(log_of_rest) + abs(measure.log_total()))) * np.abs(power)
    error = 2.0 * float(np.sum(power_error + _unit(size) * np.abs(power))) / size + 2.0 * np.exp(_LOG_NOTHING)
    spectrum = np.zeros(plain.size, dtype=np.complex128)
    spectrum[kept] = power
    mass = np.roll(fft.irfft(spectrum, size), copies * center - window.first)
    return np.maximum(mass, 0.0), error


def _unit(size: int) -> float:
    """Error of one output of an FFT of numbers whose moduli sum to 1: (F2) of the theory of randomized clipping."""
    return 8 * _EPS * float(np.log2(size))


def _distance_from_total(
    measure: GridMeasure, center: int, size: int, frequencies: NDArray[np.int64]
) -> tuple[Array, Array]:
    """Σ mass · (e^{-iω(index - center)} - 1) as (e^{-iω} - 1)(m + (e^{-iω} - 1) ĝ), and its error, small where ω is."""
    offset = measure.index - center
    low, curve = _put_call_curve(offset, measure.mass)
    place = ((low + np.arange(curve.size, dtype=np.int64)) % size).astype(np.intp)
    folded = np.bincount(place, weights=curve, minlength=size)
    omega = 2.0 * np.pi * frequencies / size
    shift = -2.0 * np.sin(omega / 2.0) ** 2 - 1j * np.sin(omega)  # e^{-iω} - 1 without cancellation
    first_moment = float(measure.mass @ offset)
    distance = shift * (first_moment + shift * fft.rfft(folded)[frequencies])
    absolute_moment = float(measure.mass @ np.abs(offset))
    sums = 4 * measure.mass.size * _EPS
    error = np.abs(shift) * (sums * absolute_moment + np.abs(shift) * (_unit(size) + sums) * float(curve.sum()))
    return distance, error + 8 * _EPS * np.abs(distance)


def _put_call_curve(offset: NDArray[np.int64], mass: Array) -> tuple[int, Array]:
    """E(offset - l - 1)+ at l = 0, 1, … and E(l + 1 - offset)+ at l = …, -2, -1; the first l, and the values."""
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
    """log(1 + z), relatively accurate for small z; numpy's is not in its real part."""
    x, y = value.real, value.imag
    with np.errstate(divide="ignore"):
        real = 0.5 * np.log1p(np.maximum(x * (2.0 + x) + y**2, -1.0))
    real = np.maximum(real, -800.0)
    result: Array = real + 1j * np.arctan2(y, 1.0 + x)
    return result
