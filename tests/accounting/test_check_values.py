"""Numbers computed independently of this library, and how narrow default answers are."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest

from dprmt.accounting import DPSGD, Hutchinson, calibrate

DELTA = 1e-5
TABLE = {"sample_rate": 2000 / 67349, "steps": 400}
CALIBRATION = {"target_epsilon": 0.7, "delta": DELTA, "steps": 3480}

# ------------------------------------------------------------------------------------------ ε of the table


def mechanism(sigma, analysis, who, sample_rate=TABLE["sample_rate"], probes=32):
    if analysis == "exact":
        return DPSGD(sigma, sample_rate)
    return DPSGD(sigma, sample_rate, Hutchinson(probes, secret=who == "secret", analysis=analysis))


@pytest.mark.parametrize(
    ("sigma", "analysis", "who", "epsilon", "accuracy"),
    [
        (1.0, "exact", "public", 3.8096, 0.002),
        (1.0, "tight", "public", 4.637, 0.002),
        (1.0, "envelope", "public", 4.787, 0.002),
        (1.0, "tight", "secret", 4.133, 0.003),
        (1.0, "envelope", "secret", 4.418, 0.003),
        (2.0, "exact", "public", 1.2637, 0.002),
        (2.0, "tight", "public", 1.339, 0.002),
        (2.0, "envelope", "public", 1.392, 0.002),
        (2.0, "tight", "secret", 1.310, 0.003),
        (2.0, "envelope", "secret", 1.376, 0.003),
    ],
)
def test_epsilon_of_the_table(sigma, analysis, who, epsilon, accuracy):
    """For k = 32, δ = 1e-5, q = 2000/67349, T = 400, the value is in the interval up to its own accuracy."""
    bounds = mechanism(sigma, analysis, who).epsilon(steps=TABLE["steps"], delta=DELTA)
    assert bounds.lower - accuracy <= epsilon <= bounds.upper + accuracy
    assert bounds.lower <= bounds.estimate <= bounds.upper
    assert bounds.upper - bounds.lower <= 1e-3 * max(1.0, bounds.upper)


@pytest.mark.parametrize(
    ("sigma", "sample_rate", "steps", "delta", "epsilon"),
    [(0.779078, 2000 / 67349, 400, 1e-5, 6.6998), (1.0, 1e-3, 100_000, 1e-6, 1.8611)],
)
def test_epsilon_of_plain_dpsgd(sigma, sample_rate, steps, delta, epsilon):
    """Four decimals by an independent accountant; the upper bound is within max(1e-3, 0.1 %) of it."""
    bounds = DPSGD(sigma, sample_rate).epsilon(steps=steps, delta=delta)
    assert bounds.lower - 1e-4 <= epsilon <= bounds.upper + 1e-4
    assert bounds.upper - epsilon <= max(1e-3, 1e-3 * epsilon) + 1e-4


# ------------------------------------------------------------------------------------------ noise multipliers


@cache
def exact_noise() -> float:
    return calibrate(DPSGD(1.0, 16 / 1225), **CALIBRATION).noise_multiplier


def test_noise_multiplier_for_exact_norms():
    """The published table's 4.073, at ε = 0.7 and δ = 1e-5 (q = 16/1225, T = 3480)."""
    assert exact_noise() == pytest.approx(4.073, abs=3e-3)


@pytest.mark.parametrize(
    ("probes", "analysis", "who", "ratio", "accuracy"),
    [
        (32, "envelope", "public", 1.0694, 1e-3),
        (16, "tight", "public", 1.0735, 1e-3),
        (32, "tight", "public", 1.0346, 1e-3),
        (64, "tight", "public", 1.0168, 1e-3),
        (128, "tight", "public", 1.0083, 1e-3),
        (32, "tight", "secret", 1.025, 1.5e-3),
        (32, "envelope", "secret", 1.064, 1.5e-3),
    ],
)
def test_ratio_of_noise_multipliers(probes, analysis, who, ratio, accuracy):
    """How much more noise randomized clipping needs than exact norms."""
    found = calibrate(mechanism(1.0, analysis, who, 16 / 1225, probes), **CALIBRATION)
    assert found.noise_multiplier / exact_noise() == pytest.approx(ratio, abs=accuracy)


