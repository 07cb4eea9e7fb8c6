"""Replaced samples and groups: simulated outputs, every question, and values from elsewhere.

In simulations gradients are opposite (replacement) or aligned (groups), of rank one; public probes give all of them one
ratio. Values are Fourier sums with a mesh of 2e-4 of the losses of rank-one gradients: the truth where norms are exact,
what one gradient attains where they are estimated, and, for public probes, what multiplied tails cost.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Literal

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.special import gammaincinv, logsumexp
from scipy.stats import binom

from dprmt.accounting import DPSGD, ExactNorms, Group, Hutchinson, PrivacyBounds, ReplaceOne, calibrate

Array = NDArray[np.float64]
DRAWS = 100_000
SETTINGS = [
    (ExactNorms(), ReplaceOne(), 1.0, 0.1, 10, 1.0),
    (ExactNorms(), ReplaceOne(), 3.0, 1.0, 8, 1.5),
    (ExactNorms(), Group(2), 1.0, 0.1, 10, 1.0),
    (ExactNorms(), Group(8), 4.0, 0.2, 5, 1.0),
    (ExactNorms(), Group(3), 1.5, 1.0, 1, 2.0),
    (Hutchinson(16, secret=False), ReplaceOne(), 1.0, 0.1, 10, 1.0),
    (Hutchinson(128, secret=False), ReplaceOne(), 1.5, 0.2, 6, 0.5),
    (Hutchinson(16, secret=False), Group(2), 1.2, 0.1, 10, 1.0),
    (Hutchinson(128, secret=False), Group(8), 4.0, 0.1, 5, 0.7),
    (Hutchinson(8, secret=True), ReplaceOne(), 1.0, 0.1, 10, 1.0),
    (Hutchinson(16, secret=True), ReplaceOne(), 0.7, 0.05, 8, 1.0),
    (Hutchinson(64, secret=True), ReplaceOne(), 1.5, 1.0, 2, 2.0),
]


def shifts(norms: ExactNorms | Hutchinson, sigma: float, rng: np.random.Generator) -> Array:
    """What a sample of rank one moves the output by, in units of the noise."""
    if isinstance(norms, ExactNorms):
        return np.full(DRAWS, 1 / sigma)
    return 1 / (sigma * np.sqrt(rng.chisquare(norms.probes, DRAWS) / norms.probes))


def replaced_losses(mechanism: DPSGD, rng: np.random.Generator) -> Array:
    """Log P/Q of one step's output under P, probes seen."""
    q, shift = mechanism.sampling.rate, shifts(mechanism.norms, mechanism.noise_multiplier, rng)  # type: ignore[arg-type]
    x = rng.standard_normal(DRAWS) + np.where(rng.random(DRAWS) < q, shift, 0.0)
    with np.errstate(divide="ignore"):
        out, drawn = np.log(1 - q), math.log(q) - shift**2 / 2
    return np.asarray(np.logaddexp(out, drawn + shift * x) - np.logaddexp(out, drawn - shift * x))


def secret_losses(mechanism: DPSGD, rng: np.random.Generator) -> Array:
    """The same where nobody sees the ratio: densities mixed over 2,000 quantiles of it."""
    norms, q, sigma = mechanism.norms, mechanism.sampling.rate, mechanism.noise_multiplier
    assert isinstance(norms, Hutchinson)
    ratio = gammaincinv(norms.probes / 2, (np.arange(2000) + 0.5) / 2000) * 2 / norms.probes
    shift = 1 / (sigma * np.sqrt(ratio))
    grid = np.linspace(-25.0, 25.0, 1001)
    with np.errstate(divide="ignore"):
        out = np.log(1 - q)
    drawn = logsumexp(np.multiply.outer(grid, shift) - shift**2 / 2, axis=1) - math.log(2000) + math.log(q)
    loss = np.logaddexp(out, drawn) - np.logaddexp(out, drawn[::-1])
    x = rng.standard_normal(DRAWS) + np.where(rng.random(DRAWS) < q, shifts(norms, sigma, rng), 0.0)
    return np.interp(x, grid, loss)


