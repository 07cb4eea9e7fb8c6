r"""Bound P(m > x), the energy that a Gaussian sketch leaves in one direction, for every spectrum.

m is the largest squared singular value of M(I - QQᵀ) over ‖M‖²_F. The smaller one of two proved bounds, (H2) and
(H3) of ``docs/theory/randomized_clipping.md``, with the rounding of Q charged (H5), gives the law of (H4).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from scipy.special import betainc, gammainc, gammaincc, gammaln, ndtr

from dprmt.accounting.basics._numbers import Array
from dprmt.accounting.laws._gamma_mixture import GammaMixture

SHIFTS = np.array([0.0, 1.0, 2.5, 6.0, 9.0])
"""Values of a that are tried."""


def comparison_bound(total: float, sketch: int, power_iteration: bool, error: float = 0.0) -> float:
    """Return a bound on P(m > x), the smallest over a few multipliers μ and shifts a; every choice is valid.

    ``error``: κ of (H5), by how much the constraints may be missed.
    """
    fill = min(total / sketch, 1.0)
    best = math.inf
    for mu in (0.45, 0.3 + 0.65 * fill) if power_iteration else (0.4 + 0.8 * fill, 0.55 + 0.8 * fill):
        cap, terms = _weights(total, min(mu, 0.95), power_iteration)
        whole = math.floor(terms)
        part = terms - whole
        low, high = (expected_majorants(cap, count, sketch) for count in (whole, whole + 1))
        values = ((1.0 - part) * low + part * high) / np.maximum(ndtr(-SHIFTS - error), 1e-300)
        best = min(best, float(values.min()))
    return best


def _weights(total: float, mu: float, power_iteration: bool) -> tuple[float, float]:
    """Return the largest possible weight h, and how many of it the sum of all weights makes."""
    if power_iteration:
        cap, weight = 1.0 / (1.0 - mu / 4), total / (2 * math.sqrt(mu) - mu)
    else:
        cap, weight = total / (total * (1.0 - mu) + mu), total / mu
    return cap, weight / cap


def expected_majorants(cap: float, count: int, sketch: int) -> Array:
    """Return upper bounds on E ψ̂_a(cap·χ²(count)), ψ_a(y) = P(χ(s) ≤ √y - a), for each shift a: by chords."""
    if count == 0:
        return np.zeros(SHIFTS.size)
    flex, height, slope = _tangency(sketch)
    end = max(count / 2 + 40.0 + 9.0 * math.sqrt(count), float(flex.max()) / (2 * cap))
    edges = np.linspace(0.0, math.sqrt(2 * end), 72) ** 2
    mass, moment = GammaMixture((count,)).increments(edges[:-1] / count, edges[1:] / count)
    to_right = np.clip((count * moment - edges[:-1] * mass) / np.diff(edges), 0.0, mass)
    atoms = np.append(mass - to_right, 0.0) + np.append(0.0, to_right)
    y = cap * edges[:, None]
    curve = gammainc(sketch / 2, np.maximum(np.sqrt(y) - SHIFTS, 0.0) ** 2 / 2)
    majorant = np.where(y <= flex, curve, height + slope * (y - flex))
    beyond, moment_beyond = gammaincc(count / 2, end), cap * count * gammaincc(count / 2 + 1.0, end)
    straight = beyond * (height - slope * flex) + slope * moment_beyond  # E of the tangent beyond the last edge
    value: Array = (atoms @ majorant + np.maximum(straight, 0.0)) * (1.0 + 1e-9)  # rounding
    return value


@lru_cache(maxsize=64)
def _tangency(sketch: int) -> tuple[Array, Array, Array]:
    """Find where each ψ_a turns from convex to concave, with value and slope: (s-1)/v - v = 1/(v + a), v = √y - a."""
    from scipy.optimize import brentq  # on use: a third of the subpackage's import time

    top = math.sqrt(sketch - 1.0)
    reach = np.array([brentq(lambda v, a=a: top**2 / v - v - 1.0 / (v + a), 1e-9 * top, top) for a in SHIFTS])
    log_density = (sketch - 1) * np.log(reach) - reach**2 / 2
    density = np.exp(log_density - (sketch / 2 - 1) * math.log(2) - gammaln(sketch / 2))
    flex = (reach + SHIFTS) ** 2
    return flex, gammainc(sketch / 2, reach**2 / 2), density / (2 * np.sqrt(flex))


_HINGE_ROUNDING = 1e-11
"""Relative error charged for scipy's incomplete beta and gamma functions, before differences are taken."""


def hinge_bound(scale: Array, terms: Array, dof: Array) -> Array:
    """Bound E(V - a)₊/(1 - a) for V = c·Σ b_i η_i²/χ²(ν), a = 1 - 2/ν, and for averages of such V.

    The results bound P(V ≥ 1), also for an average of ratios of this law whatever their dependence.
    """
    return _interpolated(_hinge, scale, terms, dof)


