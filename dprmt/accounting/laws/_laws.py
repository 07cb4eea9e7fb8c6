"""Laws of the squared-norm ratio X = n̂²/n²: exact, χ²(k)/k, the published envelope, what a sketch leaves."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
from scipy.special import gammaincc, gammaincinv

from dprmt.accounting.basics._numbers import Array
from dprmt.accounting.laws._envelope import ENVELOPE_MARGIN, envelope_cdf, envelope_switch
from dprmt.accounting.laws._gamma_mixture import (
    LARGEST_DOF,
    GammaMixture,
    NormRatioBins,
    bins_from_moments,
)
from dprmt.accounting.laws._sketch import Head, probe_copies


class NormLaw:
    """A law that bounds X for every spectrum, in the convex or in the stochastic order.

    Laws are frozen dataclasses: the engine groups steps whose laws are equal.
    """

    is_exact: ClassVar[bool] = False
    """Whether X = 1."""
    probes: int
    """Probes k of each layer, of an estimate: P(X < x) falls like x^{k/2} or faster."""

    @property
    def convex_mixture(self) -> GammaMixture | None:
        """The law that no spectrum exceeds in E g(X), g convex; None where it is not of that kind."""
        return None

    def bins(self, number: int, tail: float) -> NormRatioBins:
        """Return the law in bins that reach to ∞, of which ``tail`` may be cut off on the left."""
        law = self.convex_mixture
        assert law is not None
        left = np.geomspace(max(law.quantile(tail), 1e-290), law.quantile(1e-9, True), number + 1)
        right = np.append(left[1:], np.inf)
        return bins_from_moments(left, right, *law.increments(left, right), float(law.cdf(left[0])))


@dataclass(frozen=True)
class ExactLaw(NormLaw):
    """The law of exact norms, X = 1."""

    is_exact: ClassVar[bool] = True

    def bins(self, number: int, tail: float) -> NormRatioBins:
        """Return one bin."""
        del number, tail
        one = np.ones(1)
        return NormRatioBins(left=one, right=one, mass=one, mean=one, below=0.0)


@dataclass(frozen=True)
class EnvelopeLaw(NormLaw):
    """The law whose CDF is the envelope G_d.

    ``probes``, ``rank``: k and d; ``rank=None`` is d → ∞, also used (it is larger) where k·d exceeds 10⁵: scipy's
    incomplete gamma functions lose their relative accuracy in the tails of larger shapes.
    """

    probes: int
    rank: int | None = None

    def bins(self, number: int, tail: float) -> NormRatioBins:
        """See :class:`NormLaw`."""
        rank = None if self.rank is not None and self.probes * self.rank > LARGEST_DOF else self.rank
        if rank == 1:
            return RankOneLaw(self.probes).bins(number, tail)
        law = GammaMixture((self.probes,))
        edges = np.geomspace(max(law.quantile(tail), 1e-290), 1.0, number + 1)
        left, right = edges[:-1], edges[1:]
        mass, first_moment = law.increments(left, right)
        if rank is None:
            one, rest = np.ones(1), np.array([gammaincc(self.probes / 2, self.probes / 2)])
            parts = [(left, right, mass, first_moment), (one, one, rest, rest)]
        else:
            parts = [(left, right, mass, first_moment), *_beyond_one(self.probes, rank, number)]
        left, right, mass, first_moment = (np.concatenate(column) for column in zip(*parts, strict=True))
        found = bins_from_moments(left, right, mass, first_moment, float(law.cdf(edges[0])))
        return found if rank is None else replace(found, margin=ENVELOPE_MARGIN)


def _beyond_one(probes: int, rank: int, bins: int) -> list[tuple[Array, Array, Array, Array]]:
    """Return the envelope's segments right of 1: the hump, whose means are unknown, and equal spectral values."""
    switch = float(envelope_switch(probes, rank))
    hump = np.linspace(1.0, switch, 4 * bins + 1)
    hump_mass = np.maximum(np.diff(envelope_cdf(hump, probes, rank)), 0.0)
    shape = probes * rank / 2
    end = max(float(gammaincinv(shape, 1.0 - 1e-9) / shape), switch * (1 + 1e-6))
    outer = np.geomspace(switch, end, bins + 1)
    left, right = outer, np.append(outer[1:], np.inf)
    return [
        (hump[:-1], hump[1:], hump_mass, np.full(hump_mass.size, np.nan)),
        (left, right, *GammaMixture((probes * rank,)).increments(left, right)),
    ]


@dataclass(frozen=True)
class RankOneLaw(NormLaw):
    """Law of X for Hutchinson's estimator under the tight analysis."""

    probes: int

    @property
    def convex_mixture(self) -> GammaMixture:
        """See :class:`NormLaw`: (T3)."""
        return GammaMixture((self.probes,))


@dataclass(frozen=True)
class SketchedLaw(NormLaw):
    """The law that no spectrum exceeds in E g(X), g convex, given a sketch of so many columns."""

    probes: int
    head: Head

    @property
    def convex_mixture(self) -> GammaMixture:
        """See :class:`NormLaw`: (H4)."""
        return GammaMixture.of_copies(self.probes, *probe_copies(*self.head))
