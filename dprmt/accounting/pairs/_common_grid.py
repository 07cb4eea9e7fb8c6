r"""One grid of sensitivities for many steps that differ in their noise alone: (B5) of the theory, §3.

With V = σ²X the shift is V^{-1/2}, whatever σ, and h_ε is convex in V beyond 1/12 for every ε. So steps with the same
law of X can have their laws of V on the same nodes, and the normal law is then taken at each of them once. With secret
probes the curves at common thresholds take the place of h_ε: (C11).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Protocol

import numpy as np
from scipy.special import ndtri

from dprmt.accounting.basics import Array
from dprmt.accounting.laws import GammaMixture, curvature, right_share
from dprmt.accounting.pairs._cells import StepPair
from dprmt.accounting.pairs._clipping_step import ClippingStep
from dprmt.accounting.pairs._common_curves import FARTHEST, CommonBins, pairs_by_curves
from dprmt.accounting.pairs._discretization import pulled_in
from dprmt.accounting.pairs._public_pair import PublicPair

_FEWEST = 4
_FINER = 2.0  # than the bins of a single step, in logarithms: the normal law is no longer what costs
_CONVEX_FROM = 1.0 / 12.0
_CONCAVE_SHARE = 100.0  # of the mass that may be cut off: so much may move right by a bin, from below
_NEGLIGIBLE = 1e-9  # at the right end, where there is least sensitivity
_MOST_CURVES = 256  # of secret probes side by side
_MOST_BELOW = 1e-3  # the first bin
_ONE_ATOM = 1e-4  # of a tail: some thousand atoms have less each


class Step(Protocol):
    """What offers its pairs by itself."""

    def pairs(self, bins: int, tail: float) -> tuple[StepPair, StepPair]:
        """See :class:`dprmt.accounting.pairs._schedule.Step`."""
        ...


def pairs_of_steps(steps: Sequence[Step], bins: int, tail: float) -> list[tuple[StepPair, StepPair]]:
    """The pairs of each step, on common bins where several are alike."""
    found: dict[ClippingStep, tuple[StepPair, StepPair]] = {}
    for family in _families(steps, tail):
        if len(family) >= _FEWEST:
            found |= zip(family, _on_common_bins(family, bins, tail), strict=True)
    return [
        found[step] if isinstance(step, ClippingStep) and step in found else step.pairs(bins, tail) for step in steps
    ]


def _families(steps: Sequence[Step], tail: float) -> list[list[ClippingStep]]:
    """Steps that differ in their noise alone, of which the common bins are no worse than their own."""
    families: dict[ClippingStep, list[ClippingStep]] = {}
    for step in steps:
        if isinstance(step, ClippingStep) and _may_share(step, tail):
            families.setdefault(replace(step, noise_multiplier=1.0), []).append(step)
    return list(families.values())


def _may_share(step: ClippingStep, tail: float) -> bool:
    law = step.law.convex_mixture
    if law is None or step.has_few_probes:
        return False
    if not step.secret:  # hardly any sensitivity may be so large that h_ε is concave
        mass = float(law.cdf(np.array([step.convex_from]))[0])
        return step.sample_rate * mass <= _CONCAVE_SHARE * tail
    below = tail / step.sample_rate
    largest = 1.0 / (step.noise_multiplier * math.sqrt(law.lower_quantile(min(below, _MOST_BELOW))))
    farthest = largest - float(ndtri(_ONE_ATOM * tail))
    return step.sample_rate < 1.0 and farthest <= FARTHEST and step.is_charged_by_majorant(below)


def _mixture(step: ClippingStep) -> GammaMixture:
    law = step.law.convex_mixture
    assert law is not None  # else it may not share
    return law


def _on_common_bins(family: Sequence[ClippingStep], bins: int, tail: float) -> list[tuple[StepPair, StepPair]]:
    if not family[0].secret:
        return _public_pairs(family, _common_bins(family, round(_FINER * bins), tail), tail)
    some = (tuple(family[start : start + _MOST_CURVES]) for start in range(0, len(family), _MOST_CURVES))
    return [pair for steps in some for pair in _secret_pairs(steps, bins, tail)]


@lru_cache(maxsize=4)  # both directions ask for the same
def _secret_pairs(family: tuple[ClippingStep, ...], bins: int, tail: float) -> list[tuple[StepPair, StepPair]]:
    laws = _common_bins(family, round(_FINER * bins), tail)
    return list(pairs_by_curves(laws, _spread(laws, 0.0), family[0].sample_rate, bins, tail))


def _common_bins(family: Sequence[ClippingStep], bins: int, tail: float) -> CommonBins:
    first, law = family[0], _mixture(family[0])
    ends = law.lower_quantile(min(tail / first.sample_rate, _MOST_BELOW)), law.upper_quantile(_NEGLIGIBLE)
    variance = np.array([step.noise_multiplier for step in family]) ** 2
    edges = _edges(ends, variance, bins)
    return _binned(law, variance, edges, _reach(edges, ends, variance))


def _public_pairs(family: Sequence[ClippingStep], laws: CommonBins, tail: float) -> list[tuple[StepPair, StepPair]]:
    upper, lower = _spread(laws, _CONVEX_FROM), _pulled_in(laws.edges, laws.mass, laws.mean)
    lower[np.arange(len(family), dtype=np.int64), laws.first] += laws.below
    shift, q = laws.edges**-0.5, family[0].sample_rate
    return [
        (
            step.dominating(PublicPair(shift[above > 0], above[above > 0], q, rest), tail),
            PublicPair(shift[under > 0], under[under > 0], q),
        )
        for step, above, under, rest in zip(family, upper, lower, laws.below.tolist(), strict=True)
    ]


def _edges(ends: tuple[float, float], variance: Array, bins: int) -> Array:
    """Geometric grid covering the support of all laws of V."""
    low, high = np.log(ends[0] * variance.min()), np.log(ends[1] * variance.max())
    number = int(np.ceil((high - low) / np.log(ends[1] / ends[0]) * bins)) + 1
    return np.exp(np.linspace(low, high, number + 1))


def _reach(edges: Array, ends: tuple[float, float], variance: Array) -> list[tuple[int, int]]:
    """Of each law, the last edge with no more below than may be cut off, and the first with next to nothing beyond."""
    first = np.searchsorted(edges, ends[0] * variance, side="right") - 1
    last = np.searchsorted(edges, ends[1] * variance)
    return list(zip(np.maximum(first, 0).tolist(), np.minimum(last, edges.size - 1).tolist(), strict=True))


def _binned(law: GammaMixture, variance: Array, edges: Array, reach: Sequence[tuple[int, int]]) -> CommonBins:
    """Laws of V between the edges, of each those from its first edge to its last one."""
    mass, mean = np.zeros((2, variance.size, edges.size - 1))
    below, beyond = np.zeros((2, variance.size))
    for row, (v, (start, stop)) in enumerate(zip(variance.tolist(), reach, strict=True)):
        x = edges[start : stop + 1] / v
        own, moment = law.between(x)
        mass[row, start:stop] = own
        mean[row, start:stop] = v * moment / np.where(own > 0, own, 1.0)
        below[row], beyond[row] = law.cdf(x[:1])[0], 1.0 - law.cdf(x[-1:])[0]
    first, last = np.array(reach, dtype=np.int64).T
    return CommonBins(edges, mass, np.clip(mean, edges[:-1], edges[1:]), first, last, below, beyond)


def _spread(laws: CommonBins, convex_from: float) -> Array:
    """Masses at the edges, never more private (B4); what lies beyond a law's own bins goes to their end."""
    edges, mass = laws.edges, laws.mass
    to_right = mass * right_share(edges[:-1], edges[1:], laws.mean, curvature(edges[:-1], convex_from))
    atoms = np.zeros((mass.shape[0], edges.size))
    atoms[:, :-1] += mass - to_right
    atoms[:, 1:] += to_right
    atoms[np.arange(mass.shape[0], dtype=np.int64), laws.last] += laws.beyond
    return atoms


def _pulled_in(edges: Array, mass: Array, mean: Array) -> Array:
    """Masses at the edges, never less private (B5): where h_ε may be concave all goes to the right end of a bin."""
    convex = edges[:-1] >= _CONVEX_FROM
    inner, width = np.where(convex, mass, 0.0), np.diff(edges)
    atoms = pulled_in(width, inner, (mean - edges[:-1]) / width, np.zeros((mass.shape[0], edges.size)))
    atoms[:, 1:] += mass - inner
    return atoms
