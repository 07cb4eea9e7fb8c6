r"""Steps with secret probes that differ in their noise alone: their curves at the same thresholds, (C11) of the theory.

Both bounds of T(t) = E Φ(V^{-1/2} - t), V = σ²X, are sums over common bins of V (B5): of numbers that all steps share,
weighted with what each law has in a bin. With its values at common thresholds a curve is that of a pair whose loss
takes finitely many values, found once for every mesh that is asked about later.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dprmt.accounting.basics import Array
from dprmt.accounting.pairs._atomic_pair import AtomicPair
from dprmt.accounting.pairs._cells import LossCells, interval_masses
from dprmt.accounting.pairs._discretization import connect_the_dots
from dprmt.accounting.pairs._secret_lower_pair import masses_between, merged
from dprmt.accounting.pairs._secret_upper_pair import inflection_shift, upper_end
from dprmt.accounting.pairs._shifted_normals import blocks, two_sides

_SQRT3 = float(np.sqrt(3.0))
FARTHEST = 34.0
"""The largest threshold: Q-masses beyond are hardly numbers."""
_LOWEST = -8.0  # Q has less than 1e-15 below
_SPACING = 3.2  # of thresholds, times the bins of a step: half as wide as the mesh of a loss whose slope is 1
_LARGE_RATIO, _LARGE_RATE = 500.0, 0.5


@dataclass(frozen=True)
class CommonBins:
    """Laws of V = σ²X on common bins, one law in each row.

    Attributes
    ----------
    edges : ndarray, shape (n + 1,)
        Where bins meet, increasing.
    mass, mean : ndarray, shape (m, n)
        Of each bin: its probability, and the conditional mean of V.
    first, last : ndarray of int64, shape (m,)
        The edges at which a law's own bins begin and end.
    below, beyond : ndarray, shape (m,)
        Probability of smaller and of larger V than these hold.
    """

    edges: Array
    mass: Array
    mean: Array
    first: NDArray[np.int64]
    last: NDArray[np.int64]
    below: Array
    beyond: Array


def pairs_by_curves(
    bins: CommonBins, spread: Array, sample_rate: float, number: int, tail: float
) -> list[tuple[AtomicPair, AtomicPair]]:
    """Of each law, a pair that is never more private and one that is never less private.

    ``spread``: masses at the edges of laws that are never more private (B1), one in each row, without those below.
    ``number``: bins of a single step, which say how fine all is to be. ``tail``: mass that may be cut off per step.
    """
    shift = bins.edges**-0.5
    t = thresholds(shift, spread, number, tail)
    upper = _upper_pairs(t, *_majorants(t, shift, spread), bins.below, sample_rate, tail)
    value, rest = _lower_curves(t, bins)
    return [
        (above, _lower_pair(t, at_least, beside, sample_rate))
        for above, at_least, beside in zip(upper, value.T, rest.T, strict=True)
    ]


def thresholds(shift: Array, mass: Array, number: int, tail: float) -> Array:
    """Where all curves are taken: up to beyond what each law may cut off, if Q-masses are numbers there."""
    last = min(max(upper_end(shift[own > 0], own[own > 0], tail) for own in mass), FARTHEST)
    return np.linspace(_LOWEST, last, int(np.ceil((last - _LOWEST) * number / _SPACING)) + 1)


def _majorants(t: Array, shift: Array, mass: Array) -> tuple[Array, Array, Array]:
    """E f̂_t of (C3) and the mass less it, each without cancellation where it is small, and the log of (C4).

    ``shift``: values of V^{-1/2}. ``mass``: their probabilities, one law in each row.
    Returns: one threshold in each row, one law in each column.
    """
    value, rest, log_ratio = np.empty((3, t.size, mass.shape[0]))
    frozen = shift / _SQRT3  # where y = 1/3
    at, beside = two_sides(3.0 / frozen)
    rise = frozen / 3 * _density(3.0 / frozen)
    for rows in blocks(t.size):
        star = inflection_shift(t[rows])[:, None]
        nearest, y = np.minimum(shift, star), np.minimum((star / shift) ** 2, 1.0)
        distance = nearest - t[rows, None]
        above, below = two_sides(distance)
        more = nearest / 2 * _density(distance) * (1.0 - y)
        is_frozen = shift > _SQRT3 * star
        value[rows] = np.where(is_frozen, at + rise, above + more) @ mass.T
        rest[rows] = np.where(is_frozen, beside - rise, below - more) @ mass.T
        exponent = nearest * t[rows, None] - nearest**2 / 2
        peak = exponent.max(axis=1, keepdims=True)
        factor = np.where(is_frozen, 0.0, np.maximum(1.5 * y - 0.5, 0.0))
        with np.errstate(divide="ignore"):
            log_ratio[rows] = np.log((np.exp(exponent - peak) * factor) @ mass.T) + peak
    return value, rest, log_ratio


def _density(x: Array) -> Array:
    value: Array = np.exp(-(x**2) / 2) / np.sqrt(2 * np.pi)
    return value


def _upper_pairs(
    t: Array, value: Array, rest: Array, log_ratio: Array, below: Array, sample_rate: float, tail: float
) -> list[AtomicPair]:
    """Of each column, the pair whose loss takes the values at the thresholds: outcomes between them go to both ends."""
    leftover = below * (1.0 + 0.2 * (2.0 + abs(float(t[-1]))))  # β of (C3)
    value, rest = value + leftover, rest + below - leftover
    loss = np.maximum.accumulate(_loss(log_ratio, sample_rate), axis=0)
    absent = interval_masses(np.concatenate([[-np.inf], t, [np.inf]]))
    return [
        _upper_pair(at_most, beside, losses, absent, sample_rate, tail + sample_rate * float(more))
        for at_most, beside, losses, more in zip(value.T, rest.T, loss.T, leftover, strict=True)
    ]


def _upper_pair(value: Array, rest: Array, loss: Array, absent: Array, sample_rate: float, far: float) -> AtomicPair:
    """Of one law: from the first threshold at which T̂ < 1 to the first one beyond which P has at most ``far``.

    ``absent``: Q-masses below, between and beyond the thresholds.
    """
    q, beyond = sample_rate, np.cumsum(absent[:0:-1])[::-1]
    first = int(np.flatnonzero(rest <= 0.0).max(initial=-1)) + 1
    is_far = (1.0 - q) * beyond + q * value <= far
    last = max(int(np.argmax(is_far)) if is_far.any() else loss.size - 1, first)
    value, rest, loss = value[first : last + 1], rest[first : last + 1], loss[first : last + 1]
    step = np.maximum(np.where(value[:-1] < 0.5, -np.diff(value), np.diff(rest)), 0.0)
    between = np.append(absent[: first + 1].sum(), absent[first + 1 : last + 1])
    p = (1.0 - q) * between + q * np.append(max(float(rest[0]), 0.0), step)
    losses = np.append(np.log1p(-q), loss)  # left of the cap it is log(1 - q): (C6)
    masses = connect_the_dots(losses, LossCells(p, between, 0.0, 0.0, 0.0, 0.0))
    # Beyond the last one all is infinite under P; under Q, where it is rarer, it stays there.
    masses[-1] += beyond[last] * np.exp(losses[-1])
    seen = masses > 0.0
    infinite = (1.0 - q) * float(beyond[last]) + q * min(float(value[-1]), 1.0)
    return AtomicPair(losses[seen], masses[seen], infinite, vanishing=0.0)


def _loss(log_ratio: Array, sample_rate: float) -> Array:
    """Log of 1 - q + q r, given log r."""
    by_sum = np.logaddexp(np.log1p(-sample_rate), np.log(sample_rate) + log_ratio)
    if sample_rate > _LARGE_RATE:
        return by_sum
    near = np.log1p(sample_rate * np.expm1(np.minimum(log_ratio, _LARGE_RATIO)))
    return np.where(log_ratio > _LARGE_RATIO, by_sum, near)


def _lower_curves(t: Array, bins: CommonBins) -> tuple[Array, Array]:
    """A lower bound of E Φ(V^{-1/2} - t), and 1 minus it; each without cancellation where it is small (C11).

    Returns: one threshold in each row, one law in each column.
    """
    edges, mass = bins.edges, bins.mass.T
    width, center = np.diff(edges), (edges[1:] + edges[:-1]) / 2
    to_right = np.clip((bins.mean.T - edges[:-1, None]) / width[:, None], 0.0, 1.0)
    off_center = mass * (bins.mean.T - center[:, None])
    at_first = np.zeros((edges.size, mass.shape[1]))
    at_first[bins.first, np.arange(mass.shape[1], dtype=np.int64)] = bins.below
    value, rest = np.empty((2, t.size, mass.shape[1]))
    for rows in blocks(t.size):
        star = inflection_shift(t[rows])[:, None]
        ends, middle = edges**-0.5 - t[rows, None], center**-0.5 - t[rows, None]
        convex = edges[:-1] ** -0.5 <= star
        concave = ~convex & (edges[1:] ** -0.5 >= star)
        tangent = (np.where(convex, _density(middle), 0.0) * (-0.5 * center**-1.5)) @ off_center
        last = -t[rows, None]
        for total, sign, (at_ends, at_center, at_last) in zip(
            (value, rest), (1.0, -1.0), zip(*(two_sides(x) for x in (ends, middle, last)), strict=True), strict=True
        ):
            total[rows] = np.where(convex, at_center, 0.0) @ mass + sign * tangent
            total[rows] += np.where(concave, at_ends[:, :-1], 0.0) @ (mass * (1.0 - to_right))
            total[rows] += np.where(concave, at_ends[:, 1:], 0.0) @ (mass * to_right)
            total[rows] += np.where(convex | concave, 0.0, at_ends[:, 1:]) @ mass
            total[rows] += at_ends @ at_first + at_last * bins.beyond
    return value, rest


def _lower_pair(t: Array, value: Array, rest: Array, sample_rate: float) -> AtomicPair:
    """The least concave curve over points that lie nowhere above a curve: (C5)."""
    ends = np.concatenate([[-np.inf], t, [np.inf]])
    p, _, losses = (np.array(part) for part in merged(*masses_between(ends, value, rest, sample_rate)))
    seen = p > 0.0
    return AtomicPair(losses[seen], p[seen], 0.0, vanishing=0.0)
