"""What a sketch leaves, by Gordon's comparison on the exact cone: (H2) of the theory, §9."""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
from scipy.special import gammainc, gammaincc, gammaln, ndtr

from dprmt.accounting.basics import Array
from dprmt.accounting.laws._gamma_mixture import GammaMixture

SHIFTS = np.array([0.0, 1.0, 2.5, 6.0, 9.0])
"""Values of a that are tried."""
_EDGES = 72
_ROUNDING = 1e-9


def comparison_bound(total: float, sketch: int, power_iteration: bool, error: float = 0.0) -> float:
    """A bound on P(m > x), the smallest over a few multipliers μ and shifts a; every choice is valid.

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
    """Largest possible weight h, and how many of it the sum of all weights makes."""
    if power_iteration:
        cap, weight = 1.0 / (1.0 - mu / 4), total / (2 * math.sqrt(mu) - mu)
    else:
        cap, weight = total / (total * (1.0 - mu) + mu), total / mu
    return cap, weight / cap


def expected_majorants(cap: float, count: int, sketch: int) -> Array:
    """Upper bounds on E ψ̂_a(cap·χ²(count)), ψ_a(y) = P(χ(s) ≤ √y - a), for each shift a: by chords."""
    if count == 0:
        return np.zeros(SHIFTS.size)
    flex, height, slope = _tangency(sketch)
    end = max(count / 2 + 40.0 + 9.0 * math.sqrt(count), float(flex.max()) / (2 * cap))
    edges = np.linspace(0.0, math.sqrt(2 * end), _EDGES) ** 2
    mass, moment = GammaMixture.single(count).increments(edges[:-1] / count, edges[1:] / count)
    to_right = np.clip((count * moment - edges[:-1] * mass) / np.diff(edges), 0.0, mass)
    atoms = np.append(mass - to_right, 0.0) + np.append(0.0, to_right)
    y = cap * edges[:, None]
    curve = gammainc(sketch / 2, np.maximum(np.sqrt(y) - SHIFTS, 0.0) ** 2 / 2)
    majorant = np.where(y <= flex, curve, height + slope * (y - flex))
    beyond, moment_beyond = gammaincc(count / 2, end), cap * count * gammaincc(count / 2 + 1.0, end)
    straight = beyond * (height - slope * flex) + slope * moment_beyond  # E of the tangent beyond the last edge
    value: Array = (atoms @ majorant + np.maximum(straight, 0.0)) * (1.0 + _ROUNDING)
    return value


@lru_cache(maxsize=64)
def _tangency(sketch: int) -> tuple[Array, Array, Array]:
    """Where each ψ_a turns from convex to concave, its value and slope there: (s-1)/v - v = 1/(v + a), v = √y - a."""
    from scipy.optimize import brentq  # on use: a third of the room's import time

    top = math.sqrt(sketch - 1.0)
    reach = np.array([brentq(lambda v, a=a: top**2 / v - v - 1.0 / (v + a), 1e-9 * top, top) for a in SHIFTS])
    log_density = (sketch - 1) * np.log(reach) - reach**2 / 2
    density = np.exp(log_density - (sketch / 2 - 1) * math.log(2) - gammaln(sketch / 2))
    flex = (reach + SHIFTS) ** 2
    return flex, gammainc(sketch / 2, reach**2 / 2), density / (2 * np.sqrt(flex))
