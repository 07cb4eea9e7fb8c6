r"""What the tight analysis with public probes must pay where h_ε is not convex in the squared-norm ratio.

h_ε(x) is the hockey-stick divergence of N(μ,1) from N(0,1) at μ = x^{-1/2}/σ. Left of its inflection x₀(ε) it
is replaced by its tangent; the expected excess, maximized over ε, is charged to an infinite loss (section 4 of
``docs/theory/randomized_clipping.md``, equations T3-T6).
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from scipy.special import log_ndtr

from dprmt.accounting.basics import Array
from dprmt.accounting.laws import GammaMixture


def step_slack(noise_multiplier: float, law: GammaMixture, sample_rate: float, total_variation: float) -> float:
    """Probability to charge to an infinite loss per step, in both adjacency directions: q·η/(1 - q·TV).

    ``total_variation``: upper bound on the total variation of the step before subsampling.
    """
    return slack_of_excess(tangent_excess(noise_multiplier, law.coarser()), sample_rate, total_variation)


def slack_of_excess(eta: float, sample_rate: float, total_variation: float) -> float:
    """What (T5) charges per step for a bound η on the excess at every ε."""
    room = 1.0 - sample_rate * total_variation
    return min(1.0, sample_rate * eta / room) if room > 0 else 1.0


@lru_cache(maxsize=256)
def tangent_excess(noise_multiplier: float, law: GammaMixture) -> float:
    """An upper bound on η = max_ε E[(tangent - h_ε)(X); X < x₀(ε)] under a law of X.

    Returns: valid for every ε: between grid points by monotonicity of slope and inflection, beyond the last one by a
    cruder bound.

    Examples
    --------
    >>> 2.0e-8 < tangent_excess(0.5, GammaMixture.single(32)) < 2.4e-8
    True
    """
    low = np.concatenate([np.linspace(0.0, 20.0, 101), np.geomspace(20.0, 1e4, 101)[1:]])
    shift = np.sqrt(6.0 + 2.0 * np.sqrt(9.0 + low[-1] ** 2))
    beyond = float(0.2 * shift * law.cdf(1.0 / (noise_multiplier * shift) ** 2))
    low, high = low[:-1], low[1:]
    for _ in range(12):  # halve the intervals that could still hold the maximum by more than a tenth
        attained, bound = _excess_on_intervals(low, high, noise_multiplier, law)
        loose = bound > 1.1 * np.max(attained)
        if not np.any(loose):
            break
        settled = float(np.max(bound[~loose], initial=0.0))
        middle = (low[loose] + high[loose]) / 2
        low, high = np.concatenate([low[loose], middle]), np.concatenate([middle, high[loose]])
        beyond = max(beyond, settled)
    _, bound = _excess_on_intervals(low, high, noise_multiplier, law)
    return float(max(np.max(bound), beyond)) * (1.0 + 1e-9)


def _excess_on_intervals(low: Array, high: Array, noise_multiplier: float, law: GammaMixture) -> tuple[Array, Array]:
    """The expected excess at the left end of each ε interval, and a bound over all of it (T6)."""
    shift = np.sqrt(6.0 + 2.0 * np.sqrt(9.0 + np.stack([low, high]) ** 2))
    inflection = 1.0 / (noise_multiplier * shift[0]) ** 2
    slope = _steepest_slope(np.stack([low, high]), shift, noise_multiplier)
    excess, reach = _expected_excess(low, inflection, slope[0], noise_multiplier, law)
    return excess, excess + (slope[1] - slope[0]) * reach


def _steepest_slope(epsilon: Array, shift: Array, noise_multiplier: float) -> Array:
    """|h'_ε| at the inflection: (σ²/2) μ₀³ φ(ε/μ₀ - μ₀/2)."""
    density = np.exp(-((epsilon / shift - shift / 2) ** 2) / 2) / np.sqrt(2 * np.pi)
    value: Array = noise_multiplier**2 / 2 * shift**3 * density
    return value


def _hockey_stick(epsilon: Array, shift: Array) -> Array:
    """H_{e^ε}(N(μ,1) ‖ N(0,1)) = Φ(μ/2 - ε/μ) - e^ε Φ(-μ/2 - ε/μ)."""
    first = np.exp(log_ndtr(shift / 2 - epsilon / shift))
    value: Array = first - np.exp(epsilon + log_ndtr(-shift / 2 - epsilon / shift))
    return value


def _expected_excess(
    epsilon: Array, inflection: Array, slope: Array, noise_multiplier: float, law: GammaMixture
) -> tuple[Array, Array]:
    """Upper bounds on E[(tangent - h)(X); X < x₀] and on E[(x₀ - X)₊], per ε."""
    # Left of x₀ the function h is concave, so replacing it by chords over bins bounds it from below.
    fractions = np.append(0.0, np.linspace(0.0, 1.0, 97)[1:] ** min(1.0, 4.0 / law.dof[0]))
    x = inflection[:, None] * fractions
    cumulative, first_moment = law.cdf(x), law.partial_mean(x)
    mass, moment = np.diff(cumulative, axis=1), np.diff(first_moment, axis=1)
    with np.errstate(divide="ignore"):
        h = _hockey_stick(epsilon[:, None], 1.0 / (noise_multiplier * np.sqrt(np.maximum(x, 1e-280))))
    h = np.minimum(h, 1.0)
    to_right = np.clip((moment - x[:, :-1] * mass) / np.diff(x, axis=1), 0.0, mass)
    chord = h[:, :-1] * (mass - to_right) + h[:, 1:] * to_right
    reach = inflection * cumulative[:, -1] - first_moment[:, -1]
    tangent = h[:, -1] * cumulative[:, -1] + slope * reach
    excess = np.maximum(tangent - chord.sum(axis=1), 0.0) + 1e-14 * cumulative[:, -1]
    return excess, np.maximum(reach, 0.0)
