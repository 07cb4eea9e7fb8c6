"""T ≥ 10⁸: both ends, both directions, narrow, at once, against an inverted Laplace transform; (F6) piece by piece."""

from __future__ import annotations

import math
import time

import mpmath as mp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dprmt.accounting import DPSGD, compose
from dprmt.accounting.composition import FewFrequencies, TooManyFrequenciesError
from dprmt.accounting.composition import _few_frequencies as few
from dprmt.accounting.composition._long_window import _SAMPLES, low_frequencies, number_that_matters
from dprmt.accounting.pairs import LossPMF
from dprmt.accounting.pairs._cells import interval_masses

from .oracles.inversion import log_delta

SETTINGS = [
    (1.0, 1e-3, 3 * 10**8),
    (1.0, 1e-3, 10**9),
    (0.5, 1e-5, 10**8),
    (2.0, 1e-4, 10**9),
    (10.0, 1e-2, 10**9),
    (0.7, 1e-4, 3 * 10**8),
]
EPS = float(np.finfo(np.float64).eps)


@pytest.mark.parametrize(("sigma", "rate", "steps"), SETTINGS)
def test_both_directions_hold_the_truth_and_are_narrow(sigma, rate, steps):
    start = time.process_time()
    found = compose([(DPSGD(sigma, rate), steps)]).epsilon_by_direction(1e-5)
    assert time.process_time() - start < 2.0
    for direction, bounds in found.items():
        ends = [log_delta(sigma, rate, steps, end, direction) for end in (bounds.lower, bounds.upper)]
        assert ends[1] <= math.log(1e-5) <= ends[0]
        assert bounds.is_narrow
        assert bounds.upper - bounds.lower <= 1e-3 * bounds.upper


def test_delta_after_very_many_steps():
    bounds = DPSGD(1.0, 1e-3).delta(steps=3 * 10**8, epsilon=353.0)
    truth = math.exp(log_delta(1.0, 1e-3, 3 * 10**8, 353.0, "remove"))
    assert bounds.lower <= truth <= bounds.upper <= 1.06 * bounds.lower


@st.composite
def laws(draw) -> tuple[np.ndarray, np.ndarray]:
    """Indices, increasing, and weights of sum 1, some of them tiny, as tilted laws have."""
    size = draw(st.integers(2, 12))
    steps = draw(st.lists(st.integers(1, 40), min_size=size, max_size=size))
    logs = draw(st.lists(st.floats(-20.0, 0.0), min_size=size, max_size=size))
    weights = np.exp(np.array(logs))
    return draw(st.integers(-60, 5)) + np.cumsum(steps), weights / weights.sum()


@given(laws(), st.integers(40, 10**9), st.integers(1, 6))
@settings(max_examples=40)
def test_low_frequencies_are_as_exact_as_they_say(law, size, number):
    index, weights = law
    mp.mp.dps = 40
    found = low_frequencies(index, weights, size, number)
    total = mp.fsum(map(mp.mpf, weights.tolist()))
    for k in range(number):
        exact = mp.fsum(
            mp.mpf(w) / total * mp.expjpi(-2 * mp.mpf(k * (int(i) - found.center)) / size)
            for i, w in zip(index, weights.tolist(), strict=True)
        )
        error = abs(mp.exp(mp.mpc(found.log_transform[k])) - exact)
        assert error <= found.error[k] + 8 * EPS * abs(found.log_transform[k])  # the latter is charged with the power
    assert found.error[0] == 0.0


@pytest.mark.parametrize("seed", range(3))
def test_what_cancels_in_the_mean_is_charged(seed):
    """Of a law without drift z - 1 is of second order, and the roundings of its first order are what is seen."""
    index, mp.mp.dps = np.arange(-1000, 1001), 40
    weights = np.random.default_rng(seed).random(index.size)
    weights /= weights.sum()
    weights[index == 0], moment = 1.0, weights @ index
    weights[index == (-500 if moment > 0 else 500)] += abs(moment) / 500
    weights /= weights.sum()
    found = low_frequencies(index, weights, 10**12, 2)
    total = mp.fsum(map(mp.mpf, weights.tolist()))
    exact = mp.fsum(
        mp.mpf(w) / total * mp.expjpi(-2 * mp.mpf(int(i) - found.center) / 10**12)
        for i, w in zip(index, weights.tolist(), strict=True)
    )
    error = abs(mp.exp(mp.mpc(found.log_transform[1])) - exact)
    assert 8 * EPS * abs(found.log_transform[1]) < error <= found.error[1]


