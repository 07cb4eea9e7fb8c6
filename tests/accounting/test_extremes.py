"""Settings far from the ordinary: a sound answer, no warning, no hang."""

from __future__ import annotations

import math
import time

import numpy as np
import pytest

from dprmt import ParameterError
from dprmt.accounting import DPSGD, Group, Hutchinson, HutchPlusPlus, LaplaceRelease, ReplaceOne, calibrate, compose

RATE = 2000 / 67349
SETTINGS = {
    "ε near 500": (DPSGD(0.5, 0.1, Hutchinson(32, secret=False)), 4500, 1e-5, 400, 700),
    "δ = 1e-18": (DPSGD(1.0, RATE, Hutchinson(32, secret=True)), 400, 1e-18, 11, 12),
    "δ = 1e-18, public": (DPSGD(2.0, RATE, Hutchinson(64, secret=False)), 400, 1e-18, 2, 6),
    "q = 1": (DPSGD(10.0, 1.0, Hutchinson(32, secret=False)), 400, 1e-5, 10.3, 10.5),
    "q = 1, secret": (DPSGD(10.0, 1.0, Hutchinson(32, secret=True)), 400, 1e-5, 10.2, 10.5),
    "q = 1, exact": (DPSGD(10.0, 1.0), 400, 1e-5, 9.97, 10.01),
    "T = 1": (DPSGD(1.0, RATE, Hutchinson(32, secret=False)), 1, 1e-5, 0.97, 0.99),
    "T = 1e6": (DPSGD(1.0, RATE, Hutchinson(32, secret=False)), 10**6, 1e-5, 990, 1000),
    "T = 1e6, secret": (DPSGD(1.0, RATE, Hutchinson(32, secret=True)), 10**6, 1e-5, 950, 957),
    "σ = 0.3": (DPSGD(0.3, RATE, Hutchinson(32, secret=False)), 400, 1e-5, 100, 125),
    "σ = 0.3, exact": (DPSGD(0.3, RATE), 400, 1e-5, 75, 125),
    "σ = 100": (DPSGD(100.0, RATE, Hutchinson(32, secret=False)), 400, 1e-5, 0.0157, 0.0159),
    "k = 2": (DPSGD(1.0, RATE, Hutchinson(2, secret=False)), 400, 1e-5, 3e5, 1e6),
    "k = 4": (DPSGD(2.0, RATE, Hutchinson(4, secret=False)), 400, 1e-5, 150, 220),
    "k = 4096": (DPSGD(1.0, RATE, Hutchinson(4096, secret=False)), 400, 1e-5, 3.81, 3.82),
    "nothing to see": (DPSGD(1e6, RATE), 400, 1e-5, 0, 0),
    "almost nothing": (DPSGD(100.0, 1e-3, Hutchinson(32, secret=False)), 1, 1e-7, 0, 1e-4),
    "rare samples": (DPSGD(1.0, 1e-9, Hutchinson(32, secret=False)), 10**6, 1e-5, 0, 0),
}


@pytest.mark.parametrize("name", SETTINGS)
def test_a_sound_answer(name: str) -> None:
    run, steps, delta, least, most = SETTINGS[name]
    lower, estimate, upper = run.epsilon(steps=steps, delta=delta)
    assert 0.0 <= lower <= estimate <= upper
    assert not math.isnan(upper)
    assert lower <= most
    assert least <= upper
    if most < 900:
        assert upper <= 1.05 * most + 1e-12


@pytest.mark.parametrize(
    ("sigma", "rate", "steps", "delta", "value", "width"),
    [(0.1, 0.001, 100, 1e-9, 267.37, 1e-3), (0.03, 0.01, 1000, 1e-5, None, 2e-3)],
)
def test_little_noise_has_an_epsilon_and_soon(
    sigma: float, rate: float, steps: int, delta: float, value: float | None, width: float
) -> None:
    """From above it was ∞, and without an answer in 92 seconds; the value is of an integral of its own."""
    start = time.process_time()
    found = DPSGD(sigma, rate).epsilon(steps=steps, delta=delta)
    assert time.process_time() - start < 5.0
    assert found.upper <= (1 + width) * found.lower
    assert value is None or found.lower <= value <= found.upper


def test_six_deltas_of_a_group_are_answered_at_once() -> None:
    start = time.process_time()
    deltas = DPSGD(1.0, 0.01, neighbours=Group(4)).delta(steps=33_287, epsilon=[1.0, 2.0, 3.0, 4.0, 5.0, 6.0])
    assert time.process_time() - start < 3.0
    assert all(bounds.lower <= bounds.upper <= 1.0 for bounds in deltas)


