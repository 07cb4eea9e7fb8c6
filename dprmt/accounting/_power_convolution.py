r"""The law of a sum of independent copies on an integer grid, with a certified error for every point.

One FFT. For many copies the transform is needed to a *relative* accuracy of its distance from 1, which the FFT of
the masses does not give and the FFT of the put and call function does: (R5) of ``docs/theory/random_allocation.md``.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import fft

from dprmt.accounting._types import Array

_EPS = float(np.finfo(np.float64).eps)


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
        """All of the mass.

        Returns
        -------
        float
            ≥ 0.
        """
        return float(self.mass.sum())


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

    Parameters
    ----------
    measure : GridMeasure
        Law of one summand.
    copies : int
        Number of summands, ≥ 1.
    log_outside : float
        Logarithm of the mass allowed outside, on each side.
    log_weight : float
        Above, E[sum; outside] · e^{log_weight} is kept as small as the mass.

    Returns
    -------
    GridWindow
        By Chernoff's bound (R4); at least 16 long.
    """
    index = measure.index.astype(np.float64)
    center = float(measure.mass @ index) / measure.total()
    offset = index - center
    deviation = max(float(np.sqrt(measure.mass @ offset**2 / measure.total())), 1e-3)
    theta = np.exp(np.linspace(-9.0, 6.0, 91)) / deviation / np.sqrt(copies)
    bounds = []
    for sign in (1.0, -1.0):
        exponent = sign * np.multiply.outer(theta, offset)
        peak = exponent.max(axis=1)
        weight = np.exp(exponent - peak[:, None]) * measure.mass
        sums = weight.sum(axis=1)
        log_moment = np.maximum(np.log(copies * (weight @ index) / sums) + log_weight, 0.0) if sign > 0 else 0.0
        cumulant = copies * (np.log(sums) + peak)
        bounds.append(float(np.min((cumulant + log_moment - log_outside) / theta)))
    first = max(int(np.floor(copies * center - bounds[1])) - 1, copies * int(measure.index[0]))
    last = min(int(np.ceil(copies * center + bounds[0])) + 1, copies * int(measure.index[-1]))
    return GridWindow(first, max(last - first + 1, 16))


def power_convolution(measure: GridMeasure, copies: int, window: GridWindow) -> tuple[Array, float]:
    """Masses of the sum of ``copies`` on the window; what lies outside is added in, modulo the window's size.

    Parameters
    ----------
    measure : GridMeasure
        Law of one summand; its total may be below 1.
    copies : int
        Number of summands, ≥ 1.
    window : GridWindow
        Where the sum is wanted; its size is best one that the FFT likes.

    Returns
    -------
    mass : ndarray, shape (size,)
        Approximate masses, none negative.
    error : float
        Bound on the rounding error of each of them.
    """
    size, total = window.size, measure.total()
    center = round(float(measure.mass @ measure.index) / total)
    plain, plain_error = _plain(measure, center, size)
    distance, distance_error = _distance_from_total(measure, center, size)
    # Whichever is known more accurately, as a distance from ``total`` or as it is.
    near = distance_error < plain_error
    distance = np.where(near, distance, plain - total)
    error_of_one = np.minimum(distance_error, plain_error)
    log_transform = _complex_log1p(distance / total)
    modulus = total * np.exp(log_transform.real)
    power = np.exp(copies * (np.log(total) + log_transform))
    power_error = copies * error_of_one * (modulus + error_of_one) ** (copies - 1)
    power_error += 8 * _EPS * (2.0 + copies * np.abs(log_transform)) * np.abs(power)
    error = 2.0 * float(np.sum(power_error + _unit(size) * np.abs(power))) / size
    mass = np.roll(fft.irfft(power, size), copies * center - window.first)
    return np.maximum(mass, 0.0), error


def _unit(size: int) -> float:
    """Error of one output of an FFT of numbers whose moduli sum to 1: (F2) of the theory of randomized clipping."""
    return 8 * _EPS * float(np.log2(size))


def _plain(measure: GridMeasure, center: int, size: int) -> tuple[Array, Array]:
    """Σ mass · e^{-iω(index - center)}, and its error, the same everywhere."""
    folded = np.bincount((measure.index - center) % size, weights=measure.mass, minlength=size)
    transform = fft.rfft(folded)
    return transform, np.full(transform.size, _unit(size) * measure.total())


def _distance_from_total(measure: GridMeasure, center: int, size: int) -> tuple[Array, Array]:
    """The same minus Σ mass, as (e^{-iω} - 1)(m + (e^{-iω} - 1) ĝ), and its error, small where ω is."""
    offset = measure.index - center
    low, curve = _put_call_curve(offset, measure.mass)
    folded = np.bincount((low + np.arange(curve.size)) % size, weights=curve, minlength=size)
    omega = 2.0 * np.pi * np.arange(size // 2 + 1) / size
    shift = -2.0 * np.sin(omega / 2.0) ** 2 - 1j * np.sin(omega)  # e^{-iω} - 1 without cancellation
    first_moment = float(measure.mass @ offset)
    distance = shift * (first_moment + shift * fft.rfft(folded))
    absolute_moment = float(measure.mass @ np.abs(offset))
    sums = 4 * measure.mass.size * _EPS
    error = np.abs(shift) * (sums * absolute_moment + np.abs(shift) * (_unit(size) + sums) * float(curve.sum()))
    return distance, error + 8 * _EPS * np.abs(distance)


def _put_call_curve(offset: NDArray[np.int64], mass: Array) -> tuple[int, Array]:
    """E(offset - l - 1)+ at l = 0, 1, … and E(l + 1 - offset)+ at l = …, -2, -1, from the first l on; sums of positives."""
    low, high = min(int(offset[0]), 0), max(int(offset[-1]), 0)
    knots = np.union1d(offset, [low, 0, high])
    weight = np.bincount(np.searchsorted(knots, offset), weights=mass, minlength=knots.size)
    gaps = np.diff(knots)
    at_most, beyond = np.cumsum(weight)[:-1], np.cumsum(weight[::-1])[::-1][1:]
    puts = np.append(0.0, np.cumsum(gaps * at_most))
    calls = np.append(np.cumsum((gaps * beyond)[::-1])[::-1], 0.0)
    where = np.arange(low, high) + 1
    return low, np.where(where <= 0, np.interp(where, knots, puts), np.interp(where, knots, calls))


def _complex_log1p(value: Array) -> Array:
    """log(1 + z), relatively accurate for small z; numpy's is not in its real part."""
    x, y = value.real, value.imag
    with np.errstate(divide="ignore"):
        real = 0.5 * np.log1p(np.maximum(x * (2.0 + x) + y**2, -1.0))
    real = np.maximum(real, -800.0)
    result: Array = real + 1j * np.arctan2(y, 1.0 + x)
    return result
