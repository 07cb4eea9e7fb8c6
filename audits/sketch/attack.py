"""What a sketch really leaves of a spectrum, simulated, against what the accountant charges for it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray
from scipy import stats
from scipy.special import gammainc, ndtr

from dprmt.accounting.laws._sketch import residual_tail

Floats = NDArray[np.float64]
Law = tuple[tuple[int, ...], tuple[float, ...]]
"""Values of J and their probabilities."""
PROBES = (2, 4, 8, 16, 32, 64)
_REPEATS = 4
_NODES = 1200


def residual_shares(shares: Floats, sketch: int, power_iteration: bool, draws: int, seed: int) -> Floats:
    """Squared singular values of M(I - QQᵀ) over ‖M‖², shape (draws, d - s), largest last; fresh sketch each draw."""
    rng = np.random.default_rng(seed)
    weights = shares if power_iteration else np.sqrt(shares)
    image = weights[:, None] * rng.standard_normal((draws, shares.size, sketch))
    rest = np.linalg.qr(image, mode="complete").Q[:, :, sketch:]
    left: Floats = np.linalg.eigvalsh(rest.transpose(0, 2, 1) @ (shares[:, None] * rest))
    return np.clip(left, 0.0, None)


def estimates(left: Floats, probes: int, seed: int) -> Floats:
    """n̂/n, shape (draws, repeats): several draws of the probes for each sketch."""
    rng = np.random.default_rng([seed, probes])
    noise = rng.chisquare(probes, (*left.shape, _REPEATS)) / probes
    ratios: Floats = 1.0 - left.sum(axis=1)[:, None] + (left[:, :, None] * noise).sum(axis=1)
    return ratios


def functions() -> Iterator[tuple[str, str, Callable[[Floats], Floats]]]:
    """Kind, name and g: hinges, divergences at ε of a clipped sample, and tails of its output."""
    for t in (0.25, 0.5, 0.75, 0.9, 1.0):
        yield "(t - x)+", f"t = {t:g}", lambda x, t=t: np.maximum(t - x, 0.0)
    for sigma, epsilon in ((0.7, 4.0), (1.0, 1.0), (1.0, 3.0), (2.0, 0.5), (2.0, 2.0)):
        yield "h_eps", f"sigma = {sigma:g}, eps = {epsilon:g}", lambda x, s=sigma, e=epsilon: divergence(x, s, e)
    for sigma, t in ((0.7, 3.0), (1.0, 1.0), (1.0, 3.0), (2.0, 1.0), (2.0, 2.5)):
        yield "f_t", f"sigma = {sigma:g}, t = {t:g}", lambda x, s=sigma, t=t: ndtr(1.0 / (s * np.sqrt(x)) - t)


def divergence(ratio: Floats, sigma: float, epsilon: float) -> Floats:
    """h_ε(x) of a step without sampling."""
    mu = 1.0 / (sigma * np.sqrt(ratio))
    value: Floats = ndtr(mu / 2 - epsilon / mu) - math.exp(epsilon) * ndtr(-mu / 2 - epsilon / mu)
    return value


@dataclass(frozen=True)
class Charge:
    """X ~ χ²(Jk)/(Jk) as atoms at conditional means, so that E g of a convex g comes out a little too small."""

    at: Floats
    mass: Floats

    @classmethod
    @cache
    def of(cls, law: Law, probes: int) -> Charge:
        """For k probes."""
        edges = np.concatenate([[0.0], np.geomspace(1e-5, 12.0, _NODES), [np.inf]])
        mass, moment = np.zeros(_NODES + 1), np.zeros(_NODES + 1)
        for copies, weight in zip(*law, strict=True):
            a = copies * probes / 2
            mass += weight * np.diff(gammainc(a, a * edges))
            moment += weight * np.diff(gammainc(a + 1.0, a * edges))
        keep = mass > 0
        return cls(np.maximum(moment[keep] / mass[keep], 1e-300), mass[keep])

    def mean(self, g: Callable[[Floats], Floats]) -> float:
        """E g(X)."""
        return float(self.mass @ g(self.at))


@dataclass(frozen=True)
class Margin:
    """How far one expectation of the real estimator stays below the charge."""

    kind: str
    name: str
    errors: float
    seen: float
    charged: float


def margins(left: Floats, law: Law, probes: tuple[int, ...], seed: int) -> Iterator[Margin]:
    """Of E g(X), for every g and k."""
    for k in probes:
        charge, ratios = Charge.of(law, k), estimates(left, k, seed)
        for kind, name, g in functions():
            values = g(ratios).mean(axis=1)
            seen, error, charged = float(values.mean()), float(values.std()) / math.sqrt(len(values)), charge.mean(g)
            errors = (charged - seen) / error if error > 0 else math.copysign(math.inf, charged - seen + 1e-12)
            yield Margin(kind, f"k = {k}, {name}", errors, seen, charged)


_bound = cache(residual_tail)


def share_margins(left: Floats, sketch: int, power_iteration: bool) -> Iterator[Margin]:
    """Of P(m > 1/(j+1)) against the bound that the law of J is made of; as a normal quantile of the binomial tail."""
    largest = left[:, -1]
    for j in range(1, 2 * sketch + 1):
        hits = int(np.sum(largest > 1 / (j + 1) + 1e-12))
        bound = _bound(1 / (j + 1), sketch, power_iteration)
        above, below = stats.binom.sf(hits - 1, largest.size, bound), stats.binom.cdf(hits - 1, largest.size, bound)
        errors = float(stats.norm.ppf(above) if above < 0.5 else -stats.norm.ppf(below))
        yield Margin("P(m > 1/(j+1))", f"j = {j}", errors, hits / largest.size, bound)
