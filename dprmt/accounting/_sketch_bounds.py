r"""What a Gaussian sketch may leave in one direction: P(m > x), for every spectrum.

m is the largest squared singular value of M(I - QQᵀ) over ‖M‖²_F. Two proved bounds, (H2) and (H3) of
``docs/theory/randomized_clipping.md``; both end at the tail of a ratio of a weighted sum of squares and a χ².
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from scipy.special import betainc, gammaincc, gammaln

from dprmt.accounting._types import Array

_ROUNDING = 1e-11
"""Relative error charged for scipy's incomplete beta and gamma functions, before differences are taken."""
_CELLS = 6
_CUTS, _MORE_CUTS = (0.75, 1.0), (0.65, 0.75, 0.85, 1.0, 1.25)
_LARGEST_ELIMINATED = 40
_NEGLIGIBLE, _VACUOUS = 1e-12, 1e9


class RatioTail(NamedTuple):
    """Two bounds on P(c·Σ b_i η_i² ≥ χ²(ν)), η standard normal, over all b_i in [0, 1] of sum at most n."""

    hinge: Array
    tangent: Array


def residual_tail(share: float, sketch: int, power_iteration: bool) -> float:
    """An upper bound on P(m > share) that holds for every spectrum.

    Parameters
    ----------
    share : float
        x, in (0, 1).
    sketch : int
        s ≥ 3 columns.
    power_iteration : bool
        Whether Q spans MᵀMS; otherwise the bound holds for MᵀS' and MᵀMS alike.

    Returns
    -------
    float
        At most 1.

    Examples
    --------
    >>> residual_tail(1 / 2, sketch=16, power_iteration=True) < 1e-13
    True
    """
    total = 1.0 / share
    best = min(1.0, _by_comparison(total, sketch, power_iteration))
    sketch = min(sketch, _LARGEST_ELIMINATED)  # more columns leave less; beyond, (H2) is good enough by itself
    if best > _NEGLIGIBLE and total < 0.75 * sketch + 2.0:  # elsewhere (H2) is the smaller one
        middle = 0.75 * math.sqrt(max(total - 1.0, 0.1) / sketch)
        for factor in _MORE_CUTS if sketch <= 16 else _CUTS:  # any cut is valid; these are good ones
            cut = min(max(factor * middle, 0.02), 0.95)
            best = min(best, _by_elimination(total, sketch, power_iteration, cut))
    return best


def _by_comparison(total: float, sketch: int, power_iteration: bool) -> float:
    """(H2): Gordon's comparison, every weight at most ``cap`` and their sum at most ``weight``."""
    if power_iteration:
        mu = np.linspace(0.2, 1.2, 21)
        cap, weight = 1.0 / (1.0 - mu / 4), total / (2 * np.sqrt(mu) - mu)
    else:
        mu = np.linspace(0.3, 0.98, 35)
        cap, weight = total / (total * (1.0 - mu) + mu), total / mu
    bounds = ratio_tail(cap, weight / cap, np.full(mu.size, float(sketch)))
    return 2.0 * float(min(bounds.hinge.min(), bounds.tangent.min()))


def _by_elimination(total: float, sketch: int, power_iteration: bool, cut: float) -> float:
    """(H3): directions above ``cut``·x solved for; the worst case over their number and their share."""
    if total > 1.0 + (sketch - 1) * cut:  # s directions may be that large: nothing would be left of the sketch
        return 1.0
    eliminated = np.arange(1, sketch)[:, None, None]  # r
    large = np.arange(1, int(total) + 1)[None, :, None]  # b: those above x
    left, right, feasible = _share_cells(total, cut, eliminated, large)
    gain, weight = _gains(right / large, cut, power_iteration)
    rest = np.maximum(total - left - (eliminated - large) * cut, 0.0)
    count, gain, dof, terms = (
        np.broadcast_to(part, feasible.shape)[feasible]
        for part in (large, large * gain * weight, sketch - eliminated + 1.0, rest / cut)
    )
    single = (count == 1) | (dof < 3.0)
    bound = _interpolated(_hinge, gain, terms, dof)
    bound[single] = np.minimum(bound[single], (count * _interpolated(_tangent, gain, terms, dof))[single])
    return float(np.max(bound, initial=0.0))


