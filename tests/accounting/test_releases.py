"""Releases beside training, their conversions, and what an attacker can do with a run: against closed forms."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
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
    GaussianDPRelease,
    GaussianRelease,
    Group,
    LaplaceRelease,
    Poisson,
    RandomAllocation,
    Release,
    RenyiRelease,
    ReplaceOne,
    ZCDPRelease,
    calibrate,
    compose,
    parallel,
)

from .oracles.gaussian import gaussian_delta

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
    assert run.epsilon(1e-5) == DPSGD(3.0, 1.0).epsilon(steps=9, delta=1e-5)


def test_releases_stand_beside_any_run_and_any_neighbours() -> None:
    alone = DPSGD(1.0, Q).epsilon(steps=400, delta=1e-5)
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
    inside(run.advantage(steps=400), 0.28902, 1e-3)
    power = run.true_positive_rate(steps=400, false_positive_rate=0.01)
    assert power.lower - 3e-5 <= 1 - 0.93671 <= power.upper
    inside(run.true_positive_rate(steps=400, false_positive_rate=0.1), 1 - 0.69672, 1e-3)
    mu = run.gdp_mu(steps=400, least_delta=1e-5)
    assert 0.87 < mu.lower < mu.upper < 0.9
    epsilon = run.epsilon(steps=400, delta=1e-4)
    at_mu = compose([GaussianRelease(1 / mu.upper)]).epsilon(1e-4)
    assert at_mu.upper >= epsilon.lower


def test_a_smaller_mu_would_be_false() -> None:
    """Five per cent less, and some δ of the run exceeds the Gaussian one's."""
    run = compose([(DPSGD(1.0, Q), 400)])
    mu = 0.95 * run.gdp_mu(least_delta=1e-5).lower
    epsilon = np.linspace(0.0, 3.5, 30)
    own = run.delta(epsilon.tolist()).lower
    assert np.any(own > gaussian_delta(epsilon, mu))


@pytest.mark.parametrize(
    ("phases", "epsilon", "delta"),
    [
        ([(ApproximateRelease(0.0, 1e-7), 10)], 0.0, -math.expm1(10 * math.log1p(-1e-7))),
        ([ApproximateRelease(1.0, 1e-6)], 1.0, 1e-6),
        ([ApproximateRelease(1.0, 1e-6)], 7.0, 1e-6),
        ([LaplaceRelease(2.0), ApproximateRelease(0.25, 1e-9)], 0.75, 1e-9),
        ([(ApproximateRelease(0.0, 1e-7), 10**6)], 0.5, -math.expm1(1e6 * math.log1p(-1e-7))),
    ],
)
def test_what_is_disclosed_comes_out_as_it_was_put_in(phases: Any, epsilon: float, delta: float) -> None:
    inside(compose(phases).delta(epsilon), delta, 1e-12)
    inside(compose(phases).delta([epsilon])[0], delta, 1e-12)


def test_pure_privacy_is_never_above_its_plain_sum() -> None:
    """Of Laplace and randomized response: at every δ, and exactly at δ = 0."""
    run = compose([(LaplaceRelease(2.0), 3), ApproximateRelease(0.25, 0.0)])
    assert tuple(run.epsilon(0.0)) == (1.75, 1.75, 1.75)
    assert run.epsilon(1e-290).upper <= 1.75
    assert run.epsilon(1e-9).upper <= 1.75
    assert run.delta(1.75).upper == 0.0
    two = compose([ApproximateRelease(1.0, 0.1), ApproximateRelease(2.0, 0.2)])
    assert two.epsilon(0.28).upper == 3.0  # .28 as a float is a little more than what is disclosed
    assert two.epsilon(0.2799).upper == two.epsilon(0.2799).lower == math.inf
    with pytest.raises(ParameterError, match=r"delta must be a finite number in \[1e-290, 1\), got 0"):
        compose([LaplaceRelease(2.0), GaussianRelease(2.0)]).epsilon(0.0)


