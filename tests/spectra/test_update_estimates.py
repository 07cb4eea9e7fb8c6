"""T2-T4: slopes along updates, best rate, curvature, change of the objective."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dprmt.spectra import (
    UpdateProducts,
    best_rate_factor,
    objective_change,
    slope_before,
    update_curvature,
    update_products,
)

D, S = 60, 0.4


def run(rng, *, steps=15, rate=0.2, momentum=0.0, sigma=S, told=None, count_shared_noise=True):
    """Noisy descent on a quadratic: products, true Σ⟨g_t, U_t⟩ and Σ⟨g_{t+1}, U_t⟩, the change of f.

    ``told``: the σ that the products are made with.
    """
    told = sigma if told is None else told
    H, previous = np.linspace(0.1, 1.0, D), np.zeros(D)
    x, buffer, seen, before, after = np.ones(D), np.zeros(D), None, 0.0, 0.0
    start, noisy = 0.5 * float(x @ (H * x)), H * x + sigma * rng.standard_normal(D)
    for _ in range(steps):
        buffer = momentum * buffer + noisy
        update = -rate * buffer
        before += float((H * x) @ update)
        x = x + update
        after += float((H * x) @ update)
        following = H * x + sigma * rng.standard_normal(D)
        response = rate if count_shared_noise else 0.0
        new = update_products(noisy, update, following, told, response, previous_update=previous)
        seen, noisy, previous = (new if seen is None else seen + new), following, update
    return seen, before, after, 0.5 * float(x @ (H * x)) - start


@given(st.floats(1e-3, 1.9), st.floats(0.0, 0.9), st.integers(0, 1000))
def test_exact_on_a_quadratic(rate, momentum, seed):
    """Where noise is a billionth, slopes, change, curvature and factor are the quadratic's, whatever the steps."""
    products, before, after, change = run(np.random.default_rng(seed), rate=rate, momentum=momentum, sigma=1e-9)
    assert (before + after) / 2 == pytest.approx(change, rel=1e-9, abs=1e-9)
    near = {"rel": 1e-6, "abs": 1e-6 * abs(before)}
    assert slope_before(products).value == pytest.approx(before, **near)
    assert objective_change(products).value == pytest.approx(change, **near)
    assert update_curvature(products).value == pytest.approx(after - before, **near)
    assert best_rate_factor(products).value == pytest.approx(max(-before / (after - before), 0.0), rel=1e-5)


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_unbiased_and_covered(momentum):
    """Over 1,500 runs: means within 3.5 standard errors, each interval missed by at most its 10 %, and not wide."""
    rng = np.random.default_rng(0)
    rate = 0.2 if momentum == 0 else 0.05
    expected = run(np.random.default_rng(1), momentum=momentum, rate=rate)[0]
    runs = [run(rng, momentum=momentum, rate=rate) for _ in range(1500)]
    estimates = {
        slope_before: [before for _, before, _, _ in runs],
        objective_change: [change for *_, change in runs],
        update_curvature: [after - before for _, before, after, _ in runs],
    }
    for function, truths in estimates.items():
        found = [function(products, failure=0.1, expected=expected) for products, *_ in runs]
        errors = np.array([f.value for f in found]) - truths
        assert abs(errors.mean()) < 3.5 * errors.std() / len(runs) ** 0.5
        covered = np.mean([f.low <= truth <= f.high for f, truth in zip(found, truths, strict=True)])
        assert covered >= 0.9
        half = np.mean([f.high - f.low for f in found]) / 2
        assert half < 2.8 * errors.std()  # Chernoff's bound at 10 % in place of the normal quantile, 2.45 for 1.64


@pytest.mark.parametrize("told", [0.66 * S, 1.33 * S])
def test_another_noise_is_found_out(told):
    """Told a noise a third smaller or larger, what holds the shared noise is biased, and its intervals miss."""
    rng = np.random.default_rng(3)
    expected = run(np.random.default_rng(1), rate=0.6, told=told)[0]
    runs = [run(rng, rate=0.6, told=told) for _ in range(150)]
    for function, place in ((slope_before, 1), (objective_change, 3)):
        found = [function(products, failure=0.1, expected=expected) for products, *_ in runs]
        errors = np.array([f.value for f in found]) - [one[place] for one in runs]
        assert (told - S) * errors.mean() > 10 * abs(told - S) * errors.std() / len(runs) ** 0.5
        missed = np.mean([not f.low <= one[place] <= f.high for f, one in zip(found, runs, strict=True)])
        assert missed > 0.15


