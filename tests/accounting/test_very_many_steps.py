"""Very many steps: both ends hold the truth, an inverted Laplace transform, and are answered soon."""

from __future__ import annotations

import math
import time

import mpmath as mp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dprmt.accounting import DPSGD, compose
from dprmt.accounting.pairs._pairs import interval_masses

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
def test_both_directions_hold_the_truth(sigma, rate, steps):
    start = time.process_time()
    found = compose([(DPSGD(sigma, rate), steps)]).epsilon_by_direction(1e-5)
    assert time.process_time() - start < 2.0
    for direction, bounds in found.items():
        ends = [log_delta(sigma, rate, steps, end, direction) for end in (bounds.lower, bounds.upper)]
        assert ends[1] <= math.log(1e-5) <= ends[0]


def test_delta_after_very_many_steps():
    bounds = DPSGD(1.0, 1e-3).delta(steps=3 * 10**8, epsilon=353.0)
    truth = math.exp(log_delta(1.0, 1e-3, 3 * 10**8, 353.0, "remove"))
    assert bounds.lower <= truth <= bounds.upper


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
