"""Published and independently computed values: every number lies inside our bounds, and the bounds are narrow."""

from __future__ import annotations

import pytest

from dprmt.accounting import DPSGD, RandomizedClipping, calibrate_noise_multiplier
from dprmt.accounting._nonconvex_slack import tangent_excess

RATE, STEPS, DELTA = 2000 / 67349, 400, 1e-5
TIGHT = {"analysis": "tight"}
ENVELOPE = {"analysis": "envelope"}
SECRET = {"probe_sharing": "sample"}

EPSILON = [
    (1.0, None, 3.8096, 0.002),
    (1.0, TIGHT, 4.637, 0.002),
    (1.0, ENVELOPE, 4.787, 0.002),
    (1.0, SECRET, 4.133, 0.003),
    (1.0, {**SECRET, **ENVELOPE}, 4.418, 0.003),
    (2.0, None, 1.2637, 0.002),
    (2.0, TIGHT, 1.339, 0.002),
    (2.0, ENVELOPE, 1.392, 0.002),
    (2.0, SECRET, 1.310, 0.003),
    (2.0, {**SECRET, **ENVELOPE}, 1.376, 0.003),
]


@pytest.mark.parametrize(("sigma", "options", "value", "margin"), EPSILON)
def test_epsilon_with_32_probes(sigma: float, options: dict | None, value: float, margin: float) -> None:
    mechanism = DPSGD(sigma, RATE) if options is None else RandomizedClipping(sigma, RATE, 32, **options)
    lower, estimate, upper = mechanism.epsilon(STEPS, DELTA)
    assert lower - margin <= value <= upper + margin
    assert lower <= estimate <= upper <= lower + 1e-3 * max(1.0, upper)


RATIOS = [
    (32, ENVELOPE, 1.0694, 1e-3),
    (16, TIGHT, 1.0735, 1e-3),
    (32, TIGHT, 1.0346, 1e-3),
    (64, TIGHT, 1.0168, 1e-3),
    (128, TIGHT, 1.0083, 1e-3),
    (32, SECRET, 1.025, 1.5e-3),
    (32, {**SECRET, **ENVELOPE}, 1.064, 1.5e-3),
]
TARGET = {"target_epsilon": 0.7, "delta": 1e-5, "sample_rate": 16 / 1225, "steps": 3480}


@pytest.fixture(scope="module")
def exact_noise() -> float:
    """The noise multiplier of exact norms; the paper prints 4.073."""
    return calibrate_noise_multiplier(**TARGET)


def test_noise_multiplier_of_exact_norms(exact_noise: float) -> None:
    assert exact_noise == pytest.approx(4.073, abs=4e-3)


@pytest.mark.parametrize(("probes", "options", "ratio", "margin"), RATIOS)
def test_noise_multiplier_ratios(exact_noise: float, probes: int, options: dict, ratio: float, margin: float) -> None:
    assert calibrate_noise_multiplier(**TARGET, probes=probes, **options) / exact_noise == pytest.approx(
        ratio, abs=margin
    )


@pytest.mark.parametrize(
    ("rate", "steps", "sigma", "delta", "value"),
    [(RATE, 400, 0.779078, 1e-5, 6.6998), (1e-3, 100_000, 1.0, 1e-6, 1.8611)],
)
def test_plain_dp_sgd(rate: float, steps: int, sigma: float, delta: float, value: float) -> None:
    lower, _, upper = DPSGD(sigma, rate).epsilon(steps, delta)
    assert lower <= value + 1e-4
    assert value - 1e-4 <= upper <= value + 1e-4 + 1e-3 * max(1.0, value)


@pytest.mark.parametrize("options", [None, TIGHT, ENVELOPE, SECRET])
def test_default_width_against_a_finer_answer(options: dict | None) -> None:
    mechanism = DPSGD(1.0, RATE) if options is None else RandomizedClipping(1.0, RATE, 32, **options)
    fine = mechanism.epsilon(STEPS, DELTA, tolerance=2e-4)
    rough = mechanism.epsilon(STEPS, DELTA)
    assert fine.upper - fine.lower <= 2e-4 * fine.upper
    assert rough.lower <= fine.upper
    assert fine.lower <= rough.upper
    assert rough.upper - fine.lower <= 1e-3 * rough.upper


@pytest.mark.parametrize(
    ("sigma", "probes", "value"),
    [(0.5, 32, 2.0e-8), (0.7, 32, 3.0e-12), (1.0, 32, 9.5e-17), (0.5, 8, 2.3e-4), (1.0, 8, 1.4e-6), (2.0, 8, 5.9e-9)],
)
def test_excess_of_the_tangent(sigma: float, probes: int, value: float) -> None:
    """Never below the value (to its two digits), and at most a fifth above."""
    assert 0.97 * value <= tangent_excess(sigma, probes) <= 1.2 * value
