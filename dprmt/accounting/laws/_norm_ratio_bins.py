r"""A law of the squared-norm ratio X = n̂²/n², cut into bins whose masses and means are known in closed form.

A clipped sample with estimated norm n̂ has sensitivity Z = X^{-1/2} (in units of the clipping
norm). Bins turn a continuous law into finitely many sensitivities without losing the side of the
bound: see (B1) and (B2) in ``docs/theory/randomized_clipping.md``.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from scipy.special import ndtri

from dprmt.accounting.basics import Array
from dprmt.accounting.laws._gamma_mixture import GammaMixture
from dprmt.accounting.laws._residual_order import ResidualOrder

_LARGEST_INFLATION = 1e-3  # of a bin's mass, where that is far too little to matter
_STEEP_BINS, _FINE_GRID = 160, 2000
_SHIFT_WIDTH, _LEAST_WIDTH, _FAR_WIDTH, _TIMES_AS_MANY = 0.12, 0.003, 0.1, 3


@dataclass(frozen=True)
class Focus:
    """Range of X that decides an answer and gets as many bins again.

    Attributes
    ----------
    probability : float
        Of smaller squared-norm ratios than the one that decides.
    factor : float
        By which probabilities that matter differ from it.
    """

    probability: float
    factor: float

    @property
    def ends(self) -> tuple[float, float]:
        """The probabilities between which the answer is decided."""
        return self.probability / self.factor, min(self.probability * self.factor, 0.5)


@dataclass(frozen=True)
class Steep:
    """Range of X where a heavy tail of shifts 1/(σ√X) decides: bins as narrow as standard normal noise can tell apart.

    ``probability``: of smaller squared-norm ratios than the smallest ones that matter.
    """

    noise_multiplier: float
    probability: float

    def edges(self, law: GammaMixture | ResidualOrder, start: float, right_end: float, bins: int) -> Array:
        """Bin ends, from a density of bins per unit of log X."""
        log_x = np.linspace(np.log(start), np.log(right_end), _FINE_GRID)
        scale = _STEEP_BINS / bins
        narrow = np.maximum(2 * _SHIFT_WIDTH * self.noise_multiplier * np.exp(log_x / 2), _LEAST_WIDTH) * scale
        narrow = np.minimum(narrow, (log_x[-1] - log_x[0]) / (_TIMES_AS_MANY * bins))
        width = np.where(np.exp(log_x) < law.lower_quantile(self.probability), _FAR_WIDTH * scale, narrow)
        count = np.append(0.0, np.cumsum(np.diff(log_x) * (1.0 / width[1:] + 1.0 / width[:-1]) / 2))
        edges: Array = np.exp(np.interp(np.linspace(0.0, count[-1], int(np.ceil(count[-1])) + 1), count, log_x))
        edges[-1] = right_end
        return edges


@dataclass(frozen=True)
class NormRatioBins:
    """A law of X on consecutive bins.

    Attributes
    ----------
    left, right, mass, mean : ndarray, shape (n,)
        Ends of each bin, its probability, and the conditional mean of X in it. An atom of the law is a bin
        with equal ends. Where only bounds on the mean are known, ``mean`` is NaN.
    below : float
        Probability of X below the first bin; X may be arbitrarily close to 0 there.
    margin : float
        By how much the masses right of X = 1 may fall short of the law's; charged at X = 1 when spreading.
    """

    left: Array
    right: Array
    mass: Array
    mean: Array
    below: float
    margin: float = 0.0

    def spread(self, convex_from: float) -> tuple[Array, Array]:
        """Atoms of a law that is never more private: (values of X, masses), by (B1).

        The mass goes to both ends, right of ``convex_from`` so that the mean is kept, elsewhere with less for the
        right end (B4). Where the mean is unknown, all goes to the left end. The mass ``below`` is left out.
        """
        return self.spread_with(curvature(self.left, convex_from))

    def spread_secret(self, noise_multiplier: float, more: float) -> tuple[Array, Array, float]:
        """As :meth:`spread`, for probes that stay secret (C8).

        ``more``: by how much the masses may exceed those of the law in all.
        Returns: values of X, masses, and by how much these exceed the law's.
        """
        with np.errstate(over="ignore", divide="ignore"):
            shift, least = (1.0 / (noise_multiplier * np.sqrt(x)) for x in (self.left, self.right))
            known = (self.right > self.left) & np.isfinite(self.mean)
            share = np.where(known, np.minimum(more / (self.mass.size * self.mass), _LARGEST_INFLATION), 0.0)
            reach = -ndtri(share)  # thresholds farther left of the bin see all of its mass
            rate = np.maximum(shift**2 + np.where(known, reach - least, 0.0) * shift - 3.0, 0.0) / (2.0 * self.left)
        added = self.mass * share / (1.0 - share)
        x, mass = replace(self, mass=self.mass + added).spread_with(rate)
        return x, mass, float(added.sum()) + self.margin

    def spread_with(self, rate: Array) -> tuple[Array, Array]:
        """As :meth:`spread`, where what is bounded is convex in e^{ρx} in each bin, ρ being its ``rate``."""
        width = self.right - self.left
        known = (width > 0) & np.isfinite(width) & np.isfinite(self.mean)
        to_right = np.zeros_like(width)
        to_right[known] = right_share(self.left, self.right, self.mean, rate)[known]
        x = np.concatenate([self.left, self.right[known], [1.0]])
        mass = np.concatenate([self.mass * (1.0 - to_right), (self.mass * to_right)[known], [self.margin]])
        return _merge(x, mass)

    def concentrate(self, convex_from: float | Array) -> tuple[Array, Array]:
        """Atoms of a law that is never less private: (values of X, masses), by (B2).

        The mass goes to the conditional mean right of ``convex_from``, one number or one of each bin, elsewhere a
        little to its right (B4), and where the mean is unknown to the right end. The mass ``below`` goes to the left
        end of the first bin.
        """
        x = np.where(np.isfinite(self.mean), np.maximum(self._center(convex_from), self.left), self.right)
        x = np.concatenate([self.left[:1], x])
        return _merge(x, np.concatenate([[self.below], self.mass]))

    def _center(self, convex_from: float | Array) -> Array:
        """At least (1/ρ) log E e^{ρX} in each bin, by Hoeffding's lemma: the mean where ρ = 0 (B4)."""
        rate = curvature(self.left, convex_from)
        spread = np.where(rate > 0.0, self.right - self.left, 0.0)
        with np.errstate(invalid="ignore", over="ignore"):
            center = self.mean + rate * spread**2 / 8
        return np.where(np.isnan(center), self.right, np.minimum(center, self.right))


