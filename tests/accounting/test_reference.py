"""Answers against slow, literal references: closed forms, quadrature over the χ² density."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache

import numpy as np
import pytest
from scipy import integrate, stats
from scipy.optimize import brentq, minimize_scalar
from scipy.special import gammaincc, gammaincinv, gammaln, log_ndtr, ndtr

from dprmt.accounting import DPSGD, ExactNorms, Hutchinson
from dprmt.accounting.pairs._pairs import LossPMF, StepPair, from_above, from_below
from dprmt.accounting.pairs._steps import ClippingStep

DIRECTIONS = ("remove", "add")
Q = 2000 / 67349

# ------------------------------------------------------------------------------------------ one step, by quadrature


@lru_cache(maxsize=64)
def norm_ratios(probes: int | None, analysis: str, panels: int = 90, points: int = 12):
    """Nodes and weights for E over X: 1 (exact norm), χ²(k)/k ("tight"), or min(χ²(k)/k, 1) ("envelope")."""
    if probes is None:
        return np.ones(1), np.ones(1)
    a = probes / 2
    low = np.log(max(gammaincinv(a, 1e-60) / a, 1e-200))
    high = np.log((a + 12 * np.sqrt(a) + 80) / a) if analysis == "tight" else 0.0
    node, weight = np.polynomial.legendre.leggauss(points)
    edges = np.linspace(low, high, panels + 1)
    middle, half = (edges[1:] + edges[:-1]) / 2, (edges[1:] - edges[:-1]) / 2
    u = (middle[:, None] + half[:, None] * node).ravel()
    mass = (half[:, None] * weight).ravel() * np.exp(a * u + a * np.log(a) - a * np.exp(u) - gammaln(a))
    x = np.exp(u)
    if analysis == "envelope":
        x, mass = np.append(x, 1.0), np.append(mass, gammaincc(a, a))
    return x[mass > 0], mass[mass > 0]


def log_shift(epsilon: float, q: float) -> float:
    """Log r with e^ε = 1 - q + q r, or -∞."""
    if q == 1.0:
        return epsilon
    if epsilon > 500:
        return epsilon - np.log(q)
    r = np.expm1(epsilon) / q + 1.0
    return float(np.log(r)) if r > 0 else -np.inf


@dataclass(frozen=True)
class OneStep:
    """δ(ε) of one step, any real ε, without cancellation: everything is E over X of something explicit."""

    sigma: float
    q: float
    probes: int | None = None
    analysis: str = "tight"
    secret: bool = False

    @property
    def mechanism(self) -> DPSGD:
        norms = Hutchinson(self.probes, secret=self.secret, analysis=self.analysis) if self.probes else ExactNorms()
        return DPSGD(self.sigma, self.q, norms)

    @cached_property
    def law(self):
        x, mass = norm_ratios(self.probes, self.analysis)
        return 1 / (self.sigma * np.sqrt(x)), mass

    def delta(self, epsilon: float, direction: str) -> float:
        with np.errstate(over="ignore"):
            return (self._secret if self.secret else self._public)(epsilon, direction)

    def epsilon(self, delta: float, direction: str) -> float:
        if self.delta(0.0, direction) <= delta:
            return 0.0
        high = 0.1
        while self.delta(high, direction) > delta:
            high *= 2
        return brentq(lambda e: self.delta(e, direction) - delta, 0.0, high, xtol=1e-10)

    def _public(self, epsilon, direction):
        """Subsampled Gaussian mechanism at each z, averaged."""
        (mu, mass), q = self.law, self.q
        if direction == "remove":
            shift = log_shift(epsilon, q)
            if shift == -np.inf:
                return -np.expm1(epsilon)
            first = np.exp(log_ndtr(mu / 2 - shift / mu))
            return q * float(mass @ (first - np.exp(np.minimum(shift + log_ndtr(-mu / 2 - shift / mu), 0.0))))
        shift = log_shift(-epsilon, q)
        if shift == -np.inf:
            return 0.0
        y = shift / mu + mu / 2
        absent = -np.expm1(epsilon + np.log1p(-q)) if q < 1 else 1.0
        return float(mass @ (absent * ndtr(y) - np.exp(epsilon + np.log(q) + log_ndtr(y - mu))))

    @cached_property
    def _half_lines(self):
        """A grid of t with E Φ(t - μ) and E Φ(μ - t) on it."""
        mu, mass = self.law
        t = np.concatenate([np.linspace(-14, 12, 131), np.geomspace(12, 3e3, 100)[1:]])
        return t, np.array([[mass @ ndtr(point - mu), mass @ ndtr(mu - point)] for point in t]).T

    def _secret(self, epsilon, direction):
        """Sup over half-lines, by a grid and one local refinement."""
        (mu, mass), q = self.law, self.q
        t, (below, above) = self._half_lines
        absent = -np.expm1(epsilon + np.log1p(-q)) if q < 1 else 1.0

        def gain(t, below, above):
            if direction == "remove":
                return (1 - q) * ndtr(-t) - np.exp(np.minimum(epsilon + log_ndtr(-t), 700.0)) + q * above
            return absent * ndtr(t) - np.exp(min(epsilon, 700.0)) * q * below

        values = gain(t, below, above)
        best = int(values.argmax())
        ends = t[max(best - 1, 0)], t[min(best + 1, t.size - 1)]

        def loss(point):
            return -gain(point, mass @ ndtr(point - mu), mass @ ndtr(mu - point))

        local = minimize_scalar(loss, bounds=ends, method="bounded", options={"xatol": 1e-9})
        return float(max(values[best], -local.fun, 0.0, -np.expm1(epsilon)))


@pytest.mark.parametrize("probes", [2, 4, 32, 1000])
@pytest.mark.parametrize("analysis", ["tight", "envelope"])
def test_the_quadrature_is_exact_for_what_has_a_closed_form(probes, analysis):
    """Total mass and mean of X, P(X ≤ 1/4), and the same E h by scipy.integrate.quad."""
    x, mass = norm_ratios(probes, analysis)
    law = stats.gamma(probes / 2, scale=2 / probes)
    above = gammaincc(probes / 2, probes / 2)
    assert mass.sum() == pytest.approx(1.0, abs=1e-11)
    mean = 1.0 if analysis == "tight" else stats.gamma(probes / 2 + 1, scale=2 / probes).cdf(1.0) + above
    assert mass @ x == pytest.approx(mean, abs=1e-11)

    def h(x):
        mu = 1 / np.sqrt(x)
        return ndtr(mu / 2 - 1 / mu) - np.exp(1 + log_ndtr(-mu / 2 - 1 / mu))

    ends = [1e-9, 0.05, 0.3, 0.7, 1.0] + ([1.5, 3.0, 12.0] if analysis == "tight" else [])
    pieces = [integrate.quad(lambda x: law.pdf(x) * h(x), a, b, epsabs=1e-14)[0] for a, b in itertools.pairwise(ends)]
    atom = 0.0 if analysis == "tight" else above * h(1.0)
    assert mass @ h(x) == pytest.approx(sum(pieces) + atom, abs=1e-8)


EXACT = [(1.0, 1.0), (0.5, 0.3), (1.0, 1e-2), (3.0, 0.9), (0.8, 1e-4)]
PROBED = [(32, 4.0, 1.0), (32, 1.0, 0.03), (16, 2.0, 0.5), (256, 0.7, 0.01)]
HEAVY = [(4, 1.0, 0.1, 1e-3), (8, 1.0, 0.3, 1e-5), (32, 0.5, 1.0, 1e-3), (32, 0.3, 0.2, 1e-3)]
TINY = [(32, 4.0, 0.5, 1e-12), (64, 4.0, 1.0, 1e-18), (64, 2.0, 0.1, 1e-18)]
# (At 1e-18 adding a sample costs all but 1e-5 of its largest possible loss, -log(1 - q): the lower bound gives up.)
STEPS = [
    *((OneStep(*row), delta, 1e-2 if delta > 1e-15 else 1.0) for row in EXACT for delta in (0.05, 1e-6, 1e-18)),
    *(
        (OneStep(sigma, q, probes, analysis, secret), delta, 2e-2)
        for probes, sigma, q in PROBED
        for analysis, delta in (("tight", 1e-2), ("tight", 1e-9), ("envelope", 1e-9))
        for secret in (False, True)
    ),
    # Few probes, little noise, or δ below the rounding unit: intervals may be wide.
    *(
        (OneStep(sigma, q, probes, analysis, secret), delta, np.inf)
        for probes, sigma, q, delta in HEAVY + TINY
        for analysis, secret in (("tight", False), ("tight", True), ("envelope", True))
    ),
]


@pytest.mark.parametrize(("truth", "delta", "width"), STEPS)
def test_one_step_holds_the_truth_in_both_directions_and_is_as_narrow_as_said(
    truth: OneStep, delta: float, width: float
) -> None:
    """The subsampled Gaussian mechanism, averaged over the χ² density; for secret probes the best of half-lines."""
    for direction, bounds in truth.mechanism.epsilon_by_direction(steps=1, delta=delta).items():
        exact = truth.epsilon(delta, direction)
        assert bounds.lower <= exact + 1e-8, direction
        assert bounds.upper >= exact - 1e-8, direction
        assert bounds.upper - bounds.lower <= width * max(1.0, exact), direction


# ------------------------------------------------------------------------------------------ the whole curve of a step


def discretized(pair: StepPair, direction: str, index: np.ndarray, mesh: float, side: str) -> LossPMF:
    nodes = index * mesh
    cells = pair.cells(nodes) if direction == "remove" else pair.cells(-nodes[::-1]).mirrored()
    if side == "lower":
        return from_below(index, mesh, cells)
    law = from_above(index, mesh, cells)
    return replace(law, infinite=law.infinite + pair.slack)


def discrete_delta(pmf, epsilon):
    """δ at each ε of a discrete loss."""
    return np.maximum(-np.expm1(epsilon[:, None] - pmf.losses), 0.0) @ pmf.mass + pmf.infinite


CURVES = [
    (32, 1.0, Q, "tight"),
    (32, 1.0, Q, "envelope"),
    (16, 0.7, 0.5, "tight"),
    (16, 1.0, 1.0, "tight"),
    (32, 0.5, 1.0, "envelope"),
    (6, 1.0, 0.1, "tight"),
    (8, 0.5, 0.9, "tight"),
]


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("secret", [False, True], ids=["public", "secret"])
@pytest.mark.parametrize(("probes", "sigma", "q", "analysis"), CURVES)
@pytest.mark.parametrize("bins", [16])
def test_both_pairs_bound_the_whole_curve_of_a_step(probes, sigma, q, analysis, secret, direction, bins):
    """H_α at every α in e^[-3, 12], not only near the answer: what composition needs, ε < 0 included."""
    step = ClippingStep(sigma, q, Hutchinson(probes, secret=False, analysis=analysis).law(), secret)
    upper, lower = step.pairs(bins, 1e-10)
    truth = OneStep(sigma, q, probes, analysis, secret)
    mesh, index = 0.02, np.arange(-200, 1500)
    epsilon = np.linspace(-3.0, 12.0, 91) + 1e-3
    exact = np.array([truth.delta(e, direction) for e in epsilon])
    above = discrete_delta(discretized(upper, direction, index, mesh, "upper"), epsilon)
    below = discrete_delta(discretized(lower, direction, index, mesh, "lower"), epsilon)
    assert np.all(above >= exact - 1e-9 * exact - 1e-14)
    assert np.all(below <= exact + 1e-9 * exact + 1e-14)
