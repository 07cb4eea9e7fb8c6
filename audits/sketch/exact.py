"""A spectrum of which every sketch leaves one direction, with the law of what it leaves in closed form."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.special import gammainc
from scipy.stats import beta

Floats = NDArray[np.float64]
_POINTS = 4000


def single_direction(rest: float, sketch: int) -> Floats:
    """Shares: one of 1 - ``rest`` over s equal ones."""
    return np.append(1.0 - rest, np.full(sketch, rest / sketch))


def left_over(rest: float, sketch: int, power_iteration: bool) -> tuple[Floats, Floats]:
    """Values of ρ = m, increasing, and their probabilities, each value the least of its cell.

    The kernel of s x (s + 1) normals is a uniformly random direction c, of which ρ needs c₁² ~ Beta(½, s/2) only:
    ρ = 1/Σ c²/λ without and Σ c²/λ / Σ c²/λ² with a power iteration.
    """
    edges = beta.ppf(np.linspace(0.0, 1.0, _POINTS // 2), 0.5, sketch / 2)
    edges = np.unique(np.concatenate([edges, 1.0 - np.geomspace(1e-12, 1.0, _POINTS // 2)]))
    first, others = edges / (1.0 - rest), (1.0 - edges) * sketch / rest
    rho = 1.0 / (first + others)
    if power_iteration:
        rho = (first + others) / (first / (1.0 - rest) + others * sketch / rest)
    mass = np.diff(beta.cdf(edges, 0.5, sketch / 2))
    # 1 - F where F is near 1: the cells of large ρ are what matters.
    upper = -np.diff(beta.sf(edges, 0.5, sketch / 2))
    return np.minimum(rho[:-1], rho[1:]), np.where(edges[:-1] > 0.5, upper, mass)


def attained_hinge(t: float, rest: float, sketch: int, probes: int, power_iteration: bool) -> float:
    """A lower bound on E(t - X)₊ of the real estimator: given ρ it increases with ρ, X being 1 - ρ + ρ χ²(k)/k."""
    rho, mass = left_over(rest, sketch, power_iteration)
    reach = np.maximum((t - 1.0 + rho) / rho, 0.0)
    return float(mass @ (rho * hinge(reach, probes / 2)))


def charged_hinge(t: float, copies: tuple[int, ...], weights: tuple[float, ...], probes: int) -> float:
    """E(t - X)₊ of X ~ χ²(Jk)/(Jk)."""
    return float(hinge(np.array([t]), np.array(copies) * probes / 2) @ np.array(weights))


def hinge(t: Floats, shape: float | Floats) -> Floats:
    """E(t - Y)₊ for Y ~ Γ(shape)/shape."""
    value: Floats = t * gammainc(shape, shape * t) - gammainc(shape + 1.0, shape * t)
    return np.maximum(value, 0.0)
