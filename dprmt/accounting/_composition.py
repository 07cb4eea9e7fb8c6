r"""Composition of discrete privacy losses by one exponentially tilted FFT, with every error charged.

Tilting by e^{λL} centres the composed loss where δ is decided, so that rounding and truncation are small
relative to δ itself, however small δ is: section 6 of ``docs/theory/randomized_clipping.md``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from scipy import fft

from dprmt.accounting._discretization import LossPMF
from dprmt.accounting._types import Array

Phases = Sequence[tuple[LossPMF, int]]

_EPS = float(np.finfo(np.float64).eps)
_LOG_OUTSIDE = float(np.log(1e-10))  # tilted mass allowed outside the FFT window, on each side
_LONGEST = 2**40  # points: no transform is this long, and whoever asked takes a coarser mesh


def log_mgf(phases: Phases, tilts: Array) -> Array:
    """Log E e^{λS} of the finite part of the composed loss S, for each tilt λ."""
    total = np.zeros(tilts.shape)
    for pmf, steps in phases:
        support = pmf.mass > 0
        exponent = np.multiply.outer(tilts, pmf.losses[support]) + np.log(pmf.mass[support])
        total = total + steps * _log_sum_exp(exponent)
    return total


def _log_sum_exp(exponent: Array) -> Array:
    """Over the last axis, -inf of nothing; scipy's own spends more on dispatch than on the sum."""
    if exponent.shape[-1] == 0:
        return np.full(exponent.shape[:-1], -np.inf)
    peak = exponent.max(axis=-1, keepdims=True)
    total: Array = peak[..., 0] + np.log(np.exp(exponent - peak).sum(axis=-1))
    return total


def log_kappa(tilt: Array) -> Array:
    """Log of max_x e^{-λx}(1 - e^{-x}) = λ^λ / (1 + λ)^{1 + λ}."""
    return np.where(tilt > 0, tilt * np.log(np.maximum(tilt, 1e-300)), 0.0) - (1 + tilt) * np.log1p(tilt)


def tilt_for_delta(phases: Phases, delta: float) -> float:
    """The tilt whose Chernoff bound on ε at this δ is smallest."""

    def epsilon(tilts: Array) -> Array:
        return (log_mgf(phases, tilts) + log_kappa(tilts) - np.log(delta)) / tilts

    return _minimize_on_log_grid(epsilon, loss_deviation(phases))


def tilt_for_epsilon(phases: Phases, epsilon: float) -> float:
    """The tilt whose Chernoff bound on δ at this ε is smallest."""

    def log_delta(tilts: Array) -> Array:
        return log_mgf(phases, tilts) + log_kappa(tilts) - tilts * epsilon

    return _minimize_on_log_grid(log_delta, loss_deviation(phases))


def loss_deviation(phases: Phases, tilt: float = 0.0) -> float:
    """Standard deviation of the finite part of the composed loss after tilting."""
    variance = 0.0
    for pmf, steps in phases:
        weights = _tilted_mass(pmf, tilt)
        mean = weights @ pmf.losses
        variance += steps * float(weights @ (pmf.losses - mean) ** 2)
    return max(float(np.sqrt(variance)), 1e-12)


def _minimize_on_log_grid(objective: Callable[[Array], Array], scale: float) -> float:
    center, half_width = np.log(1.0 / scale), 14.0
    for _ in range(4):
        grid = center + np.linspace(-half_width, half_width, 21)
        center = float(grid[int(np.argmin(objective(np.exp(grid))))])
        half_width *= 0.15
    return float(np.exp(center))


@dataclass(frozen=True)
class Window:
    """FFT window and what it leaves out.

    Attributes
    ----------
    first : int
        Grid index of the first point.
    size : int
        Number of points.
    """

    first: int
    size: int


def window(phases: Phases, tilt: float) -> Window:
    """Grid points outside which the tilted composed loss has mass at most 1e-10 on either side (Chernoff)."""
    mesh = phases[0][0].mesh
    thetas = np.exp(np.linspace(-12.0, 6.0, 73)) / loss_deviation(phases, tilt)
    base = log_mgf(phases, np.array([tilt]))[0]
    up = (log_mgf(phases, tilt + thetas) - base - _LOG_OUTSIDE) / thetas
    down = -(log_mgf(phases, tilt - thetas) - base - _LOG_OUTSIDE) / thetas
    first = int(np.floor(np.max(down) / mesh)) - 1
    last = int(np.ceil(np.min(up) / mesh)) + 1
    size = max(last - first + 1, 16)
    return Window(first, fft.next_fast_len(size, real=True) if size < _LONGEST else size)


