"""N(μ, 1) against N(0, 1) in closed form."""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy.optimize import brentq
from scipy.special import log_ndtr, ndtr


def gaussian_delta(epsilon: Any, mu: float) -> Any:
    """δ at ε (Balle and Wang 2018, Theorem 8)."""
    return ndtr(mu / 2 - epsilon / mu) - np.exp(epsilon + log_ndtr(-mu / 2 - epsilon / mu))


def gaussian_epsilon(mu: float, delta: float) -> float:
    """ε at δ."""
    return float(brentq(lambda epsilon: gaussian_delta(epsilon, mu) - delta, 0.0, 500.0 + mu**2, xtol=1e-12))


def put(strike: Any, shift: float) -> Any:
    """E(strike - V)₊ of the likelihood ratio V = exp(μy - μ²/2), y ~ N(0, 1): Black and Scholes' formula."""
    d = np.log(np.maximum(strike, 1e-300)) / shift
    return np.where(strike > 0, strike * ndtr(d + shift / 2) - ndtr(d - shift / 2), 0.0)