# ------------------------------------------------------------------------------------------ slack of the tight analysis


@pytest.mark.parametrize(
    ("sigma", "probes", "eta", "digits"),
    [
        (0.5, 32, 2.0e-8, 2),
        (0.7, 32, 3.0e-12, 2),
        (1.0, 32, 9.5e-17, 2),
        (0.5, 8, 2.3e-4, 2),
        (1.0, 8, 1.4e-6, 2),
        (2.0, 8, 5.9e-9, 2),
    ],
)
def test_slack_of_the_theory_note(sigma, probes, eta, digits):
    """η(σ, k) of section 3, printed with two digits; ours is an upper bound at most 15 % above."""
    half_a_digit = 0.5 * 10.0 ** (np.floor(np.log10(eta)) - digits + 1)
    pair = DPSGD(sigma, 1.0, Hutchinson(probes, secret=False)).step().upper_with_slack(160, 1e-20)
    found = pair.slack * (1.0 - pair.total_variation())  # (T5)
    assert eta - half_a_digit <= found <= 1.15 * (eta + half_a_digit)


# ------------------------------------------------------------------------------------------ how narrow answers are

SETTINGS = [
    (1.0, "exact", "public", 2000 / 67349, 400, 1e-5),
    (1.0, "tight", "public", 2000 / 67349, 400, 1e-5),
    (1.0, "envelope", "public", 2000 / 67349, 400, 1e-5),
    (2.0, "tight", "secret", 2000 / 67349, 400, 1e-5),
    (4.0, "exact", "public", 0.1, 10_000, 1e-8),
    (30.0, "tight", "public", 1.0, 100, 1e-5),
    (5.0, "exact", "public", 1e-3, 10, 1e-6),
]


@pytest.mark.parametrize(("sigma", "analysis", "who", "sample_rate", "steps", "delta"), SETTINGS)
def test_default_answers_are_narrow(sigma, analysis, who, sample_rate, steps, delta):
    """Upper - lower ≤ 1e-2·max(1, ε) and upper - truth ≤ 1e-3·max(1, ε), truth by a hundredth of the tolerance."""
    subject = mechanism(sigma, analysis, who, sample_rate)
    default = subject.epsilon(steps=steps, delta=delta)
    fine = subject.epsilon(steps=steps, delta=delta, tolerance=1e-5)
    scale = max(1.0, fine.upper)
    assert default.upper - default.lower <= 1e-2 * scale
    assert default.upper - fine.lower <= 1e-3 * scale + (fine.upper - fine.lower)
    assert fine.upper - fine.lower <= 5e-4 * scale
    assert default.lower <= fine.upper
    assert fine.lower <= default.upper


@pytest.mark.parametrize(
    ("analysis", "who"), [("exact", "public"), ("tight", "public"), ("envelope", "public"), ("tight", "secret")]
)
def test_a_finer_tolerance_is_met(analysis, who):
    """In the table's setting, σ = 1, the interval is as narrow as asked for: 2e-4 of ε."""
    fine = mechanism(1.0, analysis, who).epsilon(steps=TABLE["steps"], delta=DELTA, tolerance=2e-4)
    assert fine.upper - fine.lower <= 2e-4 * fine.upper


@pytest.mark.parametrize(("sigma", "analysis", "who", "sample_rate", "steps", "delta"), SETTINGS[:5])
def test_default_deltas_are_narrow(sigma, analysis, who, sample_rate, steps, delta):
    """δ at the ε found for δ: within 5 % of each other, and the given δ is between the bounds."""
    subject = mechanism(sigma, analysis, who, sample_rate)
    epsilon = subject.epsilon(steps=steps, delta=delta).upper
    bounds = subject.delta(steps=steps, epsilon=epsilon)
    assert bounds.lower <= delta
    assert 0.95 * delta <= bounds.upper <= 1.01 * delta
    assert bounds.upper - bounds.lower <= 0.05 * delta
