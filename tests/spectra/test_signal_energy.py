"""T1: the energy of the signal, from one noisy gradient or from a run's."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from dprmt.spectra import signal_energy, signal_energy_over_steps
from dprmt.spectra._telemetry import _exact_interval


def noisy_gradients(energy, d, sigma, count, seed=0):
    rng = np.random.default_rng(seed)
    signal = np.zeros(d)
    signal[0] = energy**0.5
    return signal + sigma * rng.standard_normal((count, d))


@pytest.mark.parametrize(("d", "energy"), [(3, 0.0), (3, 8.0), (200, 40.0), (2000, 0.0)])
def test_unbiased_and_covered_with_the_stated_probability(d, energy):
    """Mean within 3.5 standard errors; coverage of the 90 % interval in its binomial range. A noise that is taken for
    a third smaller or larger is rejected by both.
    """
    draws = noisy_gradients(energy, d, 1.0, 3000)
    for sigma, right in ((1.0, True), (0.66, False), (1.33, False)):
        found = [signal_energy(draw, sigma, failure=0.1) for draw in draws]
        values = np.array([f.value for f in found])
        error = values.std() / len(values) ** 0.5
        covered = np.mean([f.low <= energy <= f.high for f in found])
        assert bool(abs(values.mean() - energy) < 3.5 * error) is right
        exact = 0.95 if energy == 0 else 0.9  # at 0 one side cannot miss
        near = abs(covered - exact) < 3.5 * (exact * (1 - exact) / len(draws)) ** 0.5
        assert bool(near) is right


@given(st.floats(0.0, 1e4), st.integers(1, 10**7), st.sampled_from([0.01, 0.05, 0.3]))
def test_the_ends_are_where_the_law_has_its_quantiles(excess, d, failure):
    """P(χ²_d(high) <= x) = P(χ²_d(low) >= x) = failure/2, in scipy's other implementation of the law."""
    x = d + excess * (2 * d) ** 0.5 / 100
    noisy = np.array([x**0.5])  # of d entries, for the law: through the private function
    low, high = _exact_interval(noisy**2, np.array([float(d)]), failure)
    assert stats.ncx2.cdf(x, d, high[0]) == pytest.approx(failure / 2, rel=1e-3) if high[0] > 0 else True
    if low[0] > 1e-6:
        assert stats.ncx2.sf(x, d, low[0]) == pytest.approx(failure / 2, rel=1e-3)
    else:
        assert stats.chi2.sf(x, d) >= failure / 2 * (1 - 1e-3)


@given(st.floats(1e-3, 1e3), st.integers(0, 2**31), st.sampled_from([1, 7, 60]))
def test_scale_rotation_and_type_do_not_matter(scale, seed, d):
    """g̃ → cQg̃, s → cs gives c² times the estimate and its ends; torch gives what NumPy gives."""
    rng = np.random.default_rng(seed)
    noisy = 1.0 + rng.standard_normal(d)
    Q = np.linalg.qr(rng.standard_normal((d, d)))[0]
    first, second = signal_energy(noisy, 1.0), signal_energy(scale * Q @ noisy, scale)
    third = signal_energy(torch.tensor(noisy), 1.0)
    for name in ("value", "low", "high"):
        one, two, three = (getattr(found, name) for found in (first, second, third))
        assert two == pytest.approx(scale**2 * one, rel=1e-6, abs=1e-6 * scale**2 * d)
        assert three == pytest.approx(one, rel=1e-12, abs=1e-12)


def test_layers_are_the_arrays_one_by_one_and_add_up():
    rng = np.random.default_rng(0)
    layers = {"a": rng.standard_normal((4, 5)), "b": 3 + rng.standard_normal(7)}
    found = signal_energy(layers, 1.0)
    for place, value in enumerate(layers.values()):
        alone = signal_energy(value, 1.0)
        assert (found.value[place], found.low[place], found.high[place]) == (alone.value, alone.low, alone.high)
    whole = signal_energy(np.concatenate([value.ravel() for value in layers.values()]), 1.0)
    assert found.value.sum() == pytest.approx(whole.value)


def feedback_runs(runs, steps, d, rng):
    """Signals that answer to noise: large as long as the errors so far were on one side, gone once they are not."""
    S, Λ = np.zeros(runs), np.zeros(runs)
    for _ in range(steps):
        λ = 60.0 * (d >= S - Λ)
        signal = np.zeros((runs, d))
        signal[:, 0] = λ**0.5
        S += ((signal + rng.standard_normal((runs, d))) ** 2).sum(1)
        Λ += λ
    return S, Λ


def test_over_steps_the_interval_survives_feedback():
    """Coverage >= 95 % under feedback; three times the energy is rejected, the width < 1.6 times the exact one."""
    steps, d, runs = 12, 2, 4000
    S, Λ = feedback_runs(runs, steps, d, np.random.default_rng(0))
    found = signal_energy_over_steps(S, d, steps)
    assert np.mean((found.low <= Λ) & (found.high >= Λ)) >= 0.95 - 3 * (0.05 * 0.95 / runs) ** 0.5
    assert np.mean((found.low <= 3 * Λ) & (found.high >= 3 * Λ)) < 0.3
    wide = signal_energy_over_steps(20 * 100_000.0, 100_000, 20)
    exact = signal_energy(np.full(2_000_000, 1.0), 1.0)
    assert 1.0 <= wide.high / exact.high < 1.6


@given(st.floats(0.0, 1e6), st.integers(1, 10**6), st.integers(1, 1000), st.sampled_from([0.01, 0.05, 0.3]))
def test_over_steps_is_never_narrower_than_the_exact_interval(excess, d, steps, failure):
    S = d * steps + excess
    found = signal_energy_over_steps(S, d, steps, failure=failure)
    low, high = _exact_interval(np.array([S]), np.array([float(d * steps)]), failure)
    assert found.low <= low[0] * (1 + 1e-6) + 1e-6
    assert found.high >= high[0] * (1 - 1e-6)


@pytest.mark.parametrize("failure", [0.3, 0.05, 1e-6])
def test_over_steps_each_side_has_half_of_the_failure(failure):
    """(T1) over steps, literally, with x = log(2/failure) on either side."""
    S, D, x = 1500.0, 1000.0, math.log(2.0 / failure)
    u, v = math.sqrt(x) / (math.sqrt(D) + 2.0 * math.sqrt(x)), math.sqrt(x / D)
    low = (1.0 - 2.0 * u) * (S + D * math.log(1.0 - 2.0 * u) / (2.0 * u) - x / u)
    high = (1.0 + 2.0 * v) * (S - D * math.log(1.0 + 2.0 * v) / (2.0 * v) + x / v)
    found = signal_energy_over_steps(S, 100, 10, failure=failure)
    assert (found.low, found.high) == pytest.approx((max(low, 0.0), high), rel=1e-9)
