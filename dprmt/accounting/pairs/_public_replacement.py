r"""One step with public probes in which a sample is replaced: equation (N3) of ``docs/theory/neighbours.md``.

Public probes couple the squared-norm ratios X and X' of both samples in an unknown way. Two functions with
w(x) + v(x') ≥ ĥ(x, x') bound every coupling, and E w(X) + E v(X') asks about one sample at a time.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr

from dprmt.accounting.basics import Array
from dprmt.accounting.pairs._cells import LossCells
from dprmt.accounting.pairs._public_pair import PublicPair
from dprmt.accounting.pairs._tight_pair import keep_the_envelope

_ROUNDING = 1e-9
_LARGEST_THRESHOLD, _LOWEST = 40.0, -8.0
_SPACING, _STEP = 3.2, 5.0  # of thresholds, and of losses in logarithms, times the number of bins
_DENSER_UP_TO = 10.0
_ANTIMONOTONE_UP_TO = 0.5
_LEAST_SHIFT = 1e-9
LARGEST_LOSS = 700.0  # e^709 is the last finite one


@dataclass(frozen=True)
class AtomicPair:
    """A pair whose loss takes finitely many values.

    ``p``: P-masses; ``infinite``: P-mass at an infinite loss; ``vanishing``: Q-mass at its negative, None for as much.
    ``reach``: how far losses are to be resolved at least.
    """

    losses: Array
    p: Array
    infinite: float
    reach: float = 0.0
    slack: float = 0.0
    vanishing: float | None = None

    def loss_range(self, tail: float) -> tuple[float, float]:
        """Where the atoms lie; ``tail`` is not needed."""
        del tail
        return min(float(self.losses[0]), -self.reach), max(float(self.losses[-1]), self.reach)

    def cells(self, nodes: Array) -> LossCells:
        """Masses between increasing loss nodes."""
        place = np.searchsorted(nodes, self.losses)
        p = np.bincount(place, weights=self.p, minlength=nodes.size + 1)
        q = np.bincount(place, weights=self.p * np.exp(-self.losses), minlength=nodes.size + 1)
        return LossCells(
            p=p[1:-1],
            q=q[1:-1],
            p_below=float(p[0]),
            q_below=float(q[0]) + (self.infinite if self.vanishing is None else self.vanishing),
            p_above=float(p[-1]) + self.infinite,
            q_above=float(q[-1]),
        )

    def total_variation(self) -> float:
        """At least H_1 of what it stands for, in either direction."""
        more = self.p * -np.expm1(-self.losses)
        vanishing = self.infinite if self.vanishing is None else self.vanishing
        removed, added = np.maximum(more, 0.0).sum() + self.infinite, np.maximum(-more, 0.0).sum() + vanishing
        return float(max(removed, added)) + self.slack


def replaced_by_potentials(
    x: Array, mass: Array, below: float, noise_multiplier: float, sample_rate: float, bins: int, tail: float
) -> AtomicPair:
    """A pair that dominates two samples under every coupling of their norm estimates.

    ``x``, ``mass``: a law of the squared-norm ratio that is spread outward from the worst one in the convex order.
    ``below``: probability of smaller ratios. ``tail``: P-mass at losses that need not be resolved.
    """
    shift = 1.0 / (noise_multiplier * np.sqrt(x))
    last = min(_last_threshold(shift, mass, tail / sample_rate), _LARGEST_THRESHOLD)
    high = min(largest_loss(shift, mass, sample_rate, tail), LARGEST_LOSS)  # beyond, all counts as infinite
    scale = min(2 * sample_rate * math.sqrt(math.expm1(min(noise_multiplier**-2.0, 50.0))), 1.0)
    tests = _Tests.of(np.append(0.0, noise_multiplier**2 * x), sample_rate, last, _SPACING / bins)
    end = math.asinh(high / scale)
    losses = scale * np.sinh(np.linspace(0.0, end, math.ceil(end * bins / _STEP) + 2))
    weights = np.append(below, mass)
    curve = np.array([tests.bound(float(loss), weights) for loss in losses])
    return symmetric_pair(losses, curve)


def symmetric_pair(losses: Array, curve: Array) -> AtomicPair:
    """The pair with the largest convex δ(ε) that is at most ``curve`` at ``losses`` ≥ 0, and the same exchanged."""
    curve = np.minimum(np.minimum.accumulate(curve * (1.0 + _ROUNDING)), 1.0)
    step = np.diff(losses)
    mass = np.zeros(losses.size)
    mass[1:] = -np.diff(curve) / -np.expm1(-step)
    mass[1:-1] += np.diff(curve)[1:] / np.expm1(step[1:])
    infinite = float(curve[-1])
    mass[0] = 1.0 - infinite - float(mass[1:] @ (1.0 + np.exp(-losses[1:])))
    nodes = np.concatenate([-losses[:0:-1], losses])
    both = np.concatenate([mass[:0:-1], mass])
    missing, beyond = keep_the_envelope(nodes, both)
    return AtomicPair(
        nodes, np.maximum(both, 0.0) * np.exp(np.minimum(nodes, 0.0)), infinite + max(missing, beyond, 0.0)
    )


@dataclass(frozen=True)
class _Tests:
    """What half-lines tell apart, by threshold (row) and squared-norm ratio (column): majorants between thresholds.

    With test x > t: ``power`` q·f̂_t(X) of P, ``level`` q·(1 - f̂_{-t}(X')) of Q; ``plain``: (1-q)·P(x > t) of both,
    where the sample is not drawn; ``extra``: by how much that of P is larger.
    """

    power: Array
    level: Array
    plain: Array
    extra: Array

    @classmethod
    def of(cls, ratio: Array, sample_rate: float, last: float, spacing: float) -> _Tests:
        """``ratio``: 1/μ², increasing from 0."""
        q = sample_rate
        t = threshold_grid(last, spacing, _LOWEST)
        widths = np.diff(t)
        reach = np.maximum(np.append(widths[:1], widths), np.append(widths, widths[-1:])) ** 2 / 8
        around = np.append(t[:1], t[:-1]), np.append(t[1:], t[-1:])
        value = majorant(t, ratio)
        power = q * (value + _convex_in_ratio(reach, around, ratio))
        rest = majorant_rest(-t, ratio)
        bend = _bend(-around[1], -around[0], ratio).max(axis=1)
        level = q * (rest - (reach * bend)[:, None])
        tail = ndtr(-t)
        slack = reach * largest_bend(np.stack(around))
        plain = (1.0 - q) * (tail - slack)
        # Thresholds beyond the last: power as there and no level; before the first: all power, level as there.
        extra = [(1.0 - q) * tail[-1], (1.0 - q) * (1.0 - tail[0])]
        return cls(
            np.vstack([power, power[-1:], np.full((1, ratio.size), q)]),
            np.vstack([level, np.zeros((1, ratio.size)), level[:1]]),
            np.concatenate([plain, [0.0, (1.0 - q) * tail[0]]]),
            np.concatenate([np.zeros(t.size), extra]),
        )

    def bound(self, loss: float, mass: Array) -> float:
        """At least H_{e^loss} of two samples whose ratios have laws of these masses or smaller in the convex order."""
        gamma = math.exp(loss)
        own = self.extra - (gamma - 1.0) * self.plain
        kinds = [True, False] if loss <= _ANTIMONOTONE_UP_TO else [True]
        return min(self._by_potentials(gamma, own, mass, is_equal) for is_equal in kinds)

    def _by_potentials(self, gamma: float, own: Array, mass: Array, is_equal: bool) -> float:
        """By v with the slope that h has along one coupling, and what w and v then must be."""
        level = gamma * self.level - own[:, None]
        first = np.arange(mass.size - 1, dtype=np.int64)
        if is_equal:
            rise = self._rise(level, first, first) + self._rise(level, first + 1, first)
            rise /= 2
        else:
            rise = self._rise(level, _opposite(mass), first)
        v = np.append(np.cumsum(-rise[::-1])[::-1], 0.0)
        w = (self.power - (level + v).min(axis=1)[:, None]).max(axis=0)
        v = ((self.power - w).max(axis=1)[:, None] - level).max(axis=0)
        return float(mass @ (w + v))

    def _rise(self, level: Array, at: NDArray[np.intp], first: NDArray[np.intp]) -> Array:
        """h(x, x'') - h(x, x') for neighbours x' < x'' and an x each."""
        power = self.power[:, at]
        value: Array = (power - level[:, first + 1]).max(axis=0) - (power - level[:, first]).max(axis=0)
        return value


def majorant(t: Array, ratio: Array) -> Array:
    """f̂_t, a convex majorant of Φ(μ - t) in ratio = 1/μ²; a row for each t (C2)."""
    value, rise = _parts(t, ratio)
    return value + rise


def majorant_rest(t: Array, ratio: Array) -> Array:
    """1 - f̂_t, without cancellation."""
    at, star, shift = _tangent(t, ratio)
    rise = np.where(shift > star[:, None], _tangent_rise(star, at, ratio), 0.0)
    value: Array = ndtr(t[:, None] - np.minimum(shift, star[:, None])) - rise
    return value


def _parts(t: Array, ratio: Array) -> tuple[Array, Array]:
    at, star, shift = _tangent(t, ratio)
    rise = np.where(shift > star[:, None], _tangent_rise(star, at, ratio), 0.0)
    return ndtr(np.minimum(shift, star[:, None]) - t[:, None]), rise


def _tangent(t: Array, ratio: Array) -> tuple[Array, Array, Array]:
    """μ*(t) - t, μ*(t), and the shifts."""
    root = np.sqrt(t**2 + 12.0)
    star = np.where(t >= 0.0, (t + root) / 2, 6.0 / (root - np.minimum(t, 0.0)))
    with np.errstate(divide="ignore"):
        shift = 1.0 / np.sqrt(ratio)
    return 3.0 / star, star, shift


def _tangent_rise(star: Array, at: Array, ratio: Array) -> Array:
    density = np.exp(-(at**2) / 2) / math.sqrt(2 * math.pi)
    value: Array = (star / 2 * density)[:, None] * (1.0 - np.multiply.outer(star**2, ratio))
    return value


def _bend(low: Array, high: Array, ratio: Array) -> Array:
    """At least -∂²f̂_t/∂t² for t between ``low`` and ``high``: the largest yφ(y), y = min(μ, μ*(t)) - t."""
    ends = []
    for t in (low, high):
        at, star, shift = _tangent(t, ratio)
        ends.append(np.where(shift > star[:, None], at[:, None], shift - t[:, None]))
    return largest_bend(np.stack(ends))


def largest_bend(ends: Array) -> Array:
    """The largest yφ(y) for y ≥ 0 between two numbers."""
    low, high = ends.min(axis=0), ends.max(axis=0)
    nearest = np.clip(1.0, low, high)
    value: Array = np.maximum(nearest * np.exp(-(nearest**2) / 2) / math.sqrt(2 * math.pi), 0.0)
    return value


def _convex_in_ratio(reach: Array, around: tuple[Array, Array], ratio: Array) -> Array:
    """A convex function of the ratio, at least what f̂ may exceed its chord between thresholds by."""
    bend = reach[:, None] * _bend(*around, ratio)
    before = np.maximum(around[0], 1e-9)
    slope = 1.0 - np.multiply.outer(before**2, ratio)  # 0 where μ is the threshold before: f̂ is convex in t beyond
    with np.errstate(divide="ignore", invalid="ignore"):
        steepest = np.where((slope > 0.0) & (bend > 0.0), bend / slope, 0.0).max(axis=1)
    ramp = steepest[:, None] * np.maximum(slope, 0.0)
    flat = np.broadcast_to(bend.max(axis=1)[:, None], ramp.shape)
    value: Array = np.where((around[0] > 0.1)[:, None], ramp, flat)
    return value


def threshold_grid(last: float, spacing: float, lowest: float) -> Array:
    """Denser where tails are steeper, so that relative errors of second order are equal; less so far out."""
    near = min(last, _DENSER_UP_TO)
    u = np.linspace(0.0, near + near**2 / 4, math.ceil((near + near**2 / 4) / spacing) + 1)
    right = 2.0 * (np.sqrt(1.0 + u) - 1.0)
    if last > near:
        growth = spacing / (1.0 + near / 2) / near
        right = np.append(right, np.geomspace(near, last, math.ceil(math.log(last / near) / growth) + 1)[1:])
    left = -right[(right > 0.0) & (right <= -lowest)][::-1]
    return np.concatenate([left, right])


def _opposite(mass: Array) -> NDArray[np.intp]:
    """For each two neighbours of a law the place that the opposite ranks share with both."""
    ranks = np.cumsum(mass)
    return np.minimum(np.searchsorted(ranks, ranks[-1] - ranks[:-1]), mass.size - 1)


def _last_threshold(shift: Array, mass: Array, tail: float) -> float:
    """A t with E Φ(μ - t) ≤ ``tail``."""
    low, high = 0.0, float(shift.max()) + 40.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (low, middle) if float(ndtr(shift - middle) @ mass) <= tail else (middle, high)
    return high


def largest_loss(shift: Array, mass: Array, sample_rate: float, tail: float) -> float:
    """No smaller than the loss that P exceeds with probability ``tail``."""
    high = PublicPair(np.maximum(shift, _LEAST_SHIFT), mass, sample_rate).loss_range(tail)[1]
    return high + min(-math.log1p(-sample_rate) if sample_rate < 1.0 else math.inf, high)
