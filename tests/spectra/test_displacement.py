"""T5: noise level and spikes of a displacement, and when they can be seen."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dprmt.spectra import DisplacementNoise, detection_threshold, displacement_spectrum, steps_until_visible

steps = st.lists(st.tuples(st.floats(0.0, 2.0), st.floats(0.0, 3.0), st.floats(0.0, 0.99)), min_size=1, max_size=12)


@given(steps, st.floats(0.1, 1.0))
def test_the_noise_of_a_displacement_is_that_of_its_weights(settings, weight):
    """√Σ(c_r s_r)², with c_r found by letting each step's unit impulse through the optimizer."""
    noise = DisplacementNoise()
    for rate, sigma, momentum in settings:
        noise.add(rate, sigma, momentum=momentum, weight=weight)
    total = 0.0
    for r in range(len(settings)):
        b = w = 0.0
        for t, (rate, _, momentum) in enumerate(settings):
            b = momentum * b + (weight if t == r else 0.0)
            w -= rate * b
        total += (w * settings[r][1]) ** 2
    assert noise.sigma == pytest.approx(total**0.5, rel=1e-9, abs=1e-12)
    again = DisplacementNoise(noise.state)
    again.add(0.1, 1.0, momentum=0.9)
    noise.add(0.1, 1.0, momentum=0.9)
    assert again.sigma == noise.sigma


def test_constant_steps_have_the_closed_form():
    """α s √(Σ_r ((1-β^{t-r+1})/(1-β))²), as printed on the theory page."""
    noise, β, t = DisplacementNoise(), 0.9, 30
    for _ in range(t):
        noise.add(0.2, 1.5, momentum=β)
    closed = 0.2 * 1.5 * sum(((1 - β ** (t - r + 1)) / (1 - β)) ** 2 for r in range(1, t + 1)) ** 0.5
    assert noise.sigma == pytest.approx(closed, rel=1e-12)


def test_pure_noise_shows_a_spike_as_often_as_stated():
    """At false_alarm = 0.1, 10 ± 3 % of 600 white matrices, with the level known; not with one 5 % off."""
    rng = np.random.default_rng(0)
    draws = rng.standard_normal((600, 24, 60))
    seen = np.mean([displacement_spectrum(draw, 1.0, false_alarm=0.1).spikes > 0 for draw in draws])
    wrong = np.mean([displacement_spectrum(draw, 0.95, false_alarm=0.1).spikes > 0 for draw in draws])
    assert abs(seen - 0.1) < 0.035
    assert wrong > 0.3


def test_a_spike_is_counted_and_its_share_is_that_of_the_signal():
    rng = np.random.default_rng(1)
    signal = 45.0 * np.outer(np.eye(80)[0], np.ones(200) / 200**0.5)
    noise = rng.standard_normal((80, 200))
    truth = 45.0**2 / ((signal + noise) ** 2).sum()
    for given_sigma in (1.0, None):
        found = displacement_spectrum(signal + noise, given_sigma)
        assert found.spikes == 1
        assert found.sigma == pytest.approx(1.0, rel=0.03)
        assert found.share == pytest.approx(truth, rel=0.1)
        assert displacement_spectrum(torch.tensor(noise), given_sigma).spikes == 0
    assert displacement_spectrum((signal + noise).T, 1.0).top_over_edge == pytest.approx(
        displacement_spectrum(torch.tensor(signal + noise), 1.0).top_over_edge
    )


@given(st.floats(1e-3, 1e3), st.integers(0, 1000))
def test_scale_rotation_and_type_do_not_matter(scale, seed):
    rng = np.random.default_rng(seed)
    matrix = rng.standard_normal((6, 9)) + 3 * np.outer(np.ones(6), np.ones(9))
    Q = np.linalg.qr(rng.standard_normal((6, 6)))[0]
    for sigma in (1.0, None):
        one = displacement_spectrum(matrix, sigma)
        others = [displacement_spectrum(scale * Q @ matrix, None if sigma is None else scale * sigma)]
        others.append(displacement_spectrum(torch.tensor(matrix), sigma))
        for other in others:
            assert (other.top_over_edge, other.spikes) == (pytest.approx(one.top_over_edge), one.spikes)
            assert other.share == pytest.approx(one.share)
        assert others[0].sigma == pytest.approx(scale * one.sigma)


@pytest.mark.parametrize("shape", [(60, 60), (40, 160)])
def test_the_transition_in_time(shape):
    """A steady λ of rank one: the first spike comes between 0.6 and 1.5 times the predicted number of steps, in the
    median over 15 runs; half the signal takes four times as long.
    """
    rng, strength = np.random.default_rng(2), 2.0
    λ = strength * detection_threshold(shape, 1.0) / 10
    predicted = steps_until_visible(λ, shape, 1.0, false_alarm=0.01)
    assert steps_until_visible(λ / 2, shape, 1.0, false_alarm=0.01) == pytest.approx(4 * predicted)
    assert steps_until_visible(λ, shape, 1.0) == pytest.approx((shape[0] * shape[1]) ** 0.5 / λ**2)
    signal = λ * np.outer(np.ones(shape[0]), np.ones(shape[1])) / (shape[0] * shape[1]) ** 0.5
    first = []
    for _ in range(15):
        whole, t = np.zeros(shape), 0
        while displacement_spectrum(whole, t**0.5).spikes == 0 or t == 0:
            whole, t = whole + signal + rng.standard_normal(shape), t + 1
        first.append(t)
    assert 0.6 < np.median(first) / predicted < 1.5


def test_nothing_moved():
    found = displacement_spectrum(np.zeros((4, 5)), 1.0)
    assert (found.spikes, found.top_over_edge, found.share) == (0, 0.0, 0.0)
    assert displacement_spectrum(np.zeros((4, 5))).spikes == 0
