r"""Samples of a group that all have one squared-norm ratio, and what convex majorants add to them: (N13).

They have one threshold, which solves an equation; what is added for ratios that differ can move it by little, and only
thresholds so near it can matter. Equations of ``docs/theory/neighbours.md``.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from scipy.special import ndtr

from dprmt.accounting.basics import Array

_ROUNDING = 1e-11  # of powers, and residuals of equations
_MOST_NEWTON_STEPS = 60
_MOST_AT_A_TIME = 4_000_000  # numbers
_STEEPEST = 1.0 / math.sqrt(2 * math.pi)
_LARGEST_BEND = math.exp(-0.5) * _STEEPEST  # yφ(y) at 1
_LOWEST, _EVEN, _CELL, _GROWTH = -10.0, 16.0, 0.2, 1.0125  # of thresholds at which majorants of one sample are tabled
_STEEPEST_AFTER = 2.0 * math.exp(-1.5) * _STEEPEST  # (y² - 1)φ(y) at √3
_REACH, _FARTHEST = 0.8, 1.5  # times √(what is added), where about half as much is lost; and of 1/a
_LARGEST_EXPONENT, _UNDERFLOW = 600.0, 1e-300
_NEAREST = 0.02
_LEVELS = (1.0, 1.8, 3.2, 6.0, 1e9)  # of that reach


@dataclass(frozen=True)
class EqualRatios:
    """Samples that all have one ratio: τ = |e^{±l} - p_0| (row), shift a = 1/(σ√x) (column).

    ``threshold``: t with Σ_{j≥1} p_j e^{jat - j²a²/2} = τ; ``power``: Σ p_j Φ(ja - t), ``rest``: Σ p_j Φ(t - ja);
    ``error``: relative, of the equation.
    """

    tau: Array
    shift: Array
    threshold: Array
    power: Array
    rest: Array
    error: Array

    @classmethod
    def at(cls, tau: Array, shift: Array, log_weights: Array) -> EqualRatios:
        """``tau``: of each row; ``log_weights``: logarithms of the p_j."""
        parts = [_solved(part, shift, log_weights) for part in _row_parts(tau, shift.size * log_weights.size)]
        return cls(tau, shift, *(np.concatenate(values) for values in zip(*parts, strict=True)))

    def removing(self) -> Array:
        """H_{e^l}(P‖Q), rounded up: Σ p_j Φ(ja - t) - τ Φ(-t)."""
        charge = (_ROUNDING + 2.0 * self.error) * self.power
        return np.asarray(np.maximum(self.power - self.tau[:, None] * ndtr(-self.threshold), 0.0) + charge)

    def adding(self) -> Array:
        """e^{-l} H_{e^l}(Q‖P), rounded up: τ Φ(t) - Σ p_j Φ(t - ja)."""
        plain = self.tau[:, None] * ndtr(self.threshold)
        return np.asarray(np.maximum(plain - self.rest, 0.0) + (_ROUNDING + 2.0 * self.error) * plain)


@dataclass(frozen=True)
class Tangents:
    """What convex majorants add to equal ratios at all thresholds that can matter: of (C2), and K_{t,j} from two on.

    ``first``: of each row, a threshold below which none matters; ``weights``: p_j; ``middle``: where tangents touch.
    ``of_one``: what :func:`largest_majorant_excess` has.
    """

    equal: EqualRatios
    first: Array
    weights: Array
    middle: float
    of_one: Array

    def added(self) -> Array:
        """At least sup_t [F_t + what is added at t] less F at its own threshold, F being what is maximized."""
        first, t = self.first[:, None], self.equal.threshold
        back, ahead = self._reach()
        low, high = np.maximum(t - back, first), np.maximum(t + ahead, first)
        most = self._near(low, high)
        for so_far, farther in pairwise(_LEVELS):
            from_there, to_there = np.maximum(t - farther * back, first), np.maximum(t + farther * ahead, high)
            left = self._between(from_there, low) - self._lost_before(so_far * back)
            right = self._between(high, to_there) - self._lost_after(high - t)
            most = np.maximum(most, np.maximum(np.where(low > first, left, 0.0), right))
            low, high = from_there, to_there
        return np.asarray(most)

    def _between(self, low: Array, high: Array) -> Array:
        """At least what is added at thresholds between."""
        return self._steepest_up_to(high) * self._excess(low) + self._of_one_from(low)

    def _of_one_from(self, low: Array) -> Array:
        """p_1 times the largest f̂_t - f_t of (C2) at thresholds from ``low`` on."""
        thresholds = tabled_thresholds(self.equal.shift)
        place = np.clip(np.searchsorted(thresholds, low, side="right") - 1, 0, thresholds.size - 1)
        value: Array = self.weights[1] * self.of_one[place, np.arange(self.equal.shift.size, dtype=np.int64)]
        return value

    def _reach(self) -> tuple[Array, Array]:
        """How far from its own threshold what F loses is about what is added, to the left and to the right."""
        t, shift = self.equal.threshold, self.equal.shift
        of_one, flat = (
            self._of_one_from(np.maximum(t, self.first[:, None])),
            self.equal.tau[:, None] * _density(t) * shift,
        )
        before = self._steepest_up_to(t) * self._excess(self.first[:, None]) + of_one
        after = _LARGEST_BEND * self._excess(t) + of_one
        back, ahead = (
            np.minimum(_REACH * np.sqrt(some / (flat + _UNDERFLOW)), _FARTHEST / shift) for some in (before, after)
        )
        return np.maximum(back, _NEAREST), np.maximum(ahead, _NEAREST)

    def _lost_before(self, back: Array) -> Array:
        """At least what F loses so far left of its threshold: ∫ τφ(t - u)(1 - e^{-au}) du."""
        t, shift, tau = self.equal.threshold, self.equal.shift, self.equal.tau[:, None]
        rate = t - back / 2  # φ(t - u) ≥ φ(t) e^{rate·u}
        return np.asarray(tau * _density(t) * (_integral(rate, back) - _integral(rate - shift, back)))

    def _lost_after(self, ahead: Array) -> Array:
        """The same to its right: ∫ τφ(t + u)(e^{au} - 1) du."""
        t, shift, tau = self.equal.threshold, self.equal.shift, self.equal.tau[:, None]
        rate = -t - ahead / 2
        return np.asarray(tau * _density(t) * (_integral(rate + shift, ahead) - _integral(rate, ahead)))

    def _steepest_up_to(self, high: Array) -> Array:
        """The largest yφ(y) of two samples or more at thresholds up to ``high``."""
        y = np.maximum(2.0 * np.minimum(self.equal.shift, self.middle) - high, 1.0)
        return np.asarray(y * _density(y))

    def _excess(self, low: Array) -> Array:
        """Σ_{j≥2} p_j (K_{t,j} - Φ(ja - t)) at thresholds from ``low`` on, over the largest yφ(y)."""
        total = np.zeros(np.broadcast_shapes(low.shape, self.equal.shift.shape))
        for number in range(2, self.weights.size):
            away = _away(number * self.equal.shift, number * self.middle, low)
            total += self.weights[number] / 2 * away**2
        return total

    def _near(self, low: Array, high: Array) -> Array:
        """At least what is added at thresholds between."""
        t = np.clip(self.equal.threshold, low, high)
        change = (
            np.maximum(_STEEPEST * (t - low), _STEEPEST_AFTER * (high - t)) / 2
        )  # over δ²: (u² - 1)φ(u) on either side
        total = np.zeros(t.shape)
        for number in range(2, self.weights.size):
            own, center = number * self.equal.shift, number * self.middle
            at = np.maximum(center - t, 0.0)
            here = ndtr(at) + _density(at) * (own - t - at) - ndtr(own - t)
            here = np.where((own < t) & (center <= t), 0.0, np.maximum(here, 0.0))
            total += self.weights[number] * (here + change * _away(own, center, low) ** 2)
        total = np.minimum(total, self._steepest_up_to(high) * self._excess(low))
        return total + np.minimum(self._of_one(t, low, high), self._of_one_from(low))

    def _of_one(self, t: Array, low: Array, high: Array) -> Array:
        """p_1 (f̂ - f) at thresholds between, t among them: see :func:`steepest_change`."""
        seen = self.equal.shift > inflection(low)
        value = np.zeros(t.shape)
        if seen.any():
            shift, t, low, high = (np.broadcast_to(some, seen.shape)[seen] for some in (self.equal.shift, t, low, high))
            here = _majorant_excess(t, inflection(t), shift)
            value[seen] = here + np.maximum(high - t, t - low) * steepest_change(low, high, shift)
        return np.asarray(self.weights[1] * value)


def steepest_change(low: Array, high: Array, shift: Array) -> Array:
    """At least the derivative of f̂_t - f_t of (C2) at thresholds between."""
    beyond = np.maximum(shift - inflection(low), 0.0)
    return np.asarray(np.minimum(beyond * (_LARGEST_BEND + 1.2 / shift), 2.5 * _density(3.0 / inflection(high))))


def inflection(t: Array) -> Array:
    """μ*(t) of (C2): x ↦ Φ(x^{-1/2} - t) is convex where the shift is smaller."""
    root = np.sqrt(t**2 + 12.0)
    return np.asarray(np.where(t >= 0.0, (t + root) / 2, 6.0 / (root - np.minimum(t, 0.0))))


def tabled_thresholds(shift: Array) -> Array:
    """Where majorants of one sample are tabled: beyond the largest shift, the last one, they are what they bound."""
    even = np.arange(round((_EVEN - _LOWEST) / _CELL) + 1, dtype=np.float64) * _CELL + _LOWEST
    growing = math.ceil(max(math.log(float(shift.max()) / _EVEN), 0.0) / math.log(_GROWTH))
    return np.append(even, _EVEN * _GROWTH ** np.arange(1, growing + 1, dtype=np.float64))


def largest_majorant_excess(shift: Array) -> Array:
    """The largest f̂_t - f_t of (C2) at thresholds from each tabled one on (row), for each shift (column)."""
    t = tabled_thresholds(shift)[:, None]
    here = _majorant_excess(t, inflection(t), shift)
    here[:-1] += np.diff(t, axis=0) * steepest_change(t[:-1], t[1:], shift)
    largest: Array = np.maximum.accumulate(here[::-1], axis=0)[::-1]
    return largest


def _majorant_excess(t: Array, star: Array, shift: Array) -> Array:
    """f̂_t - f_t of (C2)."""
    tangent = ndtr(star - t) + star / 2 * _density(3.0 / star) * (1.0 - (star / shift) ** 2)
    return np.asarray(np.where(shift > star, np.maximum(tangent - ndtr(shift - t), 0.0), 0.0))


def _away(own: Array, center: float, low: Array) -> Array:
    """How far ja lies from where K_{t,j} touches, at thresholds from ``low`` on."""
    other = np.where(center > low, center - own, 0.0)
    return np.asarray(np.where(own >= center, np.maximum(own - np.maximum(low, center), 0.0), other))


def _row_parts(rows: Array, width: int) -> Iterator[Array]:
    most = max(_MOST_AT_A_TIME // width, 1)
    yield from np.split(rows, range(most, rows.size, most))


def _solved(tau: Array, shift: Array, log_weights: Array) -> tuple[Array, Array, Array, Array]:
    """Newton's method for Σ k_j z^j = 1, k_j ≤ 1 and one of them 1: increasing and convex, from z = 1."""
    drawn = range(1, log_weights.size)
    log_tau = np.log(tau)[:, None]
    least = [number * shift**2 / 2 - log_weights[number] / number for number in drawn]
    start = np.minimum.reduce([log_tau / number + some for number, some in zip(drawn, least, strict=True)])
    factor = [
        np.exp(np.minimum(number * (start - some) - log_tau, 0.0)) for number, some in zip(drawn, least, strict=True)
    ]
    z = np.ones_like(start)
    for _ in range(_MOST_NEWTON_STEPS):
        value, slope = np.zeros_like(z), np.zeros_like(z)
        for each in reversed(factor):
            slope = slope * z + value
            value = value * z + each
        miss = value * z - 1.0
        z = z - miss / (value + z * slope)
        if float(np.max(np.abs(miss))) <= _ROUNDING:
            break
    threshold = (start + np.log(z)) / shift
    power, rest = np.zeros_like(z), np.zeros_like(z)
    for number in drawn:
        distance, weight = number * shift - threshold, math.exp(log_weights[number])
        power += weight * ndtr(distance)
        rest += weight * ndtr(-distance)
    return threshold, power, rest, np.abs(miss)


def _integral(rate: Array, end: Array) -> Array:
    """∫ e^{rate·u} du from 0 to ``end``; large exponents are cut off."""
    exponent = np.clip(rate * end, -_LARGEST_EXPONENT, _LARGEST_EXPONENT)
    return np.asarray(
        end * np.where(np.abs(exponent) > 1e-9, np.expm1(exponent) / np.where(exponent == 0.0, 1.0, exponent), 1.0)
    )


def _density(y: Array) -> Array:
    value: Array = _STEEPEST * np.exp(-(y**2) / 2)
    return value
