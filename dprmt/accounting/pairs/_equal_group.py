r"""Groups with public probes, loss by loss: (N9), (N13) of ``docs/theory/neighbours.md`` from above, (N14) below."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from scipy.special import ndtr

from dprmt.accounting.basics import Array
from dprmt.accounting.laws import NormRatioBins
from dprmt.accounting.pairs._coin_mixtures import log_coin_weights
from dprmt.accounting.pairs._equal_ratios import EqualRatios, Tangents, largest_majorant_excess
from dprmt.accounting.pairs._opposite_replacement import curve_of
from dprmt.accounting.pairs._public_group import losses_up_to, pair_of_curve, step_scale
from dprmt.accounting.pairs._public_replacement import LARGEST_LOSS, AtomicPair

_ROUNDING = 1e-11  # of powers, and residuals of equations
_STEEPEST = 1.0 / math.sqrt(2 * math.pi)
_LOSSES, _TRIED, _FEWER, _NEAR_THE_LAST, _SHARE_LEFT_OUT = 1.6, 60, 4, 1e-9, 1e-2
_STARTS = (-9.0, -5.0, -2.5, -1.5, -0.75)  # adding: at lower thresholds drawn samples are left out
_CELLS_OF_THRESHOLDS, _MOST_OF_THRESHOLDS = 8, 256
_ROUGHLY, _SEEN, _MUCH = 1e-3, 100.0, 2e-2  # of the curve at 0, times the tail, and of the curve
_LEAST_SHIFT, _LEAST_MASS = 1e-9, 1e-290  # lighter outcomes are left out, which is safe from below
_LARGEST_CONVEX_SHIFT = math.sqrt(12.0)  # of one sample: (T2)


def changed_loss_by_loss(
    law: NormRatioBins,
    noise_multiplier: float,
    sample_rate: float,
    size: int,
    bins: int,
    tail: float,
    is_rough: bool,
) -> tuple[AtomicPair, Callable[[AtomicPair], AtomicPair] | None]:
    """A pair that dominates ``size`` samples with coins of their own under every coupling of their norm estimates.

    ``law``: of the squared-norm ratio, the worst one in the convex order. ``bins``: to which the number of losses is
    proportional. ``tail``: P-mass at losses that need not be resolved. ``is_rough``: whether large losses may be
    charged much, as most answers are decided by others.
    Returns: the pair, and, where much is added to equal ratios, what makes the smaller one of it and another.
    """
    group = _Group.of(law, noise_multiplier, sample_rate, size, tail)
    scale = step_scale(noise_multiplier, sample_rate, size)
    most = min(group.most, LARGEST_LOSS) * (1.0 - _NEAR_THE_LAST)
    right = losses_up_to(group.last_loss(scale, LARGEST_LOSS, True, tail), scale, bins / _LOSSES)
    left = losses_up_to(group.last_loss(scale, most, False, tail), scale, bins / _LOSSES)
    curves, is_loose = [], False
    for curve, equal in (group.adding(left), group.removing(right)):
        seen = curve > (_ROUGHLY * curve[0] if is_rough else _SEEN * tail)
        is_loose |= bool(np.any(curve[seen] > (1.0 + _MUCH) * equal[seen] + _SEEN * group.lost))
        curves.append(curve)
    if group.most < LARGEST_LOSS:  # P ≥ p_0 Q: nothing is left at -log p_0, where the bounds near it say more
        left, curves[0] = np.append(left, group.most * (1.0 + _NEAR_THE_LAST)), np.append(curves[0], 0.0)

    def pair(beside: Array, above: Array) -> AtomicPair:
        above[0] = beside[0] = min(above[0], beside[0])
        beside, above = (np.minimum(np.minimum.accumulate(curve), 1.0) for curve in (beside, above))
        return pair_of_curve(left, beside, right, above)

    def smaller(other: AtomicPair) -> AtomicPair:
        beside, above = curves
        return pair(np.minimum(beside, added_curve_of(other, left)), np.minimum(above, curve_of(other, right)))

    return pair(*(curve.copy() for curve in curves)), smaller if is_loose else None


def added_curve_of(pair: AtomicPair, losses: Array) -> Array:
    """H_{e^l}(Q‖P) of a pair at losses l."""
    q = pair.p * np.exp(-pair.losses)
    vanishing = pair.infinite if pair.vanishing is None else pair.vanishing
    return np.asarray([vanishing + q @ np.maximum(-np.expm1(loss + pair.losses), 0.0) for loss in losses])


@dataclass(frozen=True)
class _Group:
    """Samples that change together, and the law of their ratios.

    ``shift``, ``mass``: atoms of the law spread outward, ``below``: probability of smaller ratios; ``log_weights``: of
    the numbers of drawn samples that are not left out; ``some``: probability that any is drawn; ``most``: -log of that
    of none; ``lost``: what is charged at every loss.
    """

    shift: Array
    mass: Array
    below: float
    log_weights: Array
    some: float
    most: float
    lost: float

    @classmethod
    def of(cls, law: NormRatioBins, noise_multiplier: float, sample_rate: float, size: int, tail: float) -> _Group:
        x, mass = law.spread(0.0)
        log_weights = log_coin_weights(size, sample_rate)
        rarer = np.append(np.cumsum(np.exp(log_weights)[::-1])[::-1][1:], 0.0)
        kept = max(int(np.argmax(rarer <= _SHARE_LEFT_OUT * tail)), min(size, 2))
        most = -size * math.log1p(-sample_rate)
        some = -math.expm1(-most)
        ramp = size * some * (float(mass[0]) + law.below * (1.0 + x[0] / (x[1] - x[0])))
        shift = 1.0 / (noise_multiplier * np.sqrt(x))
        return cls(shift, mass, law.below, log_weights[: kept + 1], some, most, ramp + float(rarer[kept]))

    def removing(self, losses: Array) -> tuple[Array, Array]:
        """At least H_{e^l}(P‖Q) at losses l ≥ 0, and what equal ratios cost."""
        tau = np.expm1(losses) + self.some
        equal = EqualRatios.at(tau, self.shift, self.log_weights)
        first = np.sqrt(2.0 * np.maximum(np.log(tau) - math.log(self.some), 0.0))
        each = equal.removing()
        return self._expected(each + self._tangents(equal, first).added()) + self.lost, each @ self.mass

    def adding(self, losses: Array) -> tuple[Array, Array]:
        """At least H_{e^l}(Q‖P) at losses l ≥ 0, less than that of an outcome where no sample can have been drawn.

        Returns: that, and what equal ratios cost.
        """
        tau = np.exp(-losses) * -np.expm1(losses - self.most)
        equal, best = EqualRatios.at(tau, self.shift, self.log_weights), self._of_one_alone(tau)
        for start in _STARTS:
            first = np.full(losses.size, start)
            each = equal.adding() + self._tangents(equal, first).added()
            each = np.maximum(each, (tau * ndtr(start))[:, None])
            best = np.minimum(best, self._expected(each))
        return np.exp(losses) * best + self.lost, np.exp(losses) * (equal.adding() @ self.mass)

    def _of_one_alone(self, tau: Array) -> Array:
        """E sup_t [τ Φ(t) - p_1 Φ(t - a)]: that two samples or more are drawn is left out."""
        shift, log_share = self.shift, float(self.log_weights[1])
        distance = (np.log(tau)[:, None] - log_share) / shift
        plain = tau[:, None] * ndtr(distance + shift / 2)
        each = np.maximum(plain - math.exp(log_share) * ndtr(distance - shift / 2), 0.0) + _ROUNDING * plain
        x = shift**-2.0
        last = min(int(np.searchsorted(-shift, -_LARGEST_CONVEX_SHIFT)), x.size - 2)  # smaller ratios: at most τ
        if last == 0:
            return self._expected(each)
        hinge = np.maximum(x[last + 1] - x, 0.0) / (x[last + 1] - x[last])
        rare = float(self.mass @ hinge) + self.below * x[last + 1] / (x[last + 1] - x[last])
        return np.asarray(
            np.where(np.arange(x.size, dtype=np.int64) >= last, each, each[:, last : last + 1]) @ self.mass
            + tau * (rare + self.below)
        )

    @cached_property
    def _of_one(self) -> Array:
        return largest_majorant_excess(self.shift)

    def _tangents(self, equal: EqualRatios, first: Array) -> Tangents:
        middle = float(self.mass @ self.shift / self.mass.sum())
        return Tangents(equal, first, np.exp(self.log_weights), middle, self._of_one)

    def _expected(self, each: Array) -> Array:
        """Under the law; below the smallest atom a function grows by no more than Σ p_j Φ' = Σ p_j jφ(0) per shift."""
        number = np.arange(self.log_weights.size, dtype=np.int64)
        steepest = _STEEPEST / 2 * float(np.exp(self.log_weights) @ number) * float(self.shift[0])
        return np.asarray(each @ self.mass + self.below * (each[:, 0] + steepest))

    def last_loss(self, scale: float, most: float, is_removed: bool, tail: float) -> float:
        """About the smallest loss up to ``most`` at which what equal ratios cost has fallen to the last ``tail``."""
        tried = np.append(np.geomspace(min(scale, most) / 8, most, _TRIED)[:-1], most)
        tau = np.expm1(tried) + self.some if is_removed else np.exp(-tried) * -np.expm1(tried - self.most)
        some, mass = (
            self.shift[::_FEWER],
            np.add.reduceat(self.mass, np.arange(0, self.mass.size, _FEWER, dtype=np.intp)),
        )
        equal = EqualRatios.at(tau, some, self.log_weights)
        value = equal.removing() @ mass if is_removed else np.exp(tried) * (equal.adding() @ mass)
        enough = np.flatnonzero(value <= self.lost + tail)
        return float(tried[enough[0]]) if enough.size else most