@pytest.mark.parametrize(
    ("phases", "delta", "epsilon"),
    [
        ([(LaplaceRelease(0.05), 3)], 1e-5, 60.0),
        ([(LaplaceRelease(0.2), 3)], 1e-5, 15.0),
        ([(ApproximateRelease(0.5, 0.0), 3)], 1e-9, 1.5),
    ],
)
def test_a_large_loss_of_sizeable_mass_has_an_end_from_below(phases: Any, delta: float, epsilon: float) -> None:
    """Almost the plain sum; at a tilt that suits the loss itself, errors a node below it hid it: from below 0."""
    found = compose(phases).epsilon(delta)
    assert epsilon * (1 - 1e-3) <= found.lower <= found.upper == epsilon
    assert found.is_narrow


def test_disclosure_in_a_trade_off_function() -> None:
    """With probability d told apart for certain; else randomized response, β = 1 - e^ε α down to the diagonal."""
    d, epsilon, alpha = 0.1, 1.0, np.array([0.0, 0.1, 0.5, 0.95, 1.0])
    inner = np.minimum(alpha / (1 - d), 1.0)
    exact = (1 - d) * np.maximum(0.0, np.maximum(1 - math.exp(epsilon) * inner, math.exp(-epsilon) * (1 - inner)))
    band = compose([ApproximateRelease(epsilon, d)]).trade_off(alpha)
    assert np.all(band.lower <= exact + 1e-12)
    assert np.all(exact <= band.upper + 1e-12)
    assert np.all(band.upper - band.lower < 5e-3)
    assert compose([ApproximateRelease(0.0, d)]).trade_off([0.0, 0.45]).lower == pytest.approx([0.9, 0.45])


def test_before_the_first_step_nothing_is_spent() -> None:
    mechanism = DPSGD(1.0, 0.01)
    assert tuple(mechanism.epsilon(steps=0, delta=1e-5)) == tuple(mechanism.delta(steps=0, epsilon=0.0)) == (0, 0, 0)
    assert tuple(DPSGD(1.0, RandomAllocation(10)).epsilon(epochs=0, delta=1e-5)) == (0, 0, 0)
    assert mechanism.trade_off(steps=0, alpha=[0.25]).lower == [0.75]
    assert compose([(mechanism, 0), (DPSGD(2.0, 0.01), 9)]) == compose([(DPSGD(2.0, 0.01), 9)])


def test_the_safe_end_of_an_error_is_the_lower_one() -> None:
    run = compose([(DPSGD(1.0, Q), 400)])
    risk = run.bayes_risk()
    assert float(risk) == risk.lower
    assert f"{risk:.2f}" == "0.35"  # .3554…, which .36 would hide
    assert float(run.advantage()) == run.advantage().upper


def test_two_relations_that_are_the_same_name_no_direction() -> None:
    run = DPSGD(1.0, 0.03, neighbours=ReplaceOne())
    for bounds in (run.epsilon(steps=10, delta=1e-5), run.epsilon(steps=[10, 20], delta=1e-5)[1]):
        assert bounds.direction is None
        assert "a sample decides" not in str(bounds)
    both = run.epsilon_by_direction(steps=10, delta=1e-5)
    assert both["remove"] == both["add"]


def test_disjoint_parts_cost_as_much_as_the_dearest() -> None:
    one, other = compose([(DPSGD(1.0, 0.01), 1000)]), compose([(DPSGD(0.8, 0.001), 10)])
    run = parallel(one, other)
    assert run.epsilon(1e-5).upper == one.epsilon(1e-5).upper
    assert run.epsilon(1e-12).upper == max(one.epsilon(1e-12).upper, other.epsilon(1e-12).upper)
    alpha = [0.0, 1e-6, 0.1]
    each = [part.trade_off(alpha).lower for part in (one, other)]
    assert run.trade_off(alpha).lower.tolist() == np.minimum(*each).tolist()
    assert run.delta([1.0])[0].upper == max(part.delta([1.0])[0].upper for part in (one, other))
    for relation in (ReplaceOne(), Group(2)):
        with pytest.raises(ParameterError, match="runs must be for the same neighbours, ZeroOut"):
            parallel(compose([(DPSGD(1.0, 0.01, neighbours=relation), 9)]))