def _tilted_mass(pmf: LossPMF, tilt: float) -> Array:
    if not pmf.mass.any():  # all of it counts as infinite
        return np.zeros_like(pmf.mass)
    with np.errstate(divide="ignore"):
        exponent = np.log(pmf.mass) + tilt * pmf.losses
    weights: Array = np.exp(exponent - _log_sum_exp(exponent))
    return weights


@dataclass(frozen=True)
class ComposedLoss:
    """The composed loss around the point where it was asked for.

    Attributes
    ----------
    losses, mass : ndarray
        Grid and tilted masses, the latter relative to ``e^{log_scale - tilt·loss}``.
    tilt, log_scale : float
        P(S = l) = mass · e^{log_scale - tilt·l}.
    infinite : float
        Probability that some step has an infinite loss.
    error : float
        Bound on the tilted mass misplaced by truncation, aliasing and rounding.
    """

    losses: Array
    mass: Array
    tilt: float
    log_scale: float
    infinite: float
    error: float


def composed(phases: Phases, tilt: float, win: Window) -> ComposedLoss:
    """Compose by FFT on the window."""
    spectrum = np.ones(win.size // 2 + 1, dtype=np.complex128)
    magnitudes, counts = [], []
    log_never_infinite, rounding = 0.0, 0.0
    for pmf, steps in phases:
        weights = _tilted_mass(pmf, tilt)
        transform = fft.rfft(np.bincount(pmf.index % win.size, weights=weights, minlength=win.size))
        spectrum = spectrum * _power(transform, steps)
        magnitudes.append(np.abs(transform))
        counts.append(steps)
        log_never_infinite += steps * (float(np.log1p(-pmf.infinite)) if pmf.infinite < 1 else -np.inf)
        rounding += steps * _mass_rounding(pmf, weights)
    mass = np.roll(fft.irfft(spectrum, win.size), -(win.first % win.size))
    mesh = phases[0][0].mesh
    return ComposedLoss(
        losses=(win.first + np.arange(win.size)) * mesh,
        mass=np.maximum(mass, 0.0),
        tilt=tilt,
        log_scale=float(log_mgf(phases, np.array([tilt]))[0]),
        infinite=float(-np.expm1(log_never_infinite)),
        error=2 * np.exp(_LOG_OUTSIDE) + np.expm1(rounding) + _fft_rounding(magnitudes, counts, win.size),
    )


def moved(loss: ComposedLoss, shift: float) -> ComposedLoss:
    """The law of a loss larger by ``shift``."""
    return replace(loss, losses=loss.losses + shift, log_scale=loss.log_scale + loss.tilt * shift)


def window_of(pmf: LossPMF, fewest: int, most: int, tilt: float) -> tuple[int, int]:
    """First index and length of a window that serves any number of equal steps from ``fewest`` to ``most``.

    Returns: chernoff's bound at one θ is linear in the number of steps, so its two ends decide.
    """
    thetas = np.exp(np.linspace(-12.0, 6.0, 73)) / loss_deviation([(pmf, most)], tilt)
    base = log_mgf([(pmf, 1)], np.array([tilt]))[0]
    up, down = (log_mgf([(pmf, 1)], tilt + sign * thetas) - base for sign in (1.0, -1.0))
    highest = np.min(np.maximum(fewest * up, most * up) / thetas - _LOG_OUTSIDE / thetas)
    lowest = np.max(-np.maximum(fewest * down, most * down) / thetas + _LOG_OUTSIDE / thetas)
    first, last = int(np.floor(lowest / pmf.mesh)) - 1, int(np.ceil(highest / pmf.mesh)) + 1
    return first, int(fft.next_fast_len(max(last - first + 1, 16), real=True))


@dataclass(frozen=True)
class TiltedTransform:
    """One step's tilted loss, transformed.

    Attributes
    ----------
    values : ndarray, shape (N // 2 + 1,)
        Its transform on a window of N points.
    log_scale : float
        Logarithm of the tilted mass before it was normalised.
    rounding : float
        Relative tilted mass that rounding moved (F1).
    """

    values: Array
    log_scale: float
    rounding: float

    def misplaced(self, counts: Array | int) -> Array:
        """Tilted mass outside the window, or moved by rounding, after so many steps."""
        value: Array = 2 * np.exp(_LOG_OUTSIDE) + np.expm1(counts * np.float64(self.rounding))
        return value


def tilted_transform(pmf: LossPMF, tilt: float, size: int) -> TiltedTransform:
    """The transform of one step's loss after tilting, on a window of ``size`` points."""
    weights = _tilted_mass(pmf, tilt)
    values = fft.rfft(np.bincount(pmf.index % size, weights=weights, minlength=size))
    return TiltedTransform(values, float(log_mgf([(pmf, 1)], np.array([tilt]))[0]), _mass_rounding(pmf, weights))


@dataclass(frozen=True)
class ComposedRows:
    """The finite part of one step's loss composed with itself, for several numbers of steps.

    Attributes
    ----------
    mass : ndarray, shape (m, n)
        One row for each number of steps, see :class:`ComposedLoss`.
    log_scale, error : ndarray, shape (m,)
        As there.
    """

    mass: Array
    log_scale: Array
    error: Array


def composed_rows(
    pmf: LossPMF, counts: Sequence[int], tilt: float, first: int, size: int, at_a_time: int
) -> Iterator[ComposedRows]:
    """By one transform; so many numbers of steps at a time, in the order of ``counts``."""
    one = tilted_transform(pmf, tilt, size)
    magnitude = np.abs(one.values)
    for start in range(0, len(counts), at_a_time):
        steps = np.array(counts[start : start + at_a_time], dtype=np.float64)
        mass = np.roll(fft.irfft(_powers(one.values, magnitude, steps), size), -(first % size), axis=1)
        error = one.misplaced(steps) + _power_rounding(magnitude, steps, size)
        yield ComposedRows(np.maximum(mass, 0.0), steps * one.log_scale, error)


def composed_powers(pmf: LossPMF, counts: Sequence[int], tilt: float, first: int, size: int) -> dict[int, ComposedLoss]:
    """The same as one loss for each number of steps."""
    losses = (first + np.arange(size)) * pmf.mesh
    rows = composed_rows(pmf, counts, tilt, first, size, 1)
    return {
        count: ComposedLoss(losses, row.mass[0], tilt, float(row.log_scale[0]), 0.0, float(row.error[0]))
        for count, row in zip(counts, rows, strict=True)
    }


def _powers(transform: Array, magnitude: Array, counts: Array) -> Array:
    """Its powers, one a row; 0 where that is below e^{-80}, as at most frequencies."""
    with np.errstate(divide="ignore"):
        seen = np.flatnonzero(np.log(magnitude) * counts.min() > -80.0)
    result = np.zeros((counts.size, transform.size), dtype=np.complex128)
    result[:, seen] = np.exp(counts[:, None] * np.log(transform[seen]))
    return result


def _power(transform: Array, count: int) -> Array:
    """Its power; 0 where that is below e^{-80}, as at most frequencies."""
    with np.errstate(divide="ignore"):
        seen = np.log(np.abs(transform)) * count > -80.0
    result = np.zeros_like(transform)
    result[seen] = transform[seen] ** count
    return result


def _mass_rounding(pmf: LossPMF, weights: Array) -> float:
    """Bound on the relative tilted mass that rounding moved: see (F1) of the theory document."""
    tails = np.cumsum(pmf.mass[::-1])[::-1]
    with np.errstate(divide="ignore", invalid="ignore"):
        relative = np.where(pmf.mass > 0, weights * tails / pmf.mass, 0.0)
    return 64 * _EPS * float(np.sum(relative)) + 1e3 * _EPS


def _fft_rounding(magnitudes: list[Array], counts: list[int], size: int) -> float:
    """Bound on the summed rounding error of transform, power and inverse: see (F2) of the theory document."""
    unit = 8 * _EPS * np.log2(size)
    padded = [np.log(magnitude + unit) for magnitude in magnitudes]
    log_product = np.sum([steps * log for steps, log in zip(counts, padded, strict=True)], axis=0)
    seen = log_product > -120.0  # what is left out adds less than e^{-120} · T / unit in all
    each = [2 * steps * np.exp(log_product[seen] - log[seen]) for steps, log in zip(counts, padded, strict=True)]
    total = np.exp(log_product[seen]) + np.sum(each, axis=0)
    return 2 * unit * float(np.sqrt(np.sum(total**2))) + 1e-25


def _power_rounding(magnitude: Array, counts: Array, size: int) -> Array:
    """As :func:`_fft_rounding`, for each of several powers of one transform."""
    unit = 8 * _EPS * np.log2(size)
    log = np.log(magnitude + unit)
    log = log[counts.min() * log > -120.0]
    power = np.exp(counts[:, None] * log) * (1.0 + 2 * counts[:, None] * np.exp(-log))
    value: Array = 2 * unit * np.sqrt(np.sum(power**2, axis=1)) + 1e-25
    return value
