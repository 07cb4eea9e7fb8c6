"""Mixtures of χ²(ν)/ν: the law of the squared-norm ratio under the tight analysis, with and without a sketch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy.special import gammainc, gammaincc, gammainccinv, gammaincinv

from dprmt.accounting.basics import Array

LARGEST_DOF = 10**5
"""scipy's incomplete gamma functions lose their relative accuracy in the tails of larger degrees of freedom."""


@dataclass(frozen=True)
class GammaMixture:
    """X is χ²(ν)/ν with probability w_ν."""

    dof: tuple[int, ...]
    weight: tuple[float, ...]

    @classmethod
    def single(cls, probes: int) -> GammaMixture:
        """χ²(k)/k."""
        return cls((probes,), (1.0,))

    @classmethod
    def of_copies(cls, probes: int, copies: tuple[int, ...], weight: tuple[float, ...]) -> GammaMixture:
        """χ²(Jk)/(Jk) with random J (H4); components beyond ``LARGEST_DOF`` count as fewer copies."""
        most = max(LARGEST_DOF // probes, 1)
        kept: dict[int, float] = {}
        for number, mass in zip(copies, weight, strict=True):
            dof = probes * min(number, most)
            kept[dof] = kept.get(dof, 0.0) + mass
        return cls(tuple(kept), tuple(kept.values()))

    def coarser(self, ratio: float = 1.4) -> GammaMixture:
        """Fewer components: each joins one with fewer degrees of freedom, by at most ``ratio``."""
        dof: list[int] = []
        weight: list[float] = []
        for nu, mass in zip(self.dof, self.weight, strict=True):
            if dof and nu <= ratio * dof[-1]:
                weight[-1] += mass
            else:
                dof.append(nu)
                weight.append(mass)
        return GammaMixture(tuple(dof), tuple(weight))

    def cdf(self, x: Array) -> Array:
        """P(X ≤ x)."""
        return self._mixed(lambda a: gammainc(a, a * x))

    def partial_mean(self, x: Array) -> Array:
        """E[X; X ≤ x]."""
        return self._mixed(lambda a: gammainc(a + 1.0, a * x))

    def increments(self, left: Array, right: Array) -> tuple[Array, Array]:
        """P(left < X ≤ right) and E[X; left < X ≤ right].

        Returns: non-negative, each difference taken on the side where it does not cancel.
        """

        def difference(shape: float, a: float) -> Array:
            lo, hi = a * left, a * right
            up = gammainc(shape, hi) - gammainc(shape, lo)
            down = gammaincc(shape, lo) - gammaincc(shape, hi)
            return np.maximum(np.where(right <= 1.0, up, down), 0.0)

        return self._mixed(lambda a: difference(a, a)), self._mixed(lambda a: difference(a + 1.0, a))

    def between(self, edges: Array) -> tuple[Array, Array]:
        """As :meth:`increments` between increasing edges, each of which is looked at once."""
        middle = int(np.searchsorted(edges, 1.0, side="right"))

        def difference(shape: float, a: float) -> Array:
            up = np.diff(gammainc(shape, a * edges[:middle]))
            down = -np.diff(gammaincc(shape, a * edges[max(middle - 1, 0) :]))
            return np.maximum(np.concatenate([up, down]), 0.0)

        return self._mixed(lambda a: difference(a, a)), self._mixed(lambda a: difference(a + 1.0, a))

    def lower_quantile(self, tail: float) -> float:
        """A value that X falls below with probability at most ``tail``."""
        return min(float(gammaincinv(a, share)) / a for a, share in self._shares(tail))

    def upper_quantile(self, tail: float) -> float:
        """A value that X exceeds with probability at most ``tail``."""
        return max(float(gammainccinv(a, share)) / a for a, share in self._shares(tail))

    def _shares(self, tail: float) -> list[tuple[float, float]]:
        """Shape of each component that matters, and the tail it may have."""
        return [
            (nu / 2, min(tail / (len(self.dof) * mass), 0.5)) for nu, mass in zip(self.dof, self.weight, strict=True)
        ]

    def _mixed(self, component: Callable[[float], Array]) -> Array:
        parts = [mass * component(nu / 2) for nu, mass in zip(self.dof, self.weight, strict=True)]
        value: Array = np.sum(parts, axis=0)
        return value
