"""Both ends against closed forms and against one step at 60 digits, by another library."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import mpmath as mp
import pytest

from dprmt_verify._gaussians import exact
from dprmt_verify._run import Phase, Run
from dprmt_verify._table import Direction

EPSILONS = [0.0, 0.01, 0.1, 0.5, 1.0, 2.0, 4.0]


@pytest.fixture(autouse=True)
def sixty_digits() -> Iterator[None]:
    """Other tests of the process set the digits of all."""
    with mp.workdps(60):
        yield


def upper_tail(x: mp.mpf) -> mp.mpf:
    return mp.erfc(x / mp.sqrt(2)) / 2


def gaussian_delta(mu: mp.mpf, epsilon: float) -> mp.mpf:
    """Of N(μ, 1) against N(0, 1), in closed form."""
    return upper_tail(epsilon / mu - mu / 2) - mp.exp(epsilon) * upper_tail(epsilon / mu + mu / 2)


def sampled_delta(sigma: float, rate: float, direction: Direction, epsilon: float) -> mp.mpf:
    """Of one sampled step: from the unsampled one's curve at another ε."""
    q, alpha = mp.mpf(rate), mp.exp(epsilon)
    if direction == "add":
        return 1 - alpha + alpha * sampled_delta_at(sigma, q, 1 / alpha)
    return sampled_delta_at(sigma, q, alpha)


def sampled_delta_at(sigma: float, q: mp.mpf, alpha: mp.mpf) -> mp.mpf:
    """H_α of the sampled Gaussian against the Gaussian, by its threshold."""
    if alpha <= 1 - q:
        return 1 - alpha
    mu = 1 / mp.mpf(sigma)
    x = mp.log((alpha - 1 + q) / q) / mu + mu / 2
    return (1 - q) * upper_tail(x) + q * upper_tail(x - mu) - alpha * upper_tail(x)


def run_of(*phases: Phase, delta: float = 1e-9, cells: int = 10) -> Run:
    return Run(phases, delta, max(EPSILONS), cells)


def sampled(sigma: float, rate: float, steps: int, group: int = 1) -> Phase:
    return Phase(1 if rate == 1 else steps, lambda cut, cells: exact([sigma], rate, group, steps, mirrored=False))


def replaced(sigma: float, rate: float, steps: int) -> Phase:
    return Phase(1 if rate == 1 else steps, lambda cut, cells: exact([sigma], rate, 1, steps, mirrored=True))


def assert_holds(run: Run, direction: Direction, epsilon: float, truth: mp.mpf) -> None:
    """Valid at 30 digits, and tight: a bound that is far from the truth proves nothing of the rest."""
    low, high = (mp.mpf(bound(direction, epsilon).str(40, radius=False)) for bound in (run.below, run.above))
    assert low <= truth + mp.mpf(10) ** -50
    assert truth <= high * (1 + mp.mpf(10) ** -30) + mp.mpf(10) ** -50
    if truth > 1e-4:
        assert high - low < truth / 10


@pytest.mark.parametrize("steps", [1, 49])
@pytest.mark.parametrize("sigma", [0.7, 3.0, 20.0])
def test_without_sampling_the_closed_form_is_between_both_ends(sigma: float, steps: int) -> None:
    run = run_of(sampled(sigma, 1.0, steps))
    for direction in ("remove", "add"):
        for epsilon in EPSILONS:
            assert_holds(run, direction, epsilon, gaussian_delta(mp.sqrt(steps) / mp.mpf(sigma), epsilon))


@pytest.mark.parametrize(("sigma", "rate"), [(0.5, 0.01), (1.0, 0.03), (2.0, 0.5), (0.8, 0.99), (5.0, 0.2)])
def test_one_sampled_step_at_sixty_digits_is_between_both_ends(sigma: float, rate: float) -> None:
    run = run_of(sampled(sigma, rate, 1))
    for direction in ("remove", "add"):
        for epsilon in EPSILONS:
            assert_holds(run, direction, epsilon, sampled_delta(sigma, rate, direction, epsilon))


