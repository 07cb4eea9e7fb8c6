"""δ far below every truncation, and very many steps: against an inverted Laplace transform, and soon."""

from __future__ import annotations

import math
import time

import mpmath as mp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dprmt.accounting import DPSGD, FixedOrder, Hutchinson, HutchPlusPlus, RandomAllocation, ReplaceOne, compose
from dprmt.accounting.composition._compose import Question
from dprmt.accounting.composition._solve import Level
from dprmt.accounting.laws._laws import RankOneLaw
from dprmt.accounting.pairs._pairs import interval_masses
from dprmt.accounting.pairs._steps import ClippingStep

from .oracles.inversion import chernoff, log_delta

LEAST = 1e-290
GONE = [(100, 800.0), (800, 100.0), (800, 1e17), (100, 1e17)]
FAINT = [
    (1.0, 0.01, 800, 15.0),
    (1.0, 0.01, 800, 30.0),
    (1.0, 0.01, 800, 60.0),
    (1.0, 0.5, 10, 40.0),
    (2.0, 0.9, 1000, 500.0),
    (4.0, 0.01, 10**5, 20.0),
    (0.5, 0.01, 200, 60.0),
]


@pytest.mark.parametrize(("steps", "epsilon"), GONE)
def test_what_floating_point_does_not_hold_is_answered_at_once(steps, epsilon):
    start = time.process_time()
    run = DPSGD(1.0, 0.01)
    bounds = run.delta(steps=steps, epsilon=epsilon)
    assert time.process_time() - start < 3.0
    assert (bounds.lower, bounds.upper) == (0.0, LEAST)
    assert bounds.is_narrow
    if epsilon < 1e3:  # what is answered lies above the truth, and that below what is answered
        assert chernoff(1.0, 0.01, steps, epsilon, "remove")[1] < math.log(LEAST)
    else:
        added = compose([(run, steps)]).delta_by_direction(epsilon)["add"]
        assert (added.lower, added.upper) == (0.0, LEAST)


@pytest.mark.parametrize(("sigma", "rate", "steps", "epsilon"), FAINT)
def test_faint_deltas_are_held_on_both_sides(sigma, rate, steps, epsilon):
    start = time.process_time()
    bounds = compose([(DPSGD(sigma, rate), steps)]).delta_by_direction(epsilon)["remove"]
    assert time.process_time() - start < 3.0
    truth = log_delta(sigma, rate, steps, epsilon, "remove")
    assert math.log(bounds.lower) <= truth + 1e-6
    assert truth <= math.log(bounds.upper) + 1e-6
    assert bounds.upper <= 1.02 * bounds.lower


def test_a_gaussian_by_its_closed_form():
    """Without sampling T steps are one of sensitivity √T/σ."""
    mp.mp.dps = 60
    shift, epsilon = mp.sqrt(30), mp.mpf(140)
    exact = mp.ncdf(shift / 2 - epsilon / shift) - mp.e**epsilon * mp.ncdf(-shift / 2 - epsilon / shift)
    bounds = DPSGD(1.0, 1.0).delta(steps=30, epsilon=140.0)
    assert bounds.lower <= exact <= bounds.upper <= 1.011 * bounds.lower
    assert abs(log_delta(1.0, 1.0, 30, 140.0, "remove") - float(mp.log(exact))) < 1e-7  # so the oracle may be believed


def test_a_delta_beyond_all_losses_is_answered_for_secret_probes():
    """Adding a sample has losses of at most log 2 a step; what is asked beyond them needs no smaller tails."""
    run = DPSGD(2.0, 0.5, Hutchinson(8, secret=True)).run(steps=3)
    assert run.delta_by_direction(7.77)["add"].upper < 1e-30
    assert 6.28 < run.gdp_mu().lower < run.gdp_mu().upper < 6.54


@pytest.mark.parametrize(
    ("mechanism", "steps", "most"),
    [
        pytest.param(DPSGD(1.0, 0.01, Hutchinson(8, secret=False)), 1, 1e-56, id="public probes, one step"),
        pytest.param(DPSGD(1.0, 0.01, Hutchinson(8, secret=False)), 100, 1e-53, id="public probes"),
        pytest.param(DPSGD(1.0, 0.01, Hutchinson(8, secret=True)), 1, 1e-25, id="secret probes, one step"),
        pytest.param(DPSGD(1.0, 0.01, Hutchinson(8, secret=True)), 100, 1e-25, id="secret probes"),
        pytest.param(DPSGD(1.0, 1.0, HutchPlusPlus(8, 8, secret=False)), 1, 1e-40, id="Hutch++, no sampling"),
        pytest.param(DPSGD(1.0, RandomAllocation(10)), 10, 1e-16, id="random allocation"),
        pytest.param(DPSGD(1.0, FixedOrder()), 3, 1e-289, id="fixed order"),
        pytest.param(DPSGD(1.0, 0.01, neighbours=ReplaceOne()), 100, 1e-289, id="replaced"),
    ],
)
def test_an_absurd_epsilon_is_answered_at_once(mechanism, steps, most):
    """No crash and no warning at the largest ε there is; probes have heavy tails, so little of δ is left there."""
    start = time.process_time()
    bounds = mechanism.delta(steps=steps, epsilon=1e17)
    assert time.process_time() - start < 6.0
    assert 0.0 <= bounds.lower <= bounds.upper <= most


def test_from_below_no_rounding_stays_far_out():
    """Large losses so far apart that next to all of a cell lies at its left node: 3e-21 stayed, where δ is 4e-36."""
    run = DPSGD(24.090177108226847, 4.246069174450293e-06, Hutchinson(28, secret=False))
    epsilon, steps = 4.75e-05, 17
    truth = run.delta(steps=steps, epsilon=epsilon)
    assert truth.upper < 5e-36
    step = ClippingStep(run.noise_multiplier, run.sampling.rate, RankOneLaw(28))
    level = Level([(step, steps)], Question(1e-52, epsilon), "remove", 1.0)
    assert level.curve("lower").delta_bounds(epsilon)[0] <= truth.upper


SETTINGS = [(1.0, 1e-3, 3 * 10**8), (1.0, 1e-3, 10**9), (0.5, 1e-5, 10**8)]
SETTINGS += [(2.0, 1e-4, 10**9), (10.0, 1e-2, 10**9), (0.7, 1e-4, 3 * 10**8)]
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
