"""What is released beside training, and what an attacker can do with a whole run: against closed forms."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import ndtr
from scipy.stats import binom

from dprmt import ParameterError
from dprmt.accounting import (
    DPSGD,
    ApproximateRelease,
    FixedOrder,
    GaussianRelease,
    Group,
    LaplaceRelease,
    Poisson,
    RandomAllocation,
    ReplaceOne,
    calibrate,
    compose,
    gdp_epsilon,
)

Q = 2000 / 67349


def inside(bounds: Any, value: float, width: float = 1e-2) -> None:
    lower, _, upper = bounds
    assert lower * (1 - 1e-9) <= value <= upper * (1 + 1e-9)
    assert upper - lower <= width * max(abs(value), 1e-12)


@settings(deadline=None, max_examples=20)
@given(scale=st.floats(0.1, 10.0), share=st.floats(0.01, 0.95))
def test_one_laplace_release(scale: float, share: float) -> None:
    epsilon = share / scale
    inside(compose([LaplaceRelease(scale)]).delta(epsilon), -math.expm1((epsilon - 1.0 / scale) / 2))


def test_laplace_releases_compose_as_drawn_ones() -> None:
    """The composed loss of eight, by a histogram of its exact law on a fine grid."""
    scale, times, epsilon = 4.0, 8, 0.7
    mesh, most = 1e-4, 1.0 / scale
    grid = np.arange(-round(most / mesh), round(most / mesh) + 1) * mesh
    mass = np.exp(-(most - grid) / 2) / 4 * mesh
    mass[0], mass[-1] = mass[0] / 2 + math.exp(-most) / 2, mass[-1] / 2 + 0.5
    mass /= mass.sum()
    size = 2 ** math.ceil(math.log2(times * grid.size))
    composed = np.fft.irfft(np.fft.rfft(mass, size) ** times, size)
    losses = times * grid[0] + np.arange(size) * mesh
    exact = float(composed @ np.maximum(-np.expm1(epsilon - losses), 0.0))
    inside(compose([(LaplaceRelease(scale), times)]).delta(epsilon), exact, 0.02)


@pytest.mark.parametrize(("epsilon", "delta", "times"), [(0.1, 1e-8, 30), (1.0, 1e-4, 5), (0.5, 0.0, 12)])
def test_approximate_releases_compose_as_kairouz_oh_and_viswanath_say(epsilon: float, delta: float, times: int) -> None:
    run = compose([(ApproximateRelease(epsilon, delta), times)])
    for at in (0.0, epsilon, 2.5 * epsilon):
        ones = np.arange(times + 1)
        losses = (2 * ones - times) * epsilon
        mass = binom.pmf(ones, times, 1 / (1 + math.exp(-epsilon)))
        finite = float(mass @ np.maximum(-np.expm1(at - losses), 0.0))
        inside(run.delta(at), 1 - (1 - delta) ** times * (1 - finite), 0.03)


def test_a_gaussian_release_is_a_step_without_sampling() -> None:
    run = compose([(GaussianRelease(3.0), 9)])
    assert run.epsilon(1e-5) == DPSGD(3.0, 1.0).epsilon(9, 1e-5)


def test_releases_stand_beside_any_run_and_any_neighbours() -> None:
    alone = DPSGD(1.0, Q).epsilon(400, 1e-5)
    scored = compose([(DPSGD(1.0, Q), 400), LaplaceRelease(20.0)]).epsilon(1e-5)
    assert alone.upper < scored.upper < alone.upper + 1 / 20
    replaced = compose([(DPSGD(1.0, Q, neighbours=ReplaceOne()), 400), GaussianRelease(10.0)])
    assert replaced.neighbours == ReplaceOne()
    assert 5.82 < replaced.epsilon(1e-5).lower < 5.87
    allocated = compose([(DPSGD(1.0, RandomAllocation(10), neighbours=Group(2)), 10), GaussianRelease(10.0)])
    assert math.isfinite(allocated.epsilon(1e-5).upper)


@pytest.mark.parametrize("prior", [0.05, 0.5, 0.8])
@pytest.mark.parametrize(("epsilon", "delta"), [(0.0, 0.3), (1.0, 0.0), (2.0, 0.05)])
def test_the_best_attacker_of_four_outcomes(epsilon: float, delta: float, prior: float) -> None:
    """Of randomized response with disclosure every test can be counted."""
    high, low = (1 - delta) / (1 + math.exp(-epsilon)), (1 - delta) / (1 + math.exp(epsilon))
    present, absent = np.array([delta, high, low, 0.0]), np.array([0.0, low, high, delta])
    sets = [np.array(chosen) for chosen in itertools.product([False, True], repeat=4)]
    gain = max(float(present[chosen].sum() - absent[chosen].sum()) for chosen in sets)
    risk = min(float(prior * present[~chosen].sum() + (1 - prior) * absent[chosen].sum()) for chosen in sets)
    run = compose([ApproximateRelease(epsilon, delta)])
    inside(run.advantage(), gain)
    inside(run.bayes_risk(prior), risk)


def test_numbers_of_a_gaussian_run() -> None:
    """Advantage, power, risk and μ of N(μ, 1) against N(0, 1)."""
    run = compose([GaussianRelease(0.8)])
    mu = 1 / 0.8
    inside(run.advantage(), float(2 * ndtr(mu / 2) - 1), 1e-3)
    inside(run.bayes_risk(), float(ndtr(-mu / 2)), 1e-3)
    inside(run.true_positive_rate(0.05), float(ndtr(mu - 1.6448536269514722)), 1e-3)
    inside(run.gdp_mu(least_delta=1e-8), mu, 5e-3)


def test_numbers_of_a_sampled_run_are_those_of_another_package() -> None:
    """riskcal: advantage .28902, β(.01) = .93671 (2e-5 above ours), β(.1) = .69672."""
    run = DPSGD(1.0, Q)
    inside(run.advantage(400), 0.28902, 1e-3)
    power = run.true_positive_rate(400, 0.01)
    assert power.lower - 3e-5 <= 1 - 0.93671 <= power.upper
    inside(run.true_positive_rate(400, 0.1), 1 - 0.69672, 1e-3)
    mu = run.gdp_mu(400, least_delta=1e-5)
    assert 0.87 < mu.lower < mu.upper < 0.9
    epsilon = run.epsilon(400, 1e-4)
    at_mu = compose([GaussianRelease(1 / mu.upper)]).epsilon(1e-4)
    assert at_mu.upper >= epsilon.lower


def test_a_smaller_mu_would_be_false() -> None:
    """Five per cent less, and some δ of the run exceeds the Gaussian one's."""
    run = compose([(DPSGD(1.0, Q), 400)])
    mu = 0.95 * run.gdp_mu(least_delta=1e-5).lower
    epsilon = np.linspace(0.0, 3.5, 30)
    own = run.delta(epsilon.tolist()).lower
    gaussian = ndtr(mu / 2 - epsilon / mu) - np.exp(epsilon) * ndtr(-mu / 2 - epsilon / mu)
    assert np.any(own > gaussian)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: GaussianRelease(0.0), "noise_multiplier"),
        (lambda: LaplaceRelease(-1.0), "scale"),
        (lambda: ApproximateRelease(-0.1, 0.0), "epsilon"),
        (lambda: ApproximateRelease(0.1, 1.0), "delta"),
        (lambda: compose([GaussianRelease(1.0), 3]), "phases"),  # type: ignore[list-item]
        (lambda: compose([GaussianRelease(1.0)]).bayes_risk(1.5), r"prior .*\[0"),
        (lambda: compose([GaussianRelease(1.0)]).true_positive_rate(-0.1), "false_positive_rate"),
        (lambda: compose([GaussianRelease(1.0)]).gdp_mu(least_delta=0.0), "least_delta"),
    ],
)
def test_bad_input_is_named(make: Any, message: str) -> None:
    with pytest.raises(ParameterError, match=message):
        make()


