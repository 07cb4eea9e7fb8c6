"""Releases known by μ-GDP, zCDP or Rényi divergences, and sampled Laplace noise: never too small, and close."""

from __future__ import annotations

import json
import math
from collections.abc import Callable

import numpy as np
import pytest
from scipy.stats import norm

from dprmt import ParameterError
from dprmt.accounting import (
    DPSGD,
    GaussianDPRelease,
    GaussianRelease,
    LaplaceRelease,
    Release,
    RenyiRelease,
    ReplaceOne,
    ZCDPRelease,
    compose,
    release_from_dict,
)

ORDERS = (1.5, 2.0, 3.0, 5.0, 8.0, 13.0, 21.0, 34.0)
EPSILONS = [0.0, 0.1, 0.5, 1.0, 3.0]


def gaussian_delta(mu: float, epsilon: float) -> float:
    return float(norm.sf(epsilon / mu - mu / 2) - math.exp(epsilon) * norm.sf(epsilon / mu + mu / 2))


@pytest.mark.parametrize("mu", [0.2, 1.0, 2.5])
def test_what_a_gaussian_is_known_by_never_costs_less_than_it(mu: float) -> None:
    """N(μ, 1) against N(0, 1) is μ-GDP, μ²/2-zCDP, and has divergences αμ²/2."""
    known: list[Release] = [GaussianDPRelease(mu), ZCDPRelease(mu**2 / 2)]
    known.append(RenyiRelease(ORDERS, tuple(order * mu**2 / 2 for order in ORDERS)))
    for release in known:
        run = compose([release])
        for epsilon in EPSILONS:
            truth = gaussian_delta(mu, epsilon)
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
    "release", [GaussianDPRelease(0.5), ZCDPRelease(0.1), RenyiRelease((2, 4), (0.1, 0.2)), LaplaceRelease(1.0, 0.1)]
)
def test_releases_come_back_from_their_records(release: Release) -> None:
    assert release_from_dict(json.loads(json.dumps(release.as_dict()))) == release
    assert hash(release) == hash(release_from_dict(release.as_dict()))


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