def tangent_bound(scale: Array, terms: Array, dof: Array) -> Array:
    """Bound E ψ̂(c·Σ b_i η_i²), where ψ̂ is the CDF of χ²(ν) with its tangent beyond the inflection; arguments as
    above.
    """
    return _interpolated(_tangent, scale, terms, dof)


def _interpolated(bound: Callable[[Array, Array, Array], Array], scale: Array, terms: Array, dof: Array) -> Array:
    whole = np.floor(terms)
    part = terms - whole
    return (1.0 - part) * bound(scale, whole, dof) + part * bound(scale, whole + 1.0, dof)


def _hinge(scale: Array, terms: Array, dof: Array) -> Array:
    n, nu, c = np.maximum(terms, 1.0), np.maximum(dof, 3.0), np.maximum(scale, 1e-290)
    a = 1.0 - 2.0 / nu
    mean = c * n / (nu - 2.0) * betainc(nu / 2 - 1.0, n / 2 + 1.0, c / (a + c))
    mass = a * betainc(nu / 2, n / 2, c / (a + c))
    value = np.maximum(mean - mass, 0.0) + _HINGE_ROUNDING * (mean + mass)
    value = np.where(dof < 3.0, 1e9, value / (1.0 - a))
    return np.where((terms <= 0) | (scale <= 0), 0.0, value)


def _tangent(scale: Array, terms: Array, dof: Array) -> Array:
    n, c, flex = np.maximum(terms, 1.0), np.maximum(scale, 1e-290), np.maximum(dof - 2.0, 1e-290)
    slope = np.exp((dof / 2 - 1.0) * np.log(flex) - flex / 2 - dof / 2 * np.log(2.0) - gammaln(dof / 2))
    start = np.minimum(flex / c, 1e290)
    mean, mass = n * gammaincc(n / 2 + 1.0, start / 2), start * gammaincc(n / 2, start / 2)
    excess = np.maximum(mean - mass, 0.0) + _HINGE_ROUNDING * (mean + mass)
    value = (betainc(dof / 2, n / 2, c / (1.0 + c)) + c * slope * excess) * (1.0 + _HINGE_ROUNDING)
    return np.where((terms <= 0) | (scale <= 0), 0.0, value)


def elimination_bound(total: float, sketch: int, power_iteration: bool, cut: float, error: float = 0.0) -> float:
    """Return a bound on P(m > x), the directions with a share above ``cut``·x eliminated.

    ``error``: κ²/ρ of (H5), what rounding adds to the numerator of each ratio.

    Returns: the worst case over how many directions are eliminated, how many of them exceed x, and their sum.
    """
    if total > 1.0 + (sketch - 1) * cut:  # s directions may be that large: nothing would be left of the sketch
        return 1.0
    weight = _weight(cut, power_iteration)
    if error > weight:
        return 1.0
    eliminated = np.arange(1, sketch, dtype=np.int64)[:, None, None]  # r
    large = np.arange(1, int(total) + 1, dtype=np.int64)[None, :, None]  # b: those above x
    left, right, feasible = _share_cells(total, cut, eliminated, large)
    gain = large * _gains(right / large, power_iteration)
    rest = np.maximum(total - left - (eliminated - large) * cut, 0.0)
    count, gain, dof, terms = (
        np.broadcast_to(part, feasible.shape)[feasible]
        for part in (large, gain * weight, sketch - eliminated + 1.0, rest / cut + error / weight)
    )
    bound = np.minimum(hinge_bound(gain, terms, dof), count * tangent_bound(gain, terms, dof))
    return float(np.max(bound, initial=0.0))


def _share_cells(total: float, cut: float, eliminated: Array, large: Array) -> tuple[Array, Array, Array]:
    """Return cells for the sum of the ``large`` directions' shares over x, and which of them can occur."""
    highest = total - (eliminated - large) * cut
    span = np.maximum(highest - large, 0.0)
    ends = np.linspace(0.0, 1.0, 9)
    left, right = large + span * ends[:-1], large + span * ends[1:]
    feasible = np.broadcast_to((large <= eliminated) & (highest >= large), left.shape)
    return left, right, feasible


def _gains(mean: Array, power_iteration: bool) -> Array:
    """Compute the concave majorant of a large direction's coefficient q at the mean share."""
    if power_iteration:
        return np.where(mean < 2.0, (mean - 1.0) / mean**2, 0.25)
    gain: Array = 1.0 - 1.0 / mean
    return gain


def _weight(cut: float, power_iteration: bool) -> float:
    """Return the value of f at a share ``cut``."""
    return (cut**2 if power_iteration else cut) / (1.0 - cut)


