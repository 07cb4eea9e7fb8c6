"""Every question and every neighbouring package, for every relation: one mechanism, many ways to ask."""

from __future__ import annotations

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