def test_a_transform_that_is_small_at_the_samples_alone_is_not_taken_to_be_small():
    """As many equally likely losses as there are samples: the transform is 0 at each of them, and not between."""
    law = np.arange(_SAMPLES), np.full(_SAMPLES, 1.0 / _SAMPLES)
    size, log_least = 4 * _SAMPLES, -2.0
    modulus = np.abs(np.fft.rfft(law[1], size))
    assert np.all(modulus[4::4] < 1e-9)
    number = number_that_matters(*law, size, log_least)
    assert np.all(modulus[min(number, modulus.size) :] <= math.exp(log_least))


@given(laws(), st.integers(64, 5000), st.floats(-3.0, -1e-4))
@settings(max_examples=60)
def test_all_frequencies_that_are_left_out_are_small(law, size, log_least):
    index, weights = law
    number = number_that_matters(index, weights, size, log_least)
    rest = np.arange(min(number, size), size // 2 + 1)
    modulus = np.abs(np.exp(-2j * np.pi * np.outer(rest, index) / size) @ weights)
    assert np.all(modulus <= math.exp(log_least) * (1 + 1e-12))


def test_little_more_than_what_matters_is_kept():
    """Of a normal law: π/2 times as many as exceed the threshold, where the samples do not tell it."""
    index = np.arange(-200, 201)
    weights = np.exp(-(index**2) / (2 * 25.0**2))
    weights /= weights.sum()
    log_least, size = -48.0 / 3e8, 10**8
    matters = math.sqrt(-2 * log_least) / 25.0 * size / (2 * math.pi)
    assert matters < number_that_matters(index, weights, size, log_least) < 1.6 * matters + 3


def test_a_coarse_lattice_is_refused():
    """On even numbers the transform is ±1 again at the highest frequency: nothing may be left out."""
    index, weights = np.array([0, 2, 4, 6]), np.full(4, 0.25)
    assert number_that_matters(index, weights, 10**6, -1e-6) == 10**6
    with pytest.raises(TooManyFrequenciesError):
        FewFrequencies(LossPMF(index * 10**5, weights, 1e-7, 0.0), np.array([1e9]), 0.1)


@pytest.mark.parametrize("upper", [True, False])
@pytest.mark.parametrize("delta", [1e-3, 1e-9])
def test_one_by_one_as_by_transform(monkeypatch, upper, delta):
    index = np.arange(-30, 120)
    mass = np.exp(-(((index - 3) / 12.0) ** 2) / 2) * (1 + 0.2 * np.sin(index))
    law = LossPMF(index, mass / mass.sum(), 1e-3, 0.0)
    steps, tilt = np.array([4e4]), 1.0
    by_transform = FewFrequencies(law, steps, tilt).epsilon_bound(delta, upper)
    monkeypatch.setattr(few, "_MOST_POINTS", 16)
    alone = FewFrequencies(law, steps, tilt)
    assert alone.center != 0
    assert alone.epsilon_bound(delta, upper) == pytest.approx(by_transform, rel=1e-6)


@given(st.floats(-9.0, 9.0), st.floats(1e-6, 2.0))
@settings(max_examples=60)
def test_masses_of_one_step_are_good_to_roundings_of_their_smaller_tail(start, width):
    """What lets the rounding of exact norms' masses be judged by the smaller of both tails."""
    mp.mp.dps = 40
    mass = float(interval_masses(np.array([start, start + width]))[0])
    left, right = mp.mpf(start), mp.mpf(start + width)
    exact = mp.ncdf(right) - mp.ncdf(left)
    smaller = min(mp.ncdf(right), mp.ncdf(-left))  # at and beyond the interval, on either side
    assert abs(mass - exact) <= 64 * EPS * smaller
