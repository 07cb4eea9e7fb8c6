"""The noise of a momentum: against the sum over weights, at 50 digits, and in simulation."""

from __future__ import annotations

import math

import mpmath as mp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dprmt.spectra import momentum_noise_scale

DECAYS = st.one_of(st.floats(0.0, 0.9999), st.floats(1e-12, 1e-3).map(lambda x: 1 - x))


@given(DECAYS, st.integers(1, 60))
def test_equals_the_sum_over_weights(decay, step):
    """σ̄_t² = Σ_k w_k² for the weights w_k = (1-β)β^k/(1-β^t) of the bias-corrected average."""
    with mp.workdps(50):
        β = mp.mpf(decay)
        weights = [(1 - β) * β**k for k in range(step)]
        exact = mp.sqrt(sum(w * w for w in weights)) / sum(weights)
    assert momentum_noise_scale(decay, step) == pytest.approx(float(exact), rel=1e-12)


@given(DECAYS, st.integers(1, 10**6))
def test_falls_from_one_to_its_limit(decay, step):
    scale = momentum_noise_scale(decay, step)
    assert math.sqrt((1 - decay) / (1 + decay)) * (1 - 1e-12) <= scale <= 1 + 1e-12
    assert momentum_noise_scale(decay, 2 * step) <= scale * (1 + 1e-12)
    assert momentum_noise_scale(0.9, 10**4) == pytest.approx(19**-0.5, rel=1e-12)


@pytest.mark.parametrize(("decay", "step"), [(0.9, 1), (0.9, 5), (0.5, 3), (0.99, 40)])
def test_describes_a_simulated_momentum(decay, step):
    """The standard deviation over 40,000 entries, within 4 standard errors; not the limit's, nor without correction."""
    noise = np.random.default_rng(1).standard_normal((step, 40_000))
    m = np.zeros(40_000)
    for ξ in noise:
        m = decay * m + (1 - decay) * ξ
    measured, error = (m / (1 - decay**step)).std(), 1 / math.sqrt(2 * 40_000)
    stated = momentum_noise_scale(decay, step)
    assert abs(measured / stated - 1) < 4 * error
    assert abs(measured / math.sqrt((1 - decay) / (1 + decay)) - 1) > 4 * error
    assert abs(m.std() / stated - 1) > 4 * error