@pytest.mark.parametrize("sampling", [RandomAllocation(100), Poisson(0.5)])
@pytest.mark.parametrize("direction", ["remove", "add"])
def test_steps_without_sampling_beside_others_are_answered(sampling, direction: str) -> None:
    """Losses of a Gaussian mechanism have no lower end (O1): no more than both apart."""
    alone = DPSGD(3.0, sampling)
    both = compose([(alone, 100), GaussianRelease(2.0)]).epsilon_by_direction(1e-5)[direction]
    assert both.is_narrow
    assert compose([GaussianRelease(2.0)]).epsilon(1e-5).lower <= both.upper
    apart = alone.epsilon(steps=100, delta=5e-6).upper + compose([GaussianRelease(2.0)]).epsilon(5e-6).upper
    assert both.lower <= apart


def test_calibration_of_full_batches_at_a_large_delta_is_answered() -> None:
    noise = calibrate(DPSGD(1.0, 1.0), steps=25, target_epsilon=1, delta=0.78760074)
    assert noise.epsilon(steps=25, delta=0.78760074).upper <= 1.0


ORDERS = (1.5, 2.0, 3.0, 5.0, 8.0, 13.0, 21.0, 34.0)
EPSILONS = [0.0, 0.1, 0.5, 1.0, 3.0]


@pytest.mark.parametrize("mu", [0.2, 1.0, 2.5])
def test_what_a_gaussian_is_known_by_never_costs_less_than_it(mu: float) -> None:
    """N(μ, 1) against N(0, 1) is μ-GDP, μ²/2-zCDP, and has divergences αμ²/2."""
    known: list[Release] = [GaussianDPRelease(mu), ZCDPRelease(mu**2 / 2)]
    known.append(RenyiRelease(ORDERS, tuple(order * mu**2 / 2 for order in ORDERS)))
    for release in known:
        run = compose([release])
        for epsilon in EPSILONS:
            truth = gaussian_delta(epsilon, mu)
            found = run.delta(epsilon)
            assert found.lower == 0.0
            assert truth <= found.upper <= 1.0
        assert run.advantage().upper < 1.0


def test_conversions_are_as_tight_as_their_formulas() -> None:
    """Of the Gaussian's trade-off itself; and the minimum over orders at an ε where that minimum is convex."""
    assert compose([GaussianDPRelease(1.0)]).epsilon(1e-5).upper == pytest.approx(
        compose([GaussianRelease(1.0)]).epsilon(1e-5).upper, rel=1e-3
    )
    rho, epsilon = 0.1, 1.9142394
    orders = 1.0 + np.geomspace(1e-3, 1e4, 20_000)
    logs = (orders - 1) * (rho * orders - epsilon) + (orders - 1) * np.log1p(-1 / orders) - np.log(orders)
    delta = math.exp(logs.min())
    assert delta <= compose([ZCDPRelease(rho)]).delta(epsilon).upper <= 1.003 * delta


def test_total_variation_follows_from_a_chord() -> None:
    """At ε = 0 the bound by divergences alone is worse than (e^ε - 1 + 2δ)/(e^ε + 1) at some other ε."""
    run = compose([RenyiRelease((64.0,), (0.1,))])
    for epsilon in (0.2, 0.3, 0.5):
        delta = math.exp(63 * (0.1 - epsilon)) * (63 / 64) ** 63 / 64
        assert run.advantage().upper <= (math.expm1(epsilon) + 2 * delta) / (math.exp(epsilon) + 1) + 1e-6