def _share_cells(total: float, cut: float, eliminated: Array, large: Array) -> tuple[Array, Array, Array]:
    """Cells for the sum of the ``large`` directions' shares over x, and which of them can occur."""
    highest = total - (eliminated - large) * cut
    span = np.maximum(highest - large, 0.0)
    ends = np.linspace(0.0, 1.0, _CELLS + 1)
    left, right = large + span * ends[:-1], large + span * ends[1:]
    feasible = np.broadcast_to((large <= eliminated) & (highest >= large), left.shape)
    return left, right, feasible


def _gains(mean: Array, cut: float, power_iteration: bool) -> tuple[Array, float]:
    """Concave majorant of a large direction's coefficient at the mean share, and that of a share ``cut``."""
    if power_iteration:
        return np.where(mean < 2.0, (mean - 1.0) / mean**2, 0.25), cut**2 / (1.0 - cut)
    return 1.0 - 1.0 / mean, cut / (1.0 - cut)


def ratio_tail(scale: Array, terms: Array, dof: Array) -> RatioTail:
    """Bounds on P(c·Σ b_i η_i² ≥ χ²(ν)) over all 0 ≤ b_i ≤ 1 with Σ b_i ≤ n: convex majorants of the indicator.

    Parameters
    ----------
    scale, terms, dof : ndarray, shape (j,)
        c ≥ 0, n ≥ 0, ν ≥ 2.

    Returns
    -------
    RatioTail
        ``hinge`` also bounds the tail of an average of such ratios, whatever their dependence; beyond 1 where ν < 3.
    """
    return RatioTail(_interpolated(_hinge, scale, terms, dof), _interpolated(_tangent, scale, terms, dof))


def _interpolated(bound: Callable[[Array, Array, Array], Array], scale: Array, terms: Array, dof: Array) -> Array:
    """The worst weights are ⌊n⌋ ones and the remainder, in which both bounds are convex."""
    whole = np.floor(terms)
    part = terms - whole
    return (1.0 - part) * bound(scale, whole, dof) + part * bound(scale, whole + 1.0, dof)


def _hinge(scale: Array, terms: Array, dof: Array) -> Array:
    """E(V - a)₊/(1 - a) for V = c·χ²(n)/χ²(ν), a = 1 - 2/ν."""
    n, nu, c = np.maximum(terms, 1.0), np.maximum(dof, 3.0), np.maximum(scale, 1e-290)
    a = 1.0 - 2.0 / nu
    mean = c * n / (nu - 2.0) * betainc(nu / 2 - 1.0, n / 2 + 1.0, c / (a + c))
    mass = a * betainc(nu / 2, n / 2, c / (a + c))
    value = np.maximum(mean - mass, 0.0) + _ROUNDING * (mean + mass)
    value = np.where(dof < 3.0, _VACUOUS, value / (1.0 - a))
    return np.where((terms <= 0) | (scale <= 0), 0.0, value)


def _tangent(scale: Array, terms: Array, dof: Array) -> Array:
    """An upper bound on E ψ̂(c·χ²(n)): ψ the CDF of χ²(ν), ψ̂ its tangent beyond the inflection ν - 2."""
    n, c, flex = np.maximum(terms, 1.0), np.maximum(scale, 1e-290), np.maximum(dof - 2.0, 1e-290)
    slope = np.exp((dof / 2 - 1.0) * np.log(flex) - flex / 2 - dof / 2 * np.log(2.0) - gammaln(dof / 2))
    start = np.minimum(flex / c, 1e290)
    mean, mass = n * gammaincc(n / 2 + 1.0, start / 2), start * gammaincc(n / 2, start / 2)
    excess = np.maximum(mean - mass, 0.0) + _ROUNDING * (mean + mass)
    value = (betainc(dof / 2, n / 2, c / (1.0 + c)) + c * slope * excess) * (1.0 + _ROUNDING)
    return np.where((terms <= 0) | (scale <= 0), 0.0, value)
