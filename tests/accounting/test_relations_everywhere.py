"""Every question and every neighbouring package, for every relation: one mechanism, many ways to ask."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from dprmt.accounting import (
    DPSGD,
    Group,
    Hutchinson,
    ReplaceOne,
    calibrate,
)

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


@EACH
def test_dp_accounting_composes_the_same_pairs(name: str) -> None:
    """Pessimistic there: never below our lower end, and near our upper one."""
    pytest.importorskip("dp_accounting")
    run = MECHANISMS[name]
    bounds = run.epsilon_by_direction(steps=STEPS, delta=DELTA)
    worst = max(bounds.values(), key=lambda one: one.upper)
    composed = run.to_pld(1e-3).self_compose(STEPS).get_epsilon_for_delta(DELTA)
    assert worst.lower <= composed <= worst.upper * 1.02
    assert run.to_pld(1e-3).get_delta_for_epsilon(1.0) >= run.delta(steps=1, epsilon=1.0).lower


@pytest.mark.filterwarnings("ignore:Assuming that true epsilon <:UserWarning")
@EACH
@pytest.mark.parametrize("direction", ["remove", "add"])
def test_prv_accountant_composes_the_same_pairs(name: str, direction: Any) -> None:
    prv_accountant = pytest.importorskip("prv_accountant")
    run = MECHANISMS[name]
    variable = run.to_prv(direction)
    accountant = prv_accountant.PRVAccountant(
        variable, eps_error=0.05, delta_error=DELTA * 1e-4, max_self_compositions=STEPS, eps_max=12.0
    )
    low, _, high = accountant.compute_epsilon(DELTA, [STEPS])
    bounds = run.epsilon_by_direction(steps=STEPS, delta=DELTA)[direction]
    assert low - 1e-3 <= bounds.upper
    assert bounds.lower <= high
    assert math.isfinite(high)
