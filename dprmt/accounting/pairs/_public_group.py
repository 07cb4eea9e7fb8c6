r"""Several samples with public probes that change at once: equation (N9) of ``docs/theory/neighbours.md``.

Public probes couple the squared-norm ratios X_1 … X_m of the samples in an unknown way. A test's power is bounded by a
sum of convex functions of one ratio each, so every coupling is bounded by what one sample's law says.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from scipy.special import ndtr

from dprmt.accounting.basics import Array
from dprmt.accounting.pairs._cells import LossCells, interval_masses
from dprmt.accounting.pairs._coin_mixtures import CoinMixture, log_coin_weights
from dprmt.accounting.pairs._public_replacement import (
    AtomicPair,
    largest_bend,
    majorant,
    majorant_rest,
    threshold_grid,
)
from dprmt.accounting.pairs._secret_lower_pair import by_node
from dprmt.accounting.pairs._tight_pair import keep_the_envelope

_ROUNDING = 1e-9
_SPACING, _LOSSES = 3.2, 2.5  # of thresholds, and losses in logarithms, times the number of bins
_LOWEST, _BEYOND = -12.0, 40.0
_LARGEST_LOSS = 700.0  # e^709 is the last finite one
_FAR, _TABLE = 9.0, 600  # deviations beyond which outcomes are one, and thresholds of a table
_LEAST = 1e-290  # lighter outcomes are left out, which is safe from below
_STEEPEST = 1.0 / math.sqrt(2 * math.pi)


def changed_together(
    x: Array, mass: Array, below: float, noise_multiplier: float, sample_rate: float, size: int, bins: int, tail: float
) -> AtomicPair:
    """A pair that dominates ``size`` samples with coins of their own under every coupling of their norm estimates.

    ``x``, ``mass``: a law of the squared-norm ratio that is spread outward from the worst one in the convex order.
    ``below``: probability of smaller ratios. ``tail``: P-mass at losses that need not be resolved.
    """
    tests = _Tests.of(x, mass, noise_multiplier, sample_rate, size, _SPACING / bins)
    lost = tests.lost(x, mass, below)

    def removed(loss: float) -> float:
        return _expected(tests.removing(math.exp(loss)), x, mass, below) + lost

    def added(loss: float) -> float:
        return _expected(tests.adding(math.exp(loss)), x, mass, below) + lost

    scale = step_scale(noise_multiplier, sample_rate, size)
    most = -size * math.log1p(-sample_rate) if sample_rate < 1.0 else _LARGEST_LOSS
    right = losses_up_to(_last_loss(removed, lost + tail, scale, _LARGEST_LOSS), scale, bins / _LOSSES)
    left = losses_up_to(_last_loss(added, lost + tail, scale, min(most, _LARGEST_LOSS)), scale, bins / _LOSSES)
    above = np.array([removed(float(loss)) for loss in right])
    beside = np.array([added(float(loss)) for loss in left])
    above[0] = beside[0] = min(above[0], beside[0])
    beside, above = (np.minimum(np.minimum.accumulate(curve * (1.0 + _ROUNDING)), 1.0) for curve in (beside, above))
    return pair_of_curve(left, beside, right, above)


@dataclass(frozen=True)
class _Tests:
    """What half-lines tell apart, by threshold (row) and squared-norm ratio (column), between thresholds included.

    ``power``: Σ_{j≥1} p_j K_{t,j} of P(y > t), of samples that are drawn; ``rest``: Σ_{j≥1} p_j (1 - K_{t,j}).
    ``above``, ``beside``: P(y > t) at least and P(y ≤ t) at most, where none is drawn.
    """

    power: Array
    rest: Array
    above: Array
    beside: Array
    none: float
    some: float
    size: int
    mass: Array

    @classmethod
    def of(
        cls, x: Array, mass: Array, noise_multiplier: float, sample_rate: float, size: int, spacing: float
    ) -> _Tests:
        shift = 1.0 / (noise_multiplier * np.sqrt(x))
        weights = np.exp(log_coin_weights(size, sample_rate))
        middle = float(mass @ shift / mass.sum())
        last = _BEYOND + size * min(middle, 10.0)
        t = threshold_grid(last, spacing, _LOWEST)
        before, after = np.append(t[:1], t[:-1]), np.append(t[1:], t[-1:])
        reach = np.maximum(t - before, after - t) ** 2 / 8
        power, rest = np.zeros((t.size, x.size)), np.zeros((t.size, x.size))
        for drawn in range(1, size + 1):
            value, other = _majorants(t, shift, noise_multiplier**2 * x, drawn, middle)
            bend = reach[:, None] * _bends(before, after, drawn * shift)
            power += weights[drawn] * (value + bend)
            rest += weights[drawn] * (other - bend)
        slack = reach * largest_bend(np.stack([before, after]))
        some = -math.expm1(size * math.log1p(-sample_rate)) if sample_rate < 1.0 else 1.0
        # Thresholds before the first: all power, level as there; beyond the last: power as there, no level.
        return cls(
            np.vstack([np.full((1, x.size), some), power, power[-1:]]),
            np.vstack([np.zeros((1, x.size)), rest, rest[-1:]]),
            np.concatenate([[ndtr(-t[0])], ndtr(-t) - slack, [0.0]]),
            np.concatenate([[ndtr(t[0])], ndtr(t) + slack, [1.0]]),
            1.0 - some,
            some,
            size,
            mass,
        )

    def removing(self, gamma: float) -> Array:
        """Of each ratio, m times its part in a bound of H_γ(P‖Q), γ ≥ 1: convex and decreasing."""
        value: Array = (self.power - ((gamma - self.none) * self.above)[:, None]).max(axis=0)
        return value

    def adding(self, gamma: float) -> Array:
        """The same for H_γ(Q‖P), γ from 1 to 1/P(none is drawn).

        Majorants exceed 1 at small ratios: for thresholds where that costs more than it saves, the power is taken as 1.
        """
        plain = max(1.0 - gamma * self.none, 0.0) * self.beside
        each = np.maximum(plain[:, None] - gamma * self.rest, 0.0)
        is_worse = each @ self.mass >= plain
        value: Array = np.maximum(each[~is_worse].max(axis=0, initial=0.0), plain[is_worse].max(initial=0.0))
        return value

    def lost(self, x: Array, mass: Array, below: float) -> float:
        """What is added for ratios below the smallest atom: a ramp that is 1 there, falls to 0 at the next atom."""
        return self.size * self.some * (float(mass[0]) + below * (1.0 + x[0] / (x[1] - x[0])))


def _majorants(t: Array, shift: Array, ratio: Array, drawn: int, middle: float) -> tuple[Array, Array]:
    """K_{t,j} and 1 - K_{t,j}: for one sample (C2), for more the tangent at j·middle or t, whichever is larger."""
    if drawn == 1:
        return majorant(t, ratio), majorant_rest(t, ratio)
    b = drawn * shift
    at = np.maximum(drawn * middle - t, 0.0)
    slope = _STEEPEST * np.exp(-(at**2) / 2)
    rise = slope[:, None] * (b - (at + t)[:, None])
    value, rest = ndtr(at)[:, None] + rise, ndtr(-at)[:, None] - rise
    distance = b - t[:, None]
    tail = ndtr(np.minimum(distance, 0.0))
    convex = (distance <= 0.0) & (tail > value)
    return np.where(convex, tail, value), np.where(convex, ndtr(-distance), rest)


def _bends(before: Array, after: Array, mean: Array) -> Array:
    """At least -∂²Φ(y - t)/∂t² = uφ(u), u = y - t, for y ≥ 0 of this mean and t between two others: convex in y."""
    far = np.maximum(-after, 1.0)
    flat = far * np.exp(-(far**2) / 2) * _STEEPEST
    value: Array = np.where((before < 0.0)[:, None], flat[:, None], _STEEPEST * np.maximum(mean - before[:, None], 0.0))
    return value


def _expected(value: Array, x: Array, mass: Array, below: float) -> float:
    """Under the law, the function being continued linearly below the smallest atom."""
    at_zero = value[0] + (value[0] - value[1]) * x[0] / (x[1] - x[0])
    return float(mass @ value + below * at_zero)


def _last_loss(curve: Callable[[float], float], least: float, scale: float, most: float) -> float:
    """About the smallest loss up to ``most`` at which the curve has fallen to ``least``, or falls no more."""
    low, high, value = 0.0, min(scale, most), math.inf
    while high < most and least < curve(high) < value:
        low, high, value = high, min(2 * high, most), curve(high)
    for _ in range(20):
        middle = (low + high) / 2
        low, high = (low, middle) if curve(middle) <= least else (middle, high)
    return high


def step_scale(noise_multiplier: float, sample_rate: float, size: int) -> float:
    """Of a step's small losses."""
    return min(2 * size * sample_rate * math.sqrt(math.expm1(min(noise_multiplier**-2.0, 50.0))), 1.0)