def equals_below(
    law: NormRatioBins, noise_multiplier: float, sample_rate: float, size: int, bins: int, tail: float
) -> AtomicPair:
    """A pair that samples with the same gradient dominate: outcomes of about one loss are one."""
    log_weights = log_coin_weights(size, sample_rate)
    x, mass = law.concentrate(convex_from(law, noise_multiplier, np.exp(log_weights)))
    shift = np.maximum(1.0 / (noise_multiplier * np.sqrt(x)), _LEAST_SHIFT)
    some, scale = -math.expm1(size * math.log1p(-sample_rate)), step_scale(noise_multiplier, sample_rate, size)
    most = -size * math.log1p(-sample_rate)
    last = min(most, LARGEST_LOSS) * (1.0 - _NEAR_THE_LAST)

    def tails(losses: Array, sign: int) -> tuple[Array, Array]:
        """P- and Q-mass of larger losses, or of those below their negative."""
        tau = some + np.expm1(losses) if sign > 0 else np.exp(-losses) * -np.expm1(losses - most)
        equal = EqualRatios.at(tau, shift, log_weights)
        t, none = equal.threshold, 1.0 - some
        return (none * ndtr(-sign * t) + (equal.power if sign > 0 else equal.rest)) @ mass, ndtr(-sign * t) @ mass

    masses, ends = [], ((1, LARGEST_LOSS), (-1, last))
    for sign, farthest in ends:
        tried = np.append(np.geomspace(min(scale, farthest) / 8, farthest, _TRIED)[:-1], farthest)
        enough = np.flatnonzero(tails(tried, sign)[0 if sign > 0 else 1] <= tail)
        losses = losses_up_to(float(tried[enough[0]]) if enough.size else farthest, scale, bins / _LOSSES)
        masses.append([some - np.append(some[1:], 0.0) for some in tails(losses, sign)])
    p, q = (np.concatenate([less[::-1], more]) for more, less in zip(*masses, strict=True))
    seen = (p > _LEAST_MASS) & (q > _LEAST_MASS)
    return AtomicPair(np.log(p[seen] / q[seen]), p[seen], 0.0)