def group_losses(mechanism: DPSGD, rng: np.random.Generator) -> Array:
    """Log P/Q of one step under P, the group present; as many of its samples as coins say move the output."""
    q, shift, size = mechanism.sampling.rate, shifts(mechanism.norms, mechanism.noise_multiplier, rng), 0  # type: ignore[arg-type]
    assert isinstance(mechanism.neighbours, Group)
    size = mechanism.neighbours.size
    x = rng.standard_normal(DRAWS) + rng.binomial(size, q, DRAWS) * shift
    j = np.arange(size + 1)[:, None]
    with np.errstate(divide="ignore"):
        weight = np.log(binom.pmf(j, size, q))
    return np.asarray(logsumexp(weight + j * shift * x - (j * shift) ** 2 / 2, axis=0))


def losses_of(mechanism: DPSGD) -> Callable[[DPSGD, np.random.Generator], Array]:
    if isinstance(mechanism.neighbours, Group):
        return group_losses
    is_secret = isinstance(mechanism.norms, Hutchinson) and mechanism.norms.secret
    return secret_losses if is_secret else replaced_losses


def drawn_delta(mechanism: DPSGD, steps: int, epsilon: float) -> tuple[float, float]:
    """δ of the run at ε, E_P(1 - e^{ε - loss})₊, and its standard error."""
    rng = np.random.default_rng(7)
    step = losses_of(mechanism)
    loss = sum(step(mechanism, rng) for _ in range(steps))
    parts = np.maximum(-np.expm1(np.minimum(epsilon - loss, 0.0)), 0.0)
    return float(parts.mean()), float(parts.std() / math.sqrt(DRAWS))


@pytest.mark.parametrize(("norms", "neighbours", "sigma", "q", "steps", "epsilon"), SETTINGS)
def test_simulated_outputs_are_within_the_bounds_and_those_of_other_noise_are_not(
    norms: ExactNorms | Hutchinson, neighbours: ReplaceOne | Group, sigma: float, q: float, steps: int, epsilon: float
) -> None:
    """Removal for groups, whose δ is the larger one here; a tenth more or less noise is told apart."""
    mechanism = DPSGD(sigma, q, norms, neighbours)
    bounds = mechanism.delta(steps=steps, epsilon=epsilon)
    seen, error = drawn_delta(mechanism, steps, epsilon)
    assert seen > 100 / DRAWS
    assert bounds.lower - 4 * error <= seen <= bounds.upper + 4 * error
    by_curves = isinstance(neighbours, Group) and isinstance(norms, Hutchinson)  # no lower end to speak of
    assert bounds.upper < seen * (1.4 if by_curves else 1.25)  # what is charged is nearly attained
    more, _ = drawn_delta(DPSGD(1.1 * sigma, q, norms, neighbours), steps, epsilon)
    less, _ = drawn_delta(DPSGD(sigma / 1.1, q, norms, neighbours), steps, epsilon)
    assert by_curves or more < bounds.lower - 4 * error
    assert by_curves or less > bounds.upper + 4 * error


Q, STEPS, DELTA = 2000 / 67349, 50, 1e-5
MECHANISMS = {
    "replaced": DPSGD(1.0, Q, neighbours=ReplaceOne()),
    "replaced, secret": DPSGD(1.0, Q, Hutchinson(32, secret=True), ReplaceOne()),
    "two": DPSGD(1.0, Q, neighbours=Group(2)),
    "two replaced": DPSGD(1.0, Q, neighbours=Group(2, ReplaceOne())),
}
EACH = pytest.mark.parametrize("name", MECHANISMS)