def losses_up_to(end: float, scale: float, density: float) -> Array:
    """From 0 to ``end``, ``density`` of them while losses grow e-fold, and as dense below ``scale``."""
    far = math.asinh(end / scale)
    losses = scale * np.sinh(np.linspace(0.0, far, math.ceil(far * density) + 2))
    losses[-1] = end
    return losses


def pair_of_curve(left: Array, beside: Array, right: Array, above: Array) -> AtomicPair:
    """The pair with the largest convex curve below these points.

    ``above``: H_{e^l}(P‖Q) at losses l of ``right``, from 0 on; ``beside``: H_{e^l}(Q‖P) at those of ``left``.
    """
    step, back = np.diff(right), np.diff(left)
    slope = np.append(np.diff(above) / np.expm1(step), 0.0)  # of the curve, times e^l at its left end
    rest = (beside[:-1] - beside[1:]) / np.expm1(back) + beside[:-1]  # of the curve plus e^l, l the losses reversed
    here = slope[0] + 1.0 - rest[0]
    positive = slope[1:] - slope[:-1] * np.exp(step)
    negative = rest - np.append(rest[1:], beside[-1])
    nodes = np.concatenate([-left[:0:-1], right])
    mass = np.concatenate([negative[::-1], [here], positive])
    missing, beyond = keep_the_envelope(nodes, mass)
    p = np.maximum(mass, 0.0) * np.exp(np.minimum(nodes, 0.0))
    return AtomicPair(nodes, p, max(float(above[-1]) + beyond, 0.0), vanishing=max(float(beside[-1]) + missing, 0.0))


