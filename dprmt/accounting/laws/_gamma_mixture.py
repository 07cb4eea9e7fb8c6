r"""A law of the squared-norm ratio X = n̂²/n²: mixtures of χ²(ν)/ν, cut into bins with masses and means in closed form.

A clipped sample with estimated norm n̂ has sensitivity Z = X^{-1/2} (in units of the clipping norm). Bins turn a
law into finitely many sensitivities without losing the side of the bound: (B4) of
``docs/theory/randomized_clipping.md``.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.special import gammainc, gammaincc, gammainccinv, gammaincinv

from dprmt.accounting.basics._numbers import Array

LARGEST_DOF = 10**5
"""scipy's incomplete gamma functions lose their relative accuracy in the tails of larger degrees of freedom."""


@dataclass(frozen=True)
class GammaMixture:
    """X is χ²(ν)/ν with probability w_ν."""

    dof: tuple[int, ...]
    weight: tuple[float, ...] = (1.0,)

    @classmethod
    def of_copies(cls, probes: int, copies: tuple[int, ...], weight: tuple[float, ...]) -> GammaMixture:
        """Return χ²(Jk)/(Jk) with random J (H4); components beyond ``LARGEST_DOF`` count as fewer copies."""
        most = max(LARGEST_DOF // probes, 1)
        kept: dict[int, float] = {}
        for number, mass in zip(copies, weight, strict=True):
            dof = probes * min(number, most)
            kept[dof] = kept.get(dof, 0.0) + mass
        return cls(tuple(kept), tuple(kept.values()))

    def cdf(self, x: Array) -> Array:
        """Evaluate P(X ≤ x)."""
        parts = [mass * gammainc(nu / 2, nu / 2 * x) for nu, mass in zip(self.dof, self.weight, strict=True)]
        return np.asarray(np.sum(parts, axis=0))

    def partial_mean(self, x: Array) -> Array:
        """Evaluate E[X; X ≤ x]."""
        parts = [mass * gammainc(nu / 2 + 1.0, nu / 2 * x) for nu, mass in zip(self.dof, self.weight, strict=True)]
        return np.asarray(np.sum(parts, axis=0))

    def increments(self, left: Array, right: Array) -> tuple[Array, Array]:
        """Evaluate P(left < X ≤ right) and E[X; left < X ≤ right].

        Each difference is taken on the side where it does not cancel, so it is non-negative.
        """
        mass, moment = np.zeros((2, left.size))
        for nu, weight in zip(self.dof, self.weight, strict=True):
            lo, hi = nu / 2 * left, nu / 2 * right
            for total, shape in ((mass, nu / 2), (moment, nu / 2 + 1.0)):
                up, down = gammainc(shape, hi) - gammainc(shape, lo), gammaincc(shape, lo) - gammaincc(shape, hi)
                total += weight * np.maximum(np.where(right <= 1.0, up, down), 0.0)
        return mass, moment

    def quantile(self, tail: float, is_upper: bool = False) -> float:
        """Return a value that X falls below, or else exceeds, with probability at most ``tail``."""
        each = [
            (nu / 2, min(tail / (len(self.dof) * weight), 0.5))
            for nu, weight in zip(self.dof, self.weight, strict=True)
        ]
        if is_upper:
            return max(float(gammainccinv(a, share)) / a for a, share in each)
        return min(float(gammaincinv(a, share)) / a for a, share in each)


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
        """Return atoms of a law that is never more private: (values of X, masses), by (B4).

        The mass goes to both ends, right of ``convex_from`` so that the mean is kept, elsewhere with less for the
        right end. Where the mean is unknown, all goes to the left end. The mass ``below`` is left out.
        """
        rate = curvature(self.left, convex_from)
        width = self.right - self.left
        known = (width > 0) & np.isfinite(width) & np.isfinite(self.mean)
        to_right = np.zeros_like(width)
        to_right[known] = right_share(self.left, self.right, self.mean, rate)[known]
        x = np.concatenate([self.left, self.right[known], [1.0]])
        mass = np.concatenate([self.mass * (1.0 - to_right), (self.mass * to_right)[known], [self.margin]])
        return _merge(x, mass)

    def concentrate(self, convex_from: float | Array) -> tuple[Array, Array]:
        """Return atoms of a law that is never less private: (values of X, masses), by (B4).

        The mass goes to the conditional mean right of ``convex_from``, one number or one of each bin, elsewhere a
        little to its right, and where the mean is unknown to the right end. The mass ``below`` goes to the left
        end of the first bin.
        """
        x = np.where(
            np.isfinite(self.mean), np.maximum(self.center(curvature(self.left, convex_from)), self.left), self.right
        )
        x = np.concatenate([self.left[:1], x])
        return _merge(x, np.concatenate([[self.below], self.mass]))

    def center(self, rate: Array) -> Array:
        """Bound (1/ρ) log E e^{ρX} from above in each bin, by Hoeffding's lemma; the mean where ρ = 0 (B4)."""
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
    """Return ρ of (B4): h_ε is convex in e^{ρx} right of x, for every ε."""
    with np.errstate(over="ignore"):
        rate: Array = 1.5 * np.maximum(convex_from / x - 1.0, 0.0) / x
    return rate


def _merge(x: Array, mass: Array) -> tuple[Array, Array]:
    """Sum the masses of equal atoms; drop empty ones and those at infinity (no sensitivity, no loss)."""
    values, index = np.unique(x, return_inverse=True)
    total = np.bincount(index, weights=mass, minlength=values.size)
    keep = (total > 0) & np.isfinite(values)
    return values[keep], total[keep]


def bins_from_moments(left: Array, right: Array, mass: Array, first_moment: Array, below: float) -> NormRatioBins:
    """Build the non-empty bins from masses and first moments."""
    keep = mass > 0
    left, right, mass, first_moment = left[keep], right[keep], mass[keep], first_moment[keep]
    return NormRatioBins(left=left, right=right, mass=mass, mean=first_moment / mass, below=below)