def test_divergences_add_up_before_they_are_converted() -> None:
    ten = compose([(ZCDPRelease(0.01), 10)]).epsilon(1e-5).upper
    assert ten == pytest.approx(compose([ZCDPRelease(0.1)]).epsilon(1e-5).upper, rel=1e-9)
    values = tuple(0.05 * order for order in ORDERS)
    mixed = compose([ZCDPRelease(0.05), RenyiRelease(ORDERS, values)]).epsilon(1e-5).upper
    assert ten <= mixed < 1.03 * ten
    one, other = RenyiRelease((2.0, 4.0), (0.1, 0.2)), RenyiRelease((3.0, 8.0), (0.15, 0.4))
    # At orders 2, 3, 4 the value of the next order that is known; none at 8, where the first knows nothing.
    together = RenyiRelease((2.0, 3.0, 4.0), (0.1 + 0.15, 0.2 + 0.15, 0.2 + 0.4))
    assert compose([one, other]).delta(1.0).upper == pytest.approx(compose([together]).delta(1.0).upper, rel=1e-9)


def test_a_conversion_beside_training_leaves_its_lower_end() -> None:
    training = (DPSGD(1.0, 0.01), 1000)
    alone, both = compose([training]).epsilon(1e-5), compose([training, ZCDPRelease(0.02)]).epsilon(1e-5)
    true = compose([training, GaussianRelease(5.0)]).epsilon(1e-5)
    assert alone.lower * 0.999 <= both.lower <= alone.upper
    assert true.upper < both.upper < 1.35 * true.upper


def test_sampled_laplace_noise_is_its_densities() -> None:
    """One step in both directions by quadrature, and many against another package."""
    rate, scale = 0.2, 0.7
    x = np.linspace(-30.0, 31.0, 610_001)
    q = np.exp(-np.abs(x) / scale) / (2 * scale) * (x[1] - x[0])
    p = (1 - rate) * q + rate * np.exp(-np.abs(x - 1) / scale) / (2 * scale) * (x[1] - x[0])
    found = {epsilon: compose([LaplaceRelease(scale, rate)]).delta_by_direction(epsilon) for epsilon in (0.05, 0.2)}
    for epsilon, by_direction in found.items():
        for direction, (one, other) in {"remove": (p, q), "add": (q, p)}.items():
            truth = float(np.maximum(one - math.exp(epsilon) * other, 0.0).sum())
            bounds = by_direction[direction]  # type: ignore[index]
            assert bounds.lower - 1e-7 <= truth <= bounds.upper + 1e-7
            assert bounds.upper - bounds.lower <= 0.011 * truth + 1e-9
    distributions = pytest.importorskip("dp_accounting.pld.privacy_loss_distribution")
    pld = distributions.from_laplace_mechanism(1.0, sampling_prob=0.01, value_discretization_interval=1e-4)
    run = compose([(LaplaceRelease(1.0, rate=0.01), 500)]).epsilon(1e-5)
    assert run.lower <= pld.self_compose(500).get_epsilon_for_delta(1e-5) <= run.upper * 1.001
    assert run.upper < 1.002 * run.lower


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: RenyiRelease((2.0, 2.0), (0.1, 0.2)), "increasing orders"),
        (lambda: RenyiRelease((2.0,), (0.1, 0.2)), "as many as values"),
        (lambda: RenyiRelease((1.0,), (0.1,)), r"orders must be a finite number in \(1"),
        (lambda: RenyiRelease("2", (0.1,)), "a sequence of numbers"),  # type: ignore[arg-type]
        (
            lambda: compose([(DPSGD(1.0, 0.1, neighbours=ReplaceOne()), 1), LaplaceRelease(1.0, 0.1)]),
            "sampled releases",
        ),
    ],
)
def test_what_is_no_release_raises_an_error(make: Callable[[], object], message: str) -> None:
    with pytest.raises(ParameterError, match=message):
        make()