@dataclass(frozen=True)
class EqualGroup:
    """Samples with the same gradient: from below, as equal ratios are one coupling.

    ``shift``, ``mass``: values of Z/σ, decreasing, none larger than those of the law, and their probabilities.
    """

    shift: Array
    mass: Array
    sample_rate: float
    size: int
    slack: float = 0.0

    def loss_range(self, tail: float) -> tuple[float, float]:
        """An interval outside which P has mass at most ``tail`` above and Q at most ``tail`` below."""
        ends = [
            CoinMixture(1.0 / float(shift), self.sample_rate, self.size, False).loss_range(min(tail / share, 0.5))
            for shift, share in zip(self.shift, self.mass.size * self.mass, strict=True)
            if share > tail and shift > 0.0
        ]
        return min(low for low, _ in ends), max(high for _, high in ends)

    def cells(self, nodes: Array) -> LossCells:
        """Masses between increasing loss nodes, of outcomes merged about there, for each value of Z."""
        each = zip(self.shift, self._tables, strict=True)
        losses, p, q = zip(*(self._outcomes(nodes, float(shift), *table) for shift, table in each), strict=True)
        weight = np.repeat(self.mass, [some.size for some in p])
        return by_node(nodes, np.concatenate(p) * weight, np.concatenate(q) * weight, np.concatenate(losses))

    @cached_property
    def _tables(self) -> list[tuple[Array, Array]]:
        """Thresholds and their losses, for each value of Z."""
        log_weights, tables = log_coin_weights(self.size, self.sample_rate), []
        for shift in self.shift:
            mean = float(shift) * np.arange(self.size + 1, dtype=np.int64)
            t = np.linspace(-_FAR, float(mean[-1]) + _FAR, _TABLE)
            exponent = np.multiply.outer(t, mean) - mean**2 / 2 + log_weights
            peak = exponent.max(axis=1)
            tables.append((t, np.log(np.exp(exponent - peak[:, None]).sum(axis=1)) + peak))
        return tables

    def _outcomes(self, nodes: Array, shift: float, t: Array, loss: Array) -> tuple[Array, Array, Array]:
        """Losses of outcomes between thresholds near the nodes' ones, and their masses."""
        mean = shift * np.arange(self.size + 1, dtype=np.int64)
        inside = nodes[(nodes > loss[0]) & (nodes < loss[-1])]
        ends = np.concatenate([[-np.inf], np.interp(inside, loss, t), [np.inf]])
        q = interval_masses(ends)
        p = interval_masses(ends[:, None] - mean) @ np.exp(log_coin_weights(self.size, self.sample_rate))
        keep = (p > _LEAST) & (q > _LEAST)
        return np.log(p[keep] / q[keep]), p[keep], q[keep]
