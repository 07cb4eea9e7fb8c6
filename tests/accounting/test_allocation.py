"""Random allocation: bounds against quadrature, Monte Carlo and independent numbers; statements of the theory page."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.special import gammaincinv, roots_legendre

from dprmt.accounting import DPSGD, ExactNorms, Hutchinson, RandomAllocation, compose

from .oracles.gaussian import put


# ------------------------------------------------------------------------------------- independent numbers
def allocated(sigma, steps_per_epoch, probes=None, **options):
    sampling = RandomAllocation(steps_per_epoch, options.pop("participations", 1))
    return DPSGD(sigma, sampling, ExactNorms() if probes is None else Hutchinson(probes, **{"secret": False} | options))


CASES = [(1.0, 33, 12, 1e-5), (2.0, 100, 10, 1e-5), (1.0, 1000, 5, 1e-6)]


@pytest.mark.parametrize(
    ("case", "remove", "add"), [(CASES[0], 3.5116, 3.1039), (CASES[1], 0.60311, 0.59947), (CASES[2], 0.37696, 0.35884)]
)
def test_exact_norms_at_the_check_values(case, remove, add):
    """§6 of the theory page, to ±0.0003."""
    sigma, steps, epochs, delta = case
    found = allocated(sigma, steps).epsilon_by_direction(epochs=epochs, delta=delta)
    for direction, value in (("remove", remove), ("add", add)):
        assert found[direction].lower - 3e-4 <= value <= found[direction].upper + 3e-4
        assert found[direction].is_narrow


@pytest.mark.parametrize(
    ("case", "analysis", "value", "accuracy"),
    [
        (CASES[0], "tight", 4.404, 1e-2),
        (CASES[0], "envelope", 4.517, 1e-2),
        (CASES[1], "tight", 0.635, 2e-3),
        (CASES[1], "envelope", 0.660, 2e-3),
        (CASES[2], "tight", 0.834, 2e-3),
        (CASES[2], "envelope", 0.836, 2e-3),
    ],
)
def test_randomized_clipping_at_the_check_values(case, analysis, value, accuracy):
    """§6 of the theory page."""
    sigma, steps, epochs, delta = case
    found = allocated(sigma, steps, 32, analysis=analysis).epsilon(epochs=epochs, delta=delta)
    assert found.is_narrow
    assert found.lower - accuracy <= value <= found.upper + accuracy
    secret = allocated(sigma, steps, 32, analysis=analysis, secret=True).epsilon(epochs=epochs, delta=delta)
    assert secret.upper < found.upper


# ------------------------------------------------------------------------------------------- by quadrature
def legendre(points, low=-12.0, high=12.0):
    """Nodes and weights for expectations under N(0, 1), as one fine rule: the integrand has a kink in places."""
    x, w = roots_legendre(points)
    y = (low + high) / 2 + (high - low) / 2 * x
    return y, w * (high - low) / 2 * np.exp(-(y**2) / 2) / np.sqrt(2 * np.pi)


def ratios(shifts, masses, points):
    y, w = legendre(points)
    values = np.exp(np.multiply.outer(shifts, y) - np.asarray(shifts)[:, None] ** 2 / 2)
    return values.ravel(), np.multiply.outer(masses, w).ravel()


def delta_by_quadrature(epsilon, steps, shifts, masses, points):
    """δ of one epoch in both directions, by (R1): an integral over all steps but one, no convolution."""
    value, weight = ratios(shifts, masses, points)
    sums, weights = np.zeros(1), np.ones(1)
    for _ in range(steps - 1):
        sums, weights = np.add.outer(sums, value).ravel(), np.multiply.outer(weights, weight).ravel()

    def put_of_mean(strike):
        last = sum(mass * put(steps * strike - sums, shift) for shift, mass in zip(shifts, masses, strict=True))
        return weights @ last / steps

    alpha = math.exp(epsilon)
    return {"remove": 1.0 - alpha + put_of_mean(alpha), "add": alpha * put_of_mean(1.0 / alpha)}


@pytest.mark.parametrize(
    ("sigma", "steps", "points", "epsilon"),
    [(1.0, 2, 4000, 2.0), (0.5, 2, 4000, 5.0), (3.0, 2, 4000, 0.5), (1.0, 3, 500, 1.0), (0.7, 3, 1200, 2.0)],
)
def test_one_epoch_of_few_steps_by_direct_integration(sigma, steps, points, epsilon):
    """δ lies in the certified interval, which is narrow, in both directions."""
    shifts = np.array([1.0 / sigma])
    truth = delta_by_quadrature(epsilon, steps, shifts, np.ones(1), points)
    finer = delta_by_quadrature(epsilon, steps, shifts, np.ones(1), points + points // 7)
    bounds = compose([(allocated(sigma, steps), steps)]).delta_by_direction(epsilon)
    for direction, value in truth.items():
        slack = 10 * abs(finer[direction] - value)
        assert slack < 1e-3 * value
        found = bounds[direction]
        assert found.lower - slack <= value <= found.upper + slack
        assert found.upper - found.lower < 0.02 * value


@pytest.mark.parametrize("copies", [1, 2, 5])
def test_spread_spectra_are_never_above_the_charged_curve(copies):
    """(R1) with (T3): d equal singular values have X = χ²(kd)/(kd); d = 1 attains the bound, larger d stay below."""
    probes, sigma, epsilon = 8, 1.5, 1.0
    levels, weights = roots_legendre(48)
    x = gammaincinv(probes * copies / 2, (levels + 1) / 2) / (probes * copies / 2)
    shifts, masses = 1.0 / (sigma * np.sqrt(x)), weights / 2
    truth = delta_by_quadrature(epsilon, 2, shifts, masses, 200)
    charged = compose([(allocated(sigma, 2, probes), 2)]).delta_by_direction(epsilon)
    for direction, value in truth.items():
        assert value <= charged[direction].upper * (1 + 1e-3)
        if copies == 1:
            assert value >= charged[direction].lower * (1 - 1e-3)
        else:
            assert value < 0.99 * charged[direction].lower


# ------------------------------------------------------------------------------------------- by simulation
def simulated_delta(rng, sigma, steps, epochs, epsilon, samples):
    """δ of the remove direction by drawing the mechanism's own outcomes: mean and its standard error."""
    shift = 1.0 / sigma
    loss = np.zeros(samples)
    for _ in range(epochs):
        y = rng.standard_normal((samples, steps))
        y[:, 0] += shift  # by symmetry the sample's step may be the first
        loss += np.log(np.mean(np.exp(shift * y - shift**2 / 2), axis=1))
    gain = np.maximum(-np.expm1(epsilon - loss), 0.0)
    return gain.mean(), gain.std() / np.sqrt(samples)