ROUNDING = 1e-5
"""ε₀ of (H5): Q spans MᵀMS or MᵀS up to an error of this size relative to its Frobenius norm."""
_ROOM = 1e-3
"""ρ: by how much the threshold is lowered relatively."""
_LONG_SKETCH = 1e-30
"""Probability charged for a sketch of extraordinary length."""


class Head(NamedTuple):
    """The sketch whose range is taken exactly: its columns, and whether it is of MᵀMS rather than MᵀS'."""

    sketch: int
    power_iteration: bool = False


def residual_tail(share: float, sketch: int, power_iteration: bool) -> float:
    """Bound P(m > share) from above for every spectrum.

    ``power_iteration``: whether Q spans MᵀMS; otherwise the bound holds for both MᵀS' and MᵀMS.

    Examples
    --------
    >>> residual_tail(1 / 2, sketch=16, power_iteration=True) < 1e-13
    True
    """
    total = (1.0 + _ROOM) / share
    error = _missed(share, sketch, power_iteration)
    best = 1.0
    narrow = min(sketch, 40)  # more columns leave less; beyond, (H2) is good enough
    for cut in _good_cuts(total, narrow, power_iteration):
        best = min(best, elimination_bound(total, narrow, power_iteration, cut, error**2 / _ROOM))
    if not 8 < sketch == narrow or total > 0.3 * sketch:  # (H3) alone is the smaller one
        best = min(best, comparison_bound(total, sketch, power_iteration, error))
    return min(1.0, best + _LONG_SKETCH)


def _good_cuts(total: float, sketch: int, power_iteration: bool) -> list[float]:
    """Return values of θ that make (H3) small; any is valid. None where (H2) is the smaller one."""
    if total > (0.65 if sketch <= 16 else 0.4) * sketch + 1.0:
        return []
    if sketch <= 8:
        factors: tuple[float, ...] = (0.65, 0.85, 1.05, 1.25)
    elif sketch <= 16:
        factors = (0.85, 1.0) if power_iteration else (0.65, 0.85, 1.0)
    else:
        factors = (0.95,) if power_iteration else (0.77,)
    middle = 0.75 * math.sqrt(max(total - 1.0, 0.1) / sketch)
    return [min(max(factor * middle, 0.02), 0.95) for factor in factors]


def _missed(share: float, sketch: int, power_iteration: bool) -> float:
    """Bound κ: how far a remaining direction misses the exact constraints, in units of x (H5)."""
    length = 4.0 * (math.log(1.0 / _LONG_SKETCH) + sketch / 2 * math.log(2.0))  # Σ λ‖g‖² except for that probability
    scale = share / (1.0 + _ROOM)
    return ROUNDING * math.sqrt(length) / (scale if power_iteration else math.sqrt(scale))


@lru_cache(maxsize=64)
def probe_copies(sketch: int, power_iteration: bool) -> tuple[tuple[int, ...], tuple[float, ...]]:
    """Return a law of J such that E g(X) ≤ E g(χ²(Jk)/(Jk)) for every convex g, every spectrum and every k.

    ``power_iteration``: whether the sketch is of MᵀMS; otherwise the law holds for both kinds.

    Examples
    --------
    >>> copies, weights = probe_copies(32, power_iteration=True)
    >>> 20 < 1 / sum(weight / j for j, weight in zip(copies, weights))
    True
    """
    at, bound = _tails(sketch, power_iteration)
    # P(J ≤ j) ≤ bound: between two points of ``at`` the larger bound counts, so the mass goes to the smallest J.
    copies = np.append(1, at[:-1] + 1)
    weights = np.diff(np.append(0.0, np.maximum.accumulate(bound)))
    keep = weights > 0
    return tuple(copies[keep].tolist()), tuple(weights[keep].tolist())


def _tails(sketch: int, power_iteration: bool) -> tuple[Array, Array]:
    """Return values of j, and bounds on P(J ≤ j) there; the last one is 1."""
    at: list[int] = []
    bound: list[float] = []
    j = 1
    while not bound or bound[-1] < 1.0:
        tail = _averaged_tail(j, sketch, power_iteration)
        if at and tail < 3e-30:  # one atom is enough for all that practically never happens
            at, bound = [], []
        at.append(j)
        bound.append(tail)
        j = max(j + 1, int(1.07 * j))
    return np.array(at), np.array(bound)


def _averaged_tail(j: int, sketch: int, power_iteration: bool) -> float:
    """Return the mean of P(m > x) over 1/(j+1) < x < 1/j, each part of it at its left end: P(J ≤ j) by (H4)."""
    parts = 3 if sketch <= 12 else 2 if sketch <= 32 else 1
    left = np.linspace(1.0 / (j + 1), 1.0 / j, parts, endpoint=False)
    tails = [residual_tail(float(x), sketch, power_iteration) for x in left]
    return 1.0 if tails[-1] >= 1.0 else sum(tails) / parts