@pytest.mark.parametrize(("sigma", "rate"), [(0.8, 0.05), (2.0, 0.3)])
def test_two_steps_by_quadrature_are_between_both_ends(sigma: float, rate: float) -> None:
    """δ of two steps is the mean of one step's at e^{ε - L} over the loss L of the other."""
    q, mu = mp.mpf(rate), 1 / mp.mpf(sigma)
    run = run_of(sampled(sigma, rate, 1), sampled(sigma, rate, 1))

    def integrand(x: mp.mpf, alpha: mp.mpf) -> mp.mpf:
        ratio = 1 - q + q * mp.exp(mu * x - mu * mu / 2)
        return ratio * mp.npdf(x) * sampled_delta_at(sigma, q, alpha / ratio)

    with mp.workdps(20):
        for epsilon in (0.1, 1.0):
            truth = mp.quad(partial(integrand, alpha=mp.exp(epsilon)), list(range(-12, 16, 2)))
            low, high = float(run.below("remove", epsilon)), float(run.above("remove", epsilon))
            assert low * (1 - 1e-9) <= truth <= high * (1 + 1e-9)
            assert high - low < 0.05 * truth


def test_phases_of_two_kinds_are_one_run() -> None:
    """Five unsampled steps beside five that release next to nothing: μ = √5."""
    run = run_of(sampled(1.0, 1.0, 5), sampled(1e5, 1e-3, 5))
    for epsilon in EPSILONS:
        assert_holds(run, "remove", epsilon, gaussian_delta(mp.sqrt(5), epsilon))


def test_steps_may_be_cut_into_phases() -> None:
    """The same run told in two ways has bounds that overlap, closely."""
    one, two = run_of(sampled(1.0, 0.03, 400)), run_of(sampled(1.0, 0.03, 137), sampled(1.0, 0.03, 263))
    for direction in ("remove", "add"):
        assert one.below(direction, 1.0) <= two.above(direction, 1.0)
        assert two.below(direction, 1.0) <= one.above(direction, 1.0)
        assert two.above(direction, 1.0) - two.below(direction, 1.0) < 0.05 * float(two.above(direction, 1.0))


def test_replacing_without_sampling_is_twice_the_distance() -> None:
    run = run_of(replaced(2.0, 1.0, 9))
    for epsilon in EPSILONS:
        assert_holds(run, "remove", epsilon, gaussian_delta(mp.mpf(3), epsilon))


@pytest.mark.parametrize(("sigma", "rate"), [(1.0, 0.1), (0.6, 0.5)])
def test_one_replaced_sample_by_the_quadratic_of_its_threshold(sigma: float, rate: float) -> None:
    """Y = e^{x/σ} solves q′y² - (1 - q)(s - 1)y - s q′ = 0, q′ = q e^{-1/2σ²}."""
    run = run_of(replaced(sigma, rate, 1))
    q, mu = mp.mpf(rate), 1 / mp.mpf(sigma)
    for epsilon in EPSILONS:
        s = mp.exp(epsilon)
        b, scaled = (1 - q) * (s - 1), q * mp.exp(-mu * mu / 2)
        x = mp.log((b + mp.sqrt(b * b + 4 * s * scaled**2)) / (2 * scaled)) / mu
        p = (1 - q) * upper_tail(x) + q * upper_tail(x - mu)
        q_mass = (1 - q) * upper_tail(x) + q * upper_tail(x + mu)
        assert_holds(run, "remove", epsilon, p - s * q_mass)


@pytest.mark.parametrize("direction", ["remove", "add"])
@pytest.mark.parametrize("epsilon", [0.0, 0.1, 0.5, 1.0])
def test_one_step_of_a_group_by_its_threshold(direction: Direction, epsilon: float) -> None:
    sigma, rate, group = mp.mpf(2), mp.mpf("0.25"), 3
    weights = [mp.binomial(group, j) * rate**j * (1 - rate) ** (group - j) for j in range(group + 1)]
    s, truth = mp.exp(epsilon if direction == "remove" else -epsilon), mp.mpf(0)

    def log_ratio(x: mp.mpf) -> mp.mpf:
        return mp.log(sum(w * mp.exp(j * x / sigma - (j / sigma) ** 2 / 2) for j, w in enumerate(weights)) / s)

    if s > weights[0]:
        x = mp.findroot(log_ratio, (-4, 12), solver="anderson", tol=1e-50)
        truth = sum(w * upper_tail(x - j / sigma) for j, w in enumerate(weights)) - s * upper_tail(x)
        if direction == "add":
            truth = 1 - 1 / s + truth / s
    assert_holds(run_of(sampled(2.0, 0.25, 1, group)), direction, epsilon, truth)


def test_finer_meshes_close_the_gap_to_second_order() -> None:
    def width(cells: int) -> float:
        run = run_of(sampled(1.0, 0.03, 400), delta=1e-6, cells=cells)
        return float(run.above("remove", 1.0) - run.below("remove", 1.0))

    assert width(20) < width(10) / 2.5
    assert width(10) < width(5) / 2.5
