"""δ of the subsampled Gaussian by inverting a Laplace transform: nothing is discretized into losses, nothing composed.

For s = λ + it, λ > 0, and K(s) = log E e^{sL} of one step,
E(1 - e^{ε - S})₊ = (1/π) ∫₀^∞ Re e^{T K(s) - sε}/(s(1 + s)) dt.
"""

from __future__ import annotations

import math

import numpy as np
from scipy.optimize import minimize_scalar

_AT_A_TIME = 400


def cumulant(sigma: float, rate: float, at: np.ndarray, direction: str, nodes: int = 2501) -> np.ndarray:
    """K(s) of one step's loss at complex s, by the trapezoidal rule, which errs by e^{-(2π/step)²/2} on a line."""
    shift, largest = 1.0 / sigma, float(np.max(at.real))
    y = np.linspace(-16.0, 16.0 + ((1.0 + largest) * shift if direction == "remove" else 0.0), nodes)
    loss = np.log1p(rate * np.expm1(shift * y - shift**2 / 2))
    log_weight = -(y**2) / 2 - 0.5 * math.log(2 * math.pi) + math.log(y[1] - y[0])
    log_weight, loss = (log_weight + loss, loss) if direction == "remove" else (log_weight, -loss)
    exponent = np.multiply.outer(at, loss)
    peak = float(np.max(exponent.real + log_weight))
    if peak > 5.0:
        return np.log(np.exp(exponent + log_weight - peak).sum(axis=1)) + peak
    return np.log1p(np.expm1(exponent) @ np.exp(log_weight))


def chernoff(sigma: float, rate: float, steps: int, epsilon: float, direction: str) -> tuple[float, float]:
    """The tilt λ with the least bound on log δ, and that bound: δ ≤ e^{T K(λ) - λε} λ^λ/(1 + λ)^{1 + λ}."""

    def bound(log_tilt: float) -> float:
        tilt = math.exp(log_tilt)
        value = steps * cumulant(sigma, rate, np.array([tilt]), direction, 1001)[0].real - tilt * epsilon
        return float(value + tilt * log_tilt - (1 + tilt) * math.log1p(tilt))

    best = minimize_scalar(bound, bounds=(-12.0, 8.0), method="bounded", options={"xatol": 1e-4})
    return math.exp(best.x), float(best.fun)


def log_delta(sigma: float, rate: float, steps: int, epsilon: float, direction: str) -> float:
    """Log δ(ε), to some 1e-8 where K(λ + it) falls fast enough."""
    tilt, _ = chernoff(sigma, rate, steps, epsilon, direction)
    near = tilt * (1.0 + np.array([-1e-3, 0.0, 1e-3]))
    low, base, high = cumulant(sigma, rate, near, direction).real
    deviation = math.sqrt(steps * (low + high - 2 * base)) / (1e-3 * tilt)
    spacing, scale = 0.06 / deviation, steps * base - tilt * epsilon
    total = 0.0
    for start in range(0, 60 * _AT_A_TIME, _AT_A_TIME):
        s = tilt + 1j * spacing * np.arange(start, start + _AT_A_TIME)
        part = np.exp(steps * cumulant(sigma, rate, s, direction) - s * epsilon - scale) / (s * (1 + s))
        total += float(part.real.sum()) - (float(part[0].real) / 2 if start == 0 else 0.0)
        if np.abs(part[-_AT_A_TIME // 4 :]).max() < 1e-12 * abs(total):
            return scale + math.log(total * spacing / math.pi)
    raise ArithmeticError("the transform does not fall")
