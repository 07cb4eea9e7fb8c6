"""Success rates of an attacker on a composed run: from its whole curve, with both ends."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
from scipy.special import log_ndtr, ndtr

from dprmt.accounting.basics import Array, PrivacyBounds
from dprmt.accounting.questions._privacy_curve import PrivacyCurve

if TYPE_CHECKING:
    from dprmt.accounting.questions._trade_off import TradeOff

_POINTS = 201
_HALVINGS = 60
_LARGEST_MU = 1e6
_NARROW = 1e-2  # relative width of an interval that is called narrow


def true_positive_rate(band: TradeOff) -> PrivacyBounds:
    """Compute 1 - β at the band's one α."""
    lower, estimate, upper = (1.0 - float(end[0]) for end in (band.upper, band.estimate, band.lower))
    return PrivacyBounds(lower, estimate, upper, is_narrow=upper - lower <= _NARROW * upper)


def bayes_risk(delta: PrivacyBounds, least: float) -> PrivacyBounds:
    """Minimize π·β + (1-π)·α = min(π, 1-π)·(1 - δ(|log((1-π)/π)|)) over tests; the larger direction decides."""
    lower, estimate, upper = (least * (1.0 - end) for end in (delta.upper, delta.estimate, delta.lower))
    narrow = upper - lower <= _NARROW * upper
    return PrivacyBounds(lower, estimate, upper, delta.direction, is_narrow=narrow, safe="lower")


def mu_grid(last: float) -> Array:
    """List the ε at which δ is computed to determine μ, up to an ε."""
    return np.linspace(0.0, max(last, 1e-6), _POINTS)


def gdp_mu(curve: PrivacyCurve, least_delta: float) -> PrivacyBounds:
    """Return the smallest μ with δ(ε) ≤ δ_μ(ε) wherever δ(ε) > ``least_delta``."""
    epsilon, seen = curve.at, curve.lower > least_delta
    lower = float(np.max(_mu_of(epsilon[seen], curve.lower[seen]), initial=0.0))
    upper = max(_mu_of_chords(epsilon, np.maximum(curve.upper, least_delta)), lower)
    return PrivacyBounds(lower, (lower + upper) / 2, upper, is_narrow=upper - lower <= _NARROW * upper)


def _delta_of(mu: Array, epsilon: Array) -> Array:
    with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
        across = epsilon / mu
        value: Array = ndtr(mu / 2 - across) - np.exp(epsilon + _log_tail(mu / 2 + across))
    return np.where(mu > 0.0, value, 0.0)


def _log_tail(x: Array) -> Array:
    value: Array = log_ndtr(-x)
    return value


def _mu_of(epsilon: Array, delta: Array) -> Array:
    """Bound the μ whose curve passes through each point from above."""
    low, high = np.zeros(epsilon.size), np.full(epsilon.size, _LARGEST_MU)
    for _ in range(_HALVINGS):
        middle = np.where(low > 0.0, np.sqrt(np.maximum(low, 1e-12) * high), high * 1e-3)
        below = _delta_of(middle, epsilon) <= delta
        low, high = np.where(below, middle, low), np.where(below, high, middle)
    return low


def _mu_of_chords(epsilon: Array, delta: Array) -> float:
    """Return a μ whose curve lies above all chords of δ in e^ε, cell by cell.

    A convex curve falls short of its chord by at most (Δγ)²/8 times its largest second derivative there, which is
    φ(μ/2 + ε/μ)/(μγ); so much is asked for at both ends.
    """
    apart = np.diff(epsilon)
    log_width = apart + np.log(-np.expm1(-apart))

    def is_above(mu: float) -> bool:
        own = _delta_of(np.full(epsilon.size, mu), epsilon)
        log_density = -((mu / 2 + epsilon / mu) ** 2) / 2 - math.log(2 * math.pi) / 2
        with np.errstate(over="ignore"):
            # (Δγ)² φ/(8μγ), of a width in units of the left end; in logarithms, as the width may be beyond all floats.
            bend = np.exp(2.0 * log_width + log_density[:-1] + epsilon[:-1]) / (8.0 * mu)
        return bool(np.all(np.minimum(own[:-1] - delta[:-1], own[1:] - delta[1:]) >= bend * (1.0 + 1e-9)))

    low, high = 0.0, 1e-6
    while not is_above(high):
        low, high = high, 4.0 * high
        if high > _LARGEST_MU:
            return math.inf
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (low, middle) if is_above(middle) else (middle, high)
    return high