@pytest.mark.parametrize(
    ("phases", "delta", "epsilon"),
    [
        ([GaussianRelease(0.5), GaussianRelease(3.0)], 1e-5, 10.1675),
        ([(DPSGD(3.0, FixedOrder()), 10), GaussianRelease(50.0)], 1e-4, 4.0513),
        ([(DPSGD(5.0, 1.0), 1), (DPSGD(0.5, 1.0), 2)], 1e-5, None),
        ([(DPSGD(1.0, FixedOrder()), 2), GaussianRelease(5.0)], 1e-5, None),
    ],
)
def test_gaussian_mechanisms_without_sampling_compose_to_one(phases, delta: float, epsilon: float | None) -> None:
    """An interval around the closed form, as narrow as a single step's."""
    run = compose(phases)
    precision = math.fsum(steps * part.noise_multiplier**-2 for part, steps in run.phases)
    exact = gdp_epsilon(math.sqrt(precision), delta)
    if epsilon is not None:
        assert exact == pytest.approx(epsilon, abs=1e-4)
    for bounds in run.epsilon_by_direction(delta).values():
        assert bounds.lower <= exact <= bounds.upper <= exact * (1.0 + 1e-3)


@pytest.mark.parametrize("sampling", [RandomAllocation(100), Poisson(0.5)])
@pytest.mark.parametrize("direction", ["remove", "add"])
def test_steps_without_sampling_beside_others_are_answered(sampling, direction: str) -> None:
    """Losses of a Gaussian mechanism have no lower end (O1): no more than both apart."""
    alone = DPSGD(3.0, sampling)
    both = compose([(alone, 100), GaussianRelease(2.0)]).epsilon_by_direction(1e-5)[direction]
    assert both.is_narrow
    assert compose([GaussianRelease(2.0)]).epsilon(1e-5).lower <= both.upper
    apart = alone.epsilon(100, 5e-6).upper + compose([GaussianRelease(2.0)]).epsilon(5e-6).upper
    assert both.lower <= apart


def test_calibration_of_full_batches_at_a_large_delta_is_answered() -> None:
    noise = calibrate(DPSGD(1.0, 1.0), steps=25, target_epsilon=1, delta=0.78760074)
    assert noise.epsilon(25, 0.78760074).upper <= 1.0