@EACH
def test_a_trade_off_is_that_of_every_delta(name: str) -> None:
    """1 - f ≤ δ(ε) + e^ε α for each ε, and the band touches the best of them."""
    run = MECHANISMS[name]
    alpha = np.array([1e-3, 0.01, 0.1, 0.4])
    band = run.trade_off(steps=STEPS, alpha=alpha)
    epsilon = np.linspace(0.0, 8.0, 161)
    delta = np.asarray(run.delta(steps=STEPS, epsilon=epsilon.tolist()).upper)
    lines = np.max(1.0 - delta[:, None] - np.exp(epsilon)[:, None] * alpha, axis=0)
    assert np.all(band.upper >= lines - 1e-12)
    assert np.all(band.lower <= band.upper)
    assert np.all(band.upper - band.lower <= 2e-3)
    assert np.all(band.lower <= lines + 5e-3)
    power = run.true_positive_rate(steps=STEPS, false_positive_rate=0.01)
    assert power.lower <= 1.0 - band.lower[1] + 1e-9
    assert 1.0 - band.upper[1] <= power.upper + 1e-9
    advantage = run.advantage(steps=STEPS)
    assert advantage.lower - 1e-12 <= delta[0] <= advantage.upper + 1e-3
    assert run.bayes_risk(steps=STEPS).upper == pytest.approx((1 - advantage.lower) / 2, rel=1e-3)
    mu = run.gdp_mu(steps=STEPS, least_delta=1e-6)
    assert 0 < mu.lower <= mu.upper < 1.03 * mu.lower


def test_by_composed_curves_the_more_harmful_direction_decides_a_trade_off() -> None:
    """Of two samples with estimated norms; adding alone would promise up to .04 more."""
    run, alpha = DPSGD(1.0, Q, Hutchinson(32, secret=False), Group(2)), np.array([1e-3, 0.01, 0.1, 0.4])
    epsilon = np.linspace(0.0, 12.0, 61)
    delta = np.asarray(run.delta(steps=STEPS, epsilon=epsilon.tolist()).upper)
    lines = np.max(1.0 - delta[:, None] - np.exp(epsilon)[:, None] * alpha, axis=0)
    assert np.all(np.abs(run.trade_off(steps=STEPS, alpha=alpha).lower - lines) <= 4e-3)


@EACH
def test_a_calibrated_run_meets_its_target_and_no_smaller_noise_would(name: str) -> None:
    run = MECHANISMS[name]
    found = calibrate(run, steps=STEPS, target_epsilon=3.0, delta=DELTA)
    assert found.neighbours == run.neighbours
    assert found.norms == run.norms
    assert found.epsilon(steps=STEPS, delta=DELTA).upper <= 3.0
    less = DPSGD(0.995 * found.noise_multiplier, Q, run.norms, run.neighbours)
    assert less.epsilon(steps=STEPS, delta=DELTA).lower > 3.0 * 0.999
    held = calibrate(run, steps=STEPS, target_advantage=0.2)
    assert 0.2 * 0.99 <= held.advantage(steps=STEPS).lower <= held.advantage(steps=STEPS).upper <= 0.2


PAGE = Path(__file__).parents[2] / "docs" / "theory" / "neighbours.md"
BEGIN, END = "<!-- check values: begin -->", "<!-- check values: end -->"
ROWS = PAGE.read_text(encoding="utf-8").partition(BEGIN)[2].partition(END)[0].strip().splitlines()[2:]


@dataclass(frozen=True)
class Value:
    """ε of a run as it was computed elsewhere.

    ``way``: of both directions the larger one, or adding. ``is_worst``: whether the value is the worst case itself, or
    what one gradient attains. ``loose``: what multiplied tails cost. ``refuted``: an upper end below the value that
    ``dprmt verify`` proves.
    """

    mechanism: DPSGD
    value: float
    steps: int = 400
    delta: float = 1e-5
    way: Literal["both", "add"] = "both"
    is_worst: bool = True
    loose: float = math.inf
    refuted: float | None = None

    def bounds(self) -> PrivacyBounds:
        """What the library answers."""
        if self.way == "add":
            return self.mechanism.epsilon_by_direction(steps=self.steps, delta=self.delta)["add"]
        return self.mechanism.epsilon(steps=self.steps, delta=self.delta)

    def agrees(self, bounds: PrivacyBounds) -> bool:
        """Inside, up to the digits that were kept; a bound of estimates may exceed what is attained."""
        digit = 0.5 * 10 ** (math.floor(math.log10(self.value)) - 4)
        above = self.value <= bounds.upper + digit and (bounds.upper < self.loose or self.loose == math.inf)
        return above and (not self.is_worst or bounds.lower - digit <= self.value)


