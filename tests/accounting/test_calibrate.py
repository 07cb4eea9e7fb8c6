"""Calibration ends on the private side, and close to it."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dprmt._validation import ParameterError
from dprmt.accounting import DPSGD, RandomizedClipping, calibrate_noise_multiplier


@settings(max_examples=8)
@given(st.floats(0.05, 20.0), st.floats(1e-9, 1e-3), st.floats(1e-3, 0.5), st.integers(1, 2000))
def test_exact_norms(target: float, delta: float, rate: float, steps: int) -> None:
    """ε's upper bound meets the target, and 0.5 % less noise certainly misses it."""
    sigma = calibrate_noise_multiplier(target, delta, rate, steps)
    assert DPSGD(sigma, rate).epsilon(steps, delta).upper <= target
    assert DPSGD(sigma / 1.005, rate).epsilon(steps, delta, tolerance=1e-4).lower > target * (1 - 2e-3) - 1e-3


@pytest.mark.parametrize(
    "options",
    [
        {"probes": 32},
        {"probes": 32, "analysis": "envelope"},
        {"probes": 32, "analysis": "envelope", "rank": 4},
        {"probes": 16, "probe_sharing": "sample"},
        {"probes": 16, "probe_sharing": "sample", "analysis": "envelope"},
    ],
)
def test_randomized_clipping(options: dict[str, Any]) -> None:
    sigma = calibrate_noise_multiplier(2.0, 1e-5, 0.02, 300, **options)
    assert RandomizedClipping(sigma, 0.02, **options).epsilon(300, 1e-5).upper <= 2.0
    assert RandomizedClipping(sigma / 1.01, 0.02, **options).epsilon(300, 1e-5).lower > 2.0


@pytest.mark.parametrize(("target", "delta"), [(1e-5, 1e-9), (400.0, 1e-5)])
def test_far_targets(target: float, delta: float) -> None:
    sigma = calibrate_noise_multiplier(target, delta, 0.1, 100)
    assert math.isfinite(sigma)
    assert DPSGD(sigma, 0.1).epsilon(100, delta).upper <= target


@pytest.mark.parametrize(
    ("change", "name"),
    [
        ({"target_epsilon": 0.0}, "target_epsilon"),
        ({"target_epsilon": math.nan}, "target_epsilon"),
        ({"target_epsilon": 1e9}, "target_epsilon"),
        ({"target_epsilon": 1e-12, "delta": 1e-12, "sample_rate": 1.0}, "target_epsilon"),
        ({"delta": 1.0}, "delta"),
        ({"sample_rate": 0.0}, "sample_rate"),
        ({"steps": 2.5}, "steps"),
        ({"probes": 1}, "probes"),
        ({"probes": 8, "rank": 0}, "rank"),
        ({"probes": 8, "analysis": "loose"}, "analysis"),
        ({"probes": 8, "probe_sharing": "nobody"}, "probe_sharing"),
        ({"tolerance": 0.0}, "tolerance"),
    ],
)
def test_bad_or_unreachable_input(change: dict[str, Any], name: str) -> None:
    setting = {"target_epsilon": 1.0, "delta": 1e-5, "sample_rate": 0.01, "steps": 100} | change
    with pytest.raises(ParameterError) as caught:
        calibrate_noise_multiplier(**setting)
    assert caught.value.name == name