def right_share(left: Array, right: Array, mean: Array, rate: Array) -> Array:
    """Share of a bin's mass for its right end that keeps the mean of e^{ρx}, rounded towards the left end (B4)."""
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        width, offset = rate * (right - left), rate * (mean - left)
        linear = (mean - left) / (right - left)
        curved = np.exp(offset - width) * (np.expm1(-offset) / np.expm1(-width))
    return np.clip(np.where(width > 1e-9, curved, linear * np.exp(-width)), 0.0, 1.0)


def curvature(x: Array, convex_from: float | Array) -> Array:
    """ρ of (B4): h_ε is convex in e^{ρx} right of x, for every ε."""
    with np.errstate(over="ignore"):
        rate: Array = 1.5 * np.maximum(convex_from / x - 1.0, 0.0) / x
    return rate


def _merge(x: Array, mass: Array) -> tuple[Array, Array]:
    """Sum the masses of equal atoms; drop empty ones and those at infinity (no sensitivity, no loss)."""
    values, index = np.unique(x, return_inverse=True)
    total = np.bincount(index, weights=mass, minlength=values.size)
    keep = (total > 0) & np.isfinite(values)
    return values[keep], total[keep]


def bin_edges(
    law: GammaMixture | ResidualOrder, tail: float, bins: int, right_end: float, focus: Focus | Steep | None = None
) -> Array:
    """Logarithmically spaced bin ends, from the ``tail`` quantile of the law to ``right_end``."""
    start = max(law.lower_quantile(tail), 1e-290)
    if isinstance(focus, Steep):
        return focus.edges(law, start, right_end, bins)
    if focus is None:
        return np.geomspace(start, right_end, bins + 1)
    low, high = (min(max(law.lower_quantile(end), start), right_end) for end in focus.ends)
    if not low < high:
        return np.geomspace(start, right_end, bins + 1)
    everywhere, there = np.geomspace(start, right_end, bins + 1), np.geomspace(low, high, bins + 1)
    return np.unique(np.concatenate([everywhere, there]))


def bins_of_mixture(law: GammaMixture, number: int, tail: float, focus: Focus | Steep | None = None) -> NormRatioBins:
    """A mixture of χ²(ν)/ν in bins that reach to ∞."""
    edges = bin_edges(law, tail, number, law.upper_quantile(1e-9), focus)
    left, right = edges, np.append(edges[1:], np.inf)
    return bins_from_moments(left, right, *law.increments(left, right), left_tail(law, edges[0]))


def left_tail(law: GammaMixture | ResidualOrder, x: float) -> float:
    """Probability of X below x."""
    return float(law.cdf(np.array([x]))[0])


def bins_from_moments(left: Array, right: Array, mass: Array, first_moment: Array, below: float) -> NormRatioBins:
    """Bins that are not empty, from masses and first moments."""
    keep = mass > 0
    left, right, mass, first_moment = left[keep], right[keep], mass[keep], first_moment[keep]
    return NormRatioBins(left=left, right=right, mass=mass, mean=first_moment / mass, below=below)
