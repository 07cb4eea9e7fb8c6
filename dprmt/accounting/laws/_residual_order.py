r"""Hutch++ in the stochastic order: a law whose distribution function bounds P(X ≤ x) for every spectrum (H6).

For few probes and a short sketch the tail of X decides. There the mixture of (H4), which bounds convex functions only,
is far too heavy: it lets all of the norm lie in one direction as soon as half of it does.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from scipy.special import gammainc

from dprmt.accounting.basics import Array
from dprmt.accounting.laws._chi2_mixture import mixture_tails
from dprmt.accounting.laws._gamma_mixture import GammaMixture
from dprmt.accounting.laws._residual_tail import Head, residual_tail

_NEAR_ALL = (0.995, 0.985, 0.97, 0.95, 0.92, 0.88, 0.84, 0.8, 0.75, 0.7, 0.65, 0.6, 0.55, 0.5)
_RATIO = 0.9
_NOTHING = 1e-9  # a remainder so small is left to the others, which does more harm
_QUANTILES = 100


@lru_cache(maxsize=64)
def largest_shares(sketch: int, power_iteration: bool) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """A law of shares, its values and weights, that exceeds any with at least the probability that m does.

    m is the largest share of the squared norm in one direction that sketches leave, of one layer or of all together.

    Examples
    --------
    >>> share, weight = largest_shares(3, power_iteration=False)
    >>> share[-1], weight[-1] < 2e-7
    (1.0, True)
    """
    below = [1.0]
    bound: list[float] = []
    while not bound or bound[-1] < 1.0:
        below.append(_NEAR_ALL[len(below) - 1] if len(below) <= len(_NEAR_ALL) else below[-1] * _RATIO)
        bound.append(residual_tail(below[-1], sketch, power_iteration))
    # P(m > y) for y in [below[i + 1], below[i]): y times it must not grow, or several layers might do more harm.
    share, tail = np.array(below[:-1]), np.array(bound)
    tail = np.minimum(np.maximum.accumulate(share * tail) / np.array(below[1:]), 1.0)
    weight = np.diff(tail, prepend=0.0)
    return tuple(share[::-1].tolist()), tuple(weight[::-1].tolist())


@dataclass(frozen=True)
class ResidualOrder:
    """The law of (H6) for x < 1; what is left of its mass lies at 1."""

    probes: int
    head: Head

    def cdf(self, x: Array) -> Array:
        """At least P(X ≤ x), for x < 1."""
        value: Array = np.sum(
            [weight * self._of_share(share, x, moments=False)[0] for share, weight in self._parts()], 0
        )
        return value

    def increments(self, left: Array, right: Array) -> tuple[Array, Array]:
        """Mass and first moment of consecutive intervals left < X ≤ right, none beyond 1."""
        edges = np.append(left, right[-1:])
        mass, moment = np.zeros(left.size), np.zeros(left.size)
        for share, weight in self._parts():
            cdf, partial_mean = self._of_share(share, edges, moments=True)
            mass += weight * np.diff(cdf)
            moment += weight * np.diff(partial_mean)
        return np.maximum(mass, 0.0), np.maximum(moment, 0.0)

    def lower_quantile(self, tail: float) -> float:
        """About the value that X falls below with probability ``tail``, by interpolation."""
        return _quantile(self, tail)

    def _parts(self) -> list[tuple[float, float]]:
        shares = zip(*largest_shares(*self.head), strict=True)
        return [(share, weight) for share, weight in shares if weight > 0.0]

    def _of_share(self, share: float, x: Array, moments: bool) -> tuple[Array, Array]:
        """Φ_m(x) of (H6), and its first moment up to x."""
        single = GammaMixture.single(self.probes)
        switch = 1.0 - 2.0 * share / self.probes
        cdf, partial_mean = single.cdf(x), single.partial_mean(x)
        inner = np.flatnonzero(x <= switch)
        if share == 1.0 or inner.size == 0:
            return cdf, partial_mean
        at = np.array([switch])
        points = np.append(x[inner], at)
        below = _two_gammas(points, share, self.probes)
        cdf[inner] = below[:-1]
        if moments:
            below_mean = _partial_mean(points, share, self.probes)
            rise = switch * (float(single.cdf(at)[0]) - below[-1])
            partial_mean += below_mean[-1] + rise - float(single.partial_mean(at)[0])
            partial_mean[inner] = below_mean[:-1]
        return cdf, partial_mean


@lru_cache(maxsize=64)
def _quantile(law: ResidualOrder, tail: float) -> float:
    x = np.geomspace(GammaMixture.single(law.probes).lower_quantile(tail), 1.0, _QUANTILES)
    with np.errstate(divide="ignore"):
        log_cdf = np.log(law.cdf(x))
    return float(np.exp(np.interp(np.log(tail), log_cdf, np.log(x))))


def _partial_mean(x: Array, share: float, probes: int) -> Array:
    """E[V; V ≤ x] of the sum V of :func:`_two_gammas`: each summand's mean times a law with two degrees more."""
    copies = int(1.0 / share + _NOTHING)
    first = _two_gammas(x, share, probes, (2.0, 0.0))
    return copies * share * first + (1.0 - copies * share) * _two_gammas(x, share, probes, (0.0, 2.0))


def _two_gammas(x: Array, share: float, probes: int, more: tuple[float, float] = (0.0, 0.0)) -> Array:
    """Distribution function of N shares m and one of 1 - Nm, each times χ²(k)/k; ``more`` degrees of freedom."""
    copies = int(1.0 / share + _NOTHING)
    rest = max(1.0 - copies * share, 0.0)
    if rest < _NOTHING:
        value: Array = gammainc((copies * probes + more[0]) / 2, copies * probes * x / 2)
        return value
    weights = np.array([[share / probes], [rest / probes]])
    dof = np.array([[copies * probes + more[0]], [probes + more[1]]])
    return mixture_tails(x, None, weights, dof)[0]