def test_simulation_agrees_and_would_notice_five_percent():
    """E(W - α)+ of two epochs by Monte Carlo; the same test rejects δ at σ wrong by 3 %."""
    rng = np.random.default_rng(5)
    sigma, steps, epochs, epsilon = 1.0, 20, 2, 0.4
    mean, error = simulated_delta(rng, sigma, steps, epochs, epsilon, 400_000)

    def is_rejected(bounds):
        return mean + 4 * error < bounds.lower or mean - 4 * error > bounds.upper

    assert not is_rejected(compose([(allocated(sigma, steps), 40)]).delta_by_direction(epsilon)["remove"])
    for wrong in (0.97, 1.03):
        assert is_rejected(compose([(allocated(wrong * sigma, steps), 40)]).delta_by_direction(epsilon)["remove"])


# ------------------------------------------------------------------------------------------- what must hold
def test_one_step_an_epoch_is_no_sampling():
    """With t = 1: the same bounds as with every sample in every step."""
    assert allocated(3.0, 1).epsilon(epochs=50, delta=1e-5) == DPSGD(3.0, 1.0).epsilon(steps=50, delta=1e-5)


@pytest.mark.parametrize(("sigma", "steps"), [(0.5, 100_000), (0.5, 2), (2.0, 100_000), (5.0, 7)])
def test_intervals_are_narrow_at_the_ends(sigma, steps):
    """1e-3 for σ ≥ 0.5 and t up to 1e5."""
    assert allocated(sigma, steps).epsilon(epochs=3, delta=1e-6).is_narrow


def test_small_delta_needs_tilted_transforms():
    """At δ = 1e-40 untilted FFTs know nothing; bounds stay narrow, and in order of δ."""
    found = allocated(1.5, 50).epsilon(epochs=4, delta=1e-40)
    assert found.upper - found.lower < 0.02 * found.upper
    assert found.lower > allocated(1.5, 50).epsilon(epochs=4, delta=1e-20).upper


def test_participations_are_blocks():
    """(R1'): 2 of 10 steps are one of 5, twice; 3 of 10 are blocks of 3, 3 and 4."""
    twice = allocated(1.0, 10, participations=2).epsilon(epochs=3, delta=1e-5)
    assert twice == allocated(1.0, 5).epsilon(epochs=6, delta=1e-5)
    thrice = allocated(1.0, 10, participations=3).epsilon(epochs=1, delta=1e-5)
    blocks = compose([(allocated(1.0, 3), 6), (allocated(1.0, 4), 4)]).epsilon(delta=1e-5)
    assert thrice == blocks
    always = allocated(1.0, 10, participations=10).epsilon(epochs=1, delta=1e-5)
    assert always == DPSGD(1.0, 1.0).epsilon(steps=10, delta=1e-5)


# -------------------------------------------------------------------------------------------------- refusals
@pytest.mark.parametrize("steps", [2, pytest.param(1000, marks=pytest.mark.slow)])
def test_a_law_that_lies_at_one_ratio_is_answered(steps):
    """With very much noise nearly all of V is at 1, and its deviation is 0 in floating point."""
    assert DPSGD(1e6, RandomAllocation(steps)).epsilon(delta=1e-6, epochs=1).upper < 1e-3


SETTINGS = [(2.341, 32, 2, 9.999999999999999e-06), (3.836, 28, 1, 1e-07), (3.297, 7, 4, 0.0001), (3.103, 8, 4, 1e-07)]
"""σ, steps of an epoch, epochs and δ; others take the peer half a minute."""


@pytest.mark.peer
@pytest.mark.parametrize(("sigma", "steps", "epochs", "delta"), SETTINGS)
def test_the_peer_s_interval_holds_ours(sigma: float, steps: int, epochs: int, delta: float) -> None:
    """Both intervals are bounds of the same ε, and ours is the narrower."""
    peer = pytest.importorskip("PLD_accounting")
    high, low = peer.gaussian_allocation_epsilon_range(
        delta=delta, sigma=sigma, num_steps=steps, num_epochs=epochs, epsilon_accuracy=0.1
    )
    ours = DPSGD(sigma, RandomAllocation(steps)).epsilon(epochs=epochs, delta=delta)
    assert low <= ours.lower <= ours.upper <= high
    assert ours.upper - ours.lower < high - low


def test_few_probes_keep_the_mesh_of_an_epoch_fine() -> None:
    mechanism = DPSGD(2.868, RandomAllocation(1484), Hutchinson(9, secret=False))
    bounds = mechanism.epsilon(5.94e-8, epochs=1)
    assert bounds.upper <= 1.005 * bounds.lower  # 1.013 where large ratios began at twice as large a ratio