def test_without_the_shared_noise_it_is_wrong():
    """The noise that an update shares with its gradient is not small: left out, the change is missed nearly always."""
    rng = np.random.default_rng(1)
    runs = [run(rng, count_shared_noise=False) for _ in range(200)]
    errors = np.array([objective_change(products).value - change for products, *_, change in runs])
    assert errors.mean() < -10 * errors.std() / len(runs) ** 0.5
    assert errors.mean() == pytest.approx(-0.5 * 15 * 0.2 * D * S**2, rel=0.1)


def test_the_best_factor_is_that_of_the_noise_that_is_there():
    """Σ‖g‖²/(αΣ(gᵀHg + s² tr H)) of many first steps, and z of T2 has mean zero at that rate, and only there."""
    rng, H, g = np.random.default_rng(2), np.linspace(0.1, 1.0, D), np.linspace(0.1, 1.0, D)
    best = (g @ g) / (g @ (H * g) + S**2 * H.sum())
    for rate, sign in ((0.5 * best, 1), (best, 0), (2 * best, -1)):
        zs, seen = [], None
        for _ in range(3000):
            noisy = g + S * rng.standard_normal(D)
            update = -rate * noisy
            following = g + H * update + S * rng.standard_normal(D)
            new = update_products(noisy, update, following, S, rate)
            seen = new if seen is None else seen + new
            zs.append(-(following @ update) / (S * np.linalg.norm(update)))
        found = best_rate_factor(seen)
        assert found.value * rate == pytest.approx(best, rel=0.05)
        assert found.low < best / rate < found.high
        assert found.high - found.low < 0.7 * found.value
        test = np.mean(zs) / (np.std(zs) / len(zs) ** 0.5)
        assert abs(test) < 3.5 if sign == 0 else sign * test > 10
        curvature = update_curvature(seen).value / len(zs) / rate**2
        assert curvature == pytest.approx(g @ (H * g) + S**2 * H.sum(), rel=0.1)


def test_factors_at_the_edges():
    def of(before, after):
        products = UpdateProducts(1, before, after, 0.0, 1e-12, 1e-12, 1e-14, 1e-12)
        found = best_rate_factor(products, expected=products)
        return found.value, found.low, found.high

    assert of(-1.0, 0.0) == pytest.approx((1.0, 1.0, 1.0), rel=1e-4)
    assert of(-1.0, -2.0)[0] == np.inf  # steeper behind than before: no curvature
    assert of(1.0, 2.0) == (0.0, 0.0, 0.0)  # upward from the start
    value, low, high = of(-1.0, -1.0)
    assert value == np.inf
    assert low > 1e5
    assert high == np.inf
    value, low, high = of(-1e-9, -1e-9)  # within its error of nothing
    assert low == 0.0
    assert high == np.inf


@given(st.floats(0.01, 100.0), st.integers(0, 2**31))
def test_scale_rotation_and_type_do_not_matter(scale, seed):
    """In units in which gradients are c times as large and steps 1/c, and in other axes, work stays what it was."""
    rng = np.random.default_rng(seed)
    noisy, update, following = rng.standard_normal((3, 12))
    Q = np.linalg.qr(rng.standard_normal((12, 12)))[0]
    one = update_products(noisy, update, following, 1.0, 0.3)
    turned = [scale * Q @ noisy, Q @ update / scale, scale * Q @ following]
    two = update_products(*turned, scale, 0.3 / scale**2)
    three = update_products(*map(torch.tensor, (noisy, update, following)), 1.0, 0.3)
    for function in (slope_before, objective_change, update_curvature, best_rate_factor):
        for name in ("value", "low", "high"):
            first, second, third = (getattr(function(products), name) for products in (one, two, three))
            assert second == pytest.approx(first, rel=1e-6, abs=1e-8)
            assert third == pytest.approx(first, rel=1e-10, abs=1e-12)


def test_layers_add_up_and_an_unknown_response_gives_no_interval():
    rng = np.random.default_rng(3)
    layers = [{"a": rng.standard_normal((2, 3)), "b": rng.standard_normal(4)} for _ in range(3)]
    response = {"a": np.full((2, 3), 0.1), "b": np.full(4, 0.2)}
    products = update_products(*layers[:3], 1.0, response)
    flat = [np.concatenate([value.ravel() for value in layer.values()]) for layer in (*layers, response)]
    whole = update_products(*flat[:3], 1.0, flat[3])
    assert objective_change(products.total()).value == pytest.approx(objective_change(whole).value)
    assert products.total().largest_response == whole.largest_response == pytest.approx(0.2)
    steep = update_products(*flat[:3], 1.0, np.where(np.arange(10) == 0, 1e3, 1e-9))
    assert slope_before(steep, expected=steep).high == np.inf
