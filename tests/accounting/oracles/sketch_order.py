"""δ of one sketched step under the law of (H6), by plain quadrature: shares the library's law of shares alone."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable

import numpy as np
from scipy.special import gammainc, gammaln, ndtr

from dprmt.accounting.basics import Array
from dprmt.accounting.laws._residual_order import largest_shares

NODE, WEIGHT = np.polynomial.legendre.leggauss(160)


def two_gammas(x: Array, share: float, probes: int) -> Array:
    """P(m χ²(Nk)/k + (1 - Nm) χ²(k)/k ≤ x), N = ⌊1/m⌋, by the convolution u = x sin²θ."""
    copies = math.floor(1.0 / share + 1e-9)
    a, rest = copies * probes / 2, 1.0 - copies * share
    if rest < 1e-9:
        return np.asarray(gammainc(a, copies * probes * x / 2))
    theta, weight = (NODE + 1.0) * math.pi / 4, WEIGHT * math.pi / 4
    u = np.multiply.outer(x, np.sin(theta) ** 2)
    y = u * probes / (2 * share)
    density = np.exp((a - 1) * np.log(y) - y - gammaln(a)) * probes / (2 * share)
    beyond = gammainc(probes / 2, np.multiply.outer(x, np.cos(theta) ** 2) * probes / (2 * rest))
    return np.asarray((density * beyond * 2 * np.sin(theta) * np.cos(theta)) @ weight * x)


def curve(sigma: float, probes: int, sketch: int) -> Callable[[float], float]:
    """E h_ε(X) = h_ε(1) - ∫ h_ε'(x) F(x) dx for ε ≥ 0, without sampling."""
    parts = [part for part in zip(*largest_shares(sketch, False), strict=True) if part[1] > 0.0]

    def value(epsilon: float) -> float:
        def density(log_x: Array) -> Array:
            """-h' dx/d(log x)."""
            mu = np.exp(-log_x / 2) / sigma
            return np.asarray(mu / 2 * np.exp(-((mu / 2 - epsilon / mu) ** 2) / 2) / math.sqrt(2 * math.pi))

        def integral(low: float, high: float, cdf: Callable[[Array], Array]) -> float:
            edges = np.linspace(math.log(low), math.log(high), 9)
            total = 0.0
            for left, right in itertools.pairwise(edges.tolist()):
                at = left + (right - left) * (NODE + 1.0) / 2
                total += float((density(at) * cdf(np.exp(at))) @ WEIGHT) * (right - left) / 2
            return total

        mu = 1 / sigma
        total = float(ndtr(mu / 2 - epsilon / mu) - math.exp(epsilon) * ndtr(-mu / 2 - epsilon / mu))
        for share, weight in parts:
            switch = 0.0 if share == 1.0 else max(1.0 - 2.0 * share / probes, 0.0)
            if switch > 1e-12:
                total += weight * integral(1e-12, switch, lambda x, m=share: two_gammas(x, m, probes))
            low = max(switch, 1e-12)
            total += weight * integral(low, 1.0, lambda x: gammainc(probes / 2, probes * x / 2))
        return total

    return value


def delta(sigma: float, rate: float, probes: int, sketch: int, epsilon: float, direction: str) -> float:
    """With sampling, by the curve's values at other losses: (B3)."""
    without = curve(sigma, probes, sketch)
    alpha = math.exp(epsilon if direction == "remove" else -epsilon)
    ratio = 1 + (alpha - 1) / rate
    if ratio >= 1:
        value = rate * without(math.log(ratio))
    elif ratio > 0:
        value = rate * (1 - ratio + ratio * without(-math.log(ratio)))
    else:
        value = 1 - alpha
    return value if direction == "remove" else 1 - 1 / alpha + value / alpha