VALUES = (
    Value(DPSGD(1.0, Q, neighbours=ReplaceOne()), 5.8132),
    Value(DPSGD(0.779078, Q, neighbours=ReplaceOne()), 8.9788),
    Value(DPSGD(2.0, 0.01, neighbours=ReplaceOne()), 1.37454, 1000, 1e-6),
    Value(DPSGD(1.0, 1e-3, neighbours=ReplaceOne()), 2.83967, 100_000, refuted=2.83785),
    *(Value(DPSGD(1.0, Q, neighbours=Group(m)), value) for m, value in ((2, 8.4882), (4, 19.7522), (8, 49.104))),
    *(Value(DPSGD(1.0, Q, neighbours=Group(m)), v, way="add") for m, v in ((2, 5.674), (4, 12.521), (8, 28.547))),
    Value(DPSGD(1.0, Q, Hutchinson(32, secret=True), ReplaceOne()), 6.1175, is_worst=False),
    Value(DPSGD(1.0, Q, Hutchinson(32, secret=True), Group(2)), 9.1778, is_worst=False),
    Value(DPSGD(1.0, Q, Hutchinson(32, secret=True), Group(4)), 21.271, is_worst=False),
    Value(DPSGD(1.0, Q, Hutchinson(32, secret=False), ReplaceOne()), 6.424, is_worst=False, loose=7.368),
    Value(DPSGD(1.0, Q, Hutchinson(128, secret=False), ReplaceOne()), 5.928, is_worst=False, loose=6.367),
    Value(DPSGD(1.0, Q, Hutchinson(32, secret=False), Group(2)), 10.076, is_worst=False),
    Value(DPSGD(1.0, Q, Hutchinson(32, secret=False), Group(4)), 22.80, is_worst=False),
)


@cache
def answer(value: Value) -> PrivacyBounds:
    return value.bounds()


@pytest.mark.parametrize("value", VALUES, ids=lambda value: f"{value.mechanism}, {value.way}")
def test_a_value_from_elsewhere_is_inside(value: Value) -> None:
    """Up to its last digit; within 1e-3 unless the coupling of public probes is bounded, or curves are."""
    bounds = answer(value)
    assert value.agrees(bounds) is (value.refuted is None)
    if not isinstance(value.mechanism.norms, ExactNorms) and isinstance(value.mechanism.neighbours, Group):
        assert bounds.lower <= value.value
        assert not bounds.is_narrow
        return
    is_coupled = getattr(value.mechanism.norms, "secret", True) is False
    assert bounds.upper - bounds.lower <= (5e-3 if is_coupled else 1e-3) * bounds.upper


def test_the_page_prints_what_is_computed() -> None:
    assert len(ROWS) == len(VALUES)
    for row, value in zip(ROWS, VALUES, strict=True):
        cells, bounds = [cell.strip() for cell in row.strip("|").split("|")], answer(value)
        assert f"{value.value:g}" in cells[3]
        lower, upper, width = map(float, cells[4:7])
        assert lower <= bounds.upper * (1 + 1e-4)
        assert bounds.lower <= upper * (1 + 1e-4)
        assert width == (
            pytest.approx((upper - lower) / upper, abs=1e-2 * width + 1e-4) if upper < math.inf else math.inf
        )
        assert cells[7].startswith("yes" if value.refuted is None else "**no**")