def convex_from(law: NormRatioBins, noise_multiplier: float, weights: Array) -> Array:
    """Numbers c of bins: what equal ratios cost is convex in e^{ρx} there, ρ = (3/2x)(c/x - 1)₊, for every loss (N14).

    c = v/(3σ²), v at least [Var(b) + t(b̄ - t)]/a² over thresholds t and a in the bin; b = ja weighs jp_jφ(b - t).
    """
    size = weights.size - 1
    with np.errstate(divide="ignore"):
        squares = np.stack([1.0 / (noise_multiplier**2 * law.right), 1.0 / (noise_multiplier**2 * law.left)])
    cells = np.linspace(0.0, size, min(size * _CELLS_OF_THRESHOLDS, _MOST_OF_THRESHOLDS) + 1)
    low, high = cells[:-1, None], cells[1:, None]  # of t/a
    bound = low * (1.0 - low) + np.maximum((high - low) * (1.0 - 2.0 * low), 0.0)
    with np.errstate(divide="ignore"):
        rest = np.log(weights[2:] / weights[1])
    for number, log_ratio in zip(range(2, size + 1), rest, strict=True):
        slope = (number - 1) * (high - (number + 1) / 2)
        share = np.exp(
            np.minimum(np.maximum(squares[0] * slope, squares[1] * slope) + log_ratio + math.log(number), 0.0)
        )
        bound = bound + share * (number - 1) * (number - 1 + high)
    center = np.minimum((size + 1 + high) / 2, size)
    anyway = (center - 1.0) * (size - center) + high * center - low**2
    most = np.maximum(np.minimum(bound, anyway).max(axis=0), 0.0)
    value: Array = most / (3.0 * noise_multiplier**2)
    return value
