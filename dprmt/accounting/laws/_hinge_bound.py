r"""Tails of a ratio of a weighted sum of squares and a χ², over all weights at once: (R) of the theory, §9.

P(c·Σ b_i η_i² ≥ χ²(ν)), η standard normal, is bounded over all b_i in [0, 1] of sum at most n by replacing an
indicator with a convex majorant; then ⌊n⌋ ones and the remainder are the worst weights, in the last of which both
bounds are convex.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from scipy.special import betainc, gammaincc, gammaln

from dprmt.accounting.basics import Array

_ROUNDING = 1e-11
"""Relative error charged for scipy's incomplete beta and gamma functions, before differences are taken."""
_VACUOUS = 1e9


def hinge_bound(scale: Array, terms: Array, dof: Array) -> Array:
    """E(V - a)₊/(1 - a) for V = c·Σ b_i η_i²/χ²(ν), a = 1 - 2/ν; it bounds averages of such V too.

    Returns: bounds on P(V ≥ 1), and on that of an average of ratios of this law whatever their dependence.
    """
    return _interpolated(_hinge, scale, terms, dof)


def tangent_bound(scale: Array, terms: Array, dof: Array) -> Array:
    """E ψ̂(c·Σ b_i η_i²), ψ̂ the CDF of χ²(ν) with its tangent beyond the inflection; arguments as above."""
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
    value = np.maximum(mean - mass, 0.0) + _ROUNDING * (mean + mass)
    value = np.where(dof < 3.0, _VACUOUS, value / (1.0 - a))
    return np.where((terms <= 0) | (scale <= 0), 0.0, value)


def _tangent(scale: Array, terms: Array, dof: Array) -> Array:
    n, c, flex = np.maximum(terms, 1.0), np.maximum(scale, 1e-290), np.maximum(dof - 2.0, 1e-290)
    slope = np.exp((dof / 2 - 1.0) * np.log(flex) - flex / 2 - dof / 2 * np.log(2.0) - gammaln(dof / 2))
    start = np.minimum(flex / c, 1e290)
    mean, mass = n * gammaincc(n / 2 + 1.0, start / 2), start * gammaincc(n / 2, start / 2)
    excess = np.maximum(mean - mass, 0.0) + _ROUNDING * (mean + mass)
    value = (betainc(dof / 2, n / 2, c / (1.0 + c)) + c * slope * excess) * (1.0 + _ROUNDING)
    return np.where((terms <= 0) | (scale <= 0), 0.0, value)