def test_noise_below_what_is_looked_for_is_said_soon() -> None:
    start = time.process_time()
    with pytest.raises(ParameterError, match=r"target_epsilon must be so small that .* noise multiplier >= 0\.01"):
        calibrate(DPSGD(1.0, 0.01), steps=1000, target_epsilon=1e6, delta=1e-5)
    assert time.process_time() - start < 5.0


def test_near_zero_the_answer_does_not_depend_on_a_mesh() -> None:
    """ε of one faint step, to three digits, against the closed form of its δ at 0."""
    lower, _, upper = DPSGD(50.0, 0.01).epsilon(steps=1, delta=1e-5)
    assert 0 < lower <= upper < 5e-4
    assert upper - lower < 0.02 * upper


def test_hopeless_settings_answer_infinity() -> None:
    bounds = DPSGD(0.01, 1.0, Hutchinson(2, secret=False)).epsilon(steps=10**6, delta=1e-280)
    assert bounds.upper == math.inf
    assert bounds.lower >= 0


@pytest.mark.parametrize(
    ("probes", "rate", "steps", "delta"),
    [
        (None, 1e-6, 1, 1e-30),
        (None, 1e-3, 1, 1e-60),
        (None, 1e-6, 5, 1e-60),
        (4, 1e-3, 1, 1e-60),
        pytest.param(4, 1e-6, 1, 1e-30, marks=pytest.mark.slow),
        pytest.param(4, 1e-6, 5, 1e-60, marks=pytest.mark.slow),
        pytest.param(32, 1e-6, 1, 1e-30, marks=pytest.mark.slow),
        pytest.param(32, 1e-3, 1, 1e-60, marks=pytest.mark.slow),
        pytest.param(32, 1e-6, 5, 1e-60, marks=pytest.mark.slow),
    ],
)
def test_adding_a_sample_never_costs_more_than_its_largest_loss(probes, rate: float, steps: int, delta: float) -> None:
    """-T log(1 - q), whatever δ: rounding left masses of 1e-20 beyond it, and lower bounds .4 % above."""
    runs = (
        [DPSGD(0.3, rate)]
        if probes is None
        else [DPSGD(0.3, rate, Hutchinson(probes, secret=False)), DPSGD(0.3, rate, Hutchinson(probes, secret=True))]
    )
    for run in runs:
        bounds = compose([(run, steps)]).epsilon_by_direction(delta)["add"]
        most = -steps * math.log1p(-rate)
        assert bounds.lower <= most * (1 + 1e-12) <= bounds.upper
        assert compose([(run, steps)]).delta_by_direction(1.001 * most)["add"].lower == 0.0


@pytest.mark.parametrize("steps", [1, 2, 10])
@pytest.mark.parametrize("noise", [1e-3, 1e-2])
def test_losses_beyond_underflow_have_ends(noise: float, steps: int) -> None:
    """The gaussian mechanism, whose ε at δ is μ²/2 + μ·(about 4.3), as large as it is."""
    mu = steps**0.5 / noise
    for bounds in compose([(DPSGD(noise, 1.0), steps)]).epsilon_by_direction(1e-5).values():
        assert bounds.lower <= mu * (mu / 2 + 4.4)
        assert bounds.upper >= mu * (mu / 2 + 4.2)
    assert DPSGD(noise, 1.0).delta(steps=steps, epsilon=5.0).upper == pytest.approx(1.0)


def test_a_trade_off_of_replaced_samples_at_a_rate_of_0_is_a_number() -> None:
    """By composed curves with an ε beyond e^709: ∞ · 0 was none."""
    run = compose([(DPSGD(0.49, 0.13, HutchPlusPlus(48, 16, secret=False), ReplaceOne()), 14202)])
    band = run.trade_off([0.0, 1e-6, 1.0])
    assert np.all((band.lower >= 0.0) & (band.lower <= band.upper) & (band.upper <= 1.0))


def test_replaced_samples_at_a_loss_beyond_all_numbers_have_an_answer() -> None:
    """Where e^loss is infinite and what it is multiplied by is 0, nothing warned of a bound that is none."""
    phases = [(DPSGD(0.4366, 0.00382, Hutchinson(12, secret=False), ReplaceOne()), 11), (LaplaceRelease(0.45), 3)]
    assert 0.0 < compose(phases).delta(16.5).upper < 1e-3
