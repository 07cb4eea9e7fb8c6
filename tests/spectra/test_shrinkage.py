"""Shrinkers and hard thresholds: against Eq. 9 as printed, as minimisers of their losses, by simulation."""

from __future__ import annotations

import itertools
import math

import mpmath as mp
import numpy as np
import pytest
import scipy
from hypothesis import given
from hypothesis import strategies as st

from dprmt import spectra
from dprmt.spectra import MarchenkoPastur, bulk_edge, detection_threshold, hard_threshold, shrink, spike_map
from tests.spectra.simulation import FACTORS, SHAPES, SIGMAS

LOSSES = ("frobenius", "operator", "nuclear")


def equation_9(y, m, n, sigma):
    """Eq. 9 with F⁻¹ found by root search, in 60 digits."""
    with mp.workdps(60):
        m, n, σ, y = (mp.mpf(x) for x in (m, n, sigma, y))

        def F(λ):
            return mp.sqrt((λ + σ**2 * n / λ) * (λ + σ**2 * m / λ))

        λ = mp.findroot(lambda x: F(x) - y, (σ * (m * n) ** 0.25, y), solver="illinois", tol=1e-40, maxsteps=300)
        left = (λ**4 - m * n * σ**4) / (λ**4 + m * λ**2 * σ**2)
        right = (λ**4 - m * n * σ**4) / (λ**4 + n * λ**2 * σ**2)
        return float(λ * mp.sqrt(left) * mp.sqrt(right))


@given(SHAPES, st.floats(1e-3, 1e3), st.floats(1.001, 100.0))
def test_frobenius_is_equation_9(shape, sigma, factor):
    """η(y) = λ √overlap_u √overlap_v with F(λ) = y, to 1e-12."""
    y = factor * bulk_edge(shape, sigma)
    assert shrink(y, shape, sigma) == pytest.approx(equation_9(y, *shape, sigma), rel=1e-12)


def error_block(η, λ, left, right):
    """The 2 × 2 block λ e₁e₁ᵀ - η ũṽᵀ that the error of one spike is, up to rotations."""
    u = np.array([math.sqrt(left), math.sqrt(1 - left)])
    v = np.array([math.sqrt(right), math.sqrt(1 - right)])
    return λ * np.outer([1, 0], [1, 0]) - η * np.outer(u, v)


NORMS = {"frobenius": "fro", "operator": 2, "nuclear": "nuc"}


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("shape", [(16, 768), (768, 16), (256, 256), (100, 1000)])
def test_each_shrinker_minimises_its_loss(shape, loss):
    """No η has a smaller norm of the limiting error block, at signals from 1.02 to 10 times the threshold."""
    for factor in (1.02, 1.1, 1.3, 2.0, 10.0):
        λ = factor * detection_threshold(shape, 1.0)
        overlaps = spectra.vector_overlaps(λ, shape, 1.0)

        def risk(η, λ=λ, overlaps=overlaps):
            return float(np.linalg.norm(error_block(η, λ, *overlaps), NORMS[loss]))

        best = scipy.optimize.minimize_scalar(risk, bounds=(0, 2 * λ), method="bounded", options={"xatol": 1e-9 * λ})
        η = shrink(spike_map(λ, shape, 1.0), shape, 1.0, loss)
        assert risk(η) <= best.fun * (1 + 1e-9)
        assert η == pytest.approx(best.x, abs=2e-4 * λ)
        assert risk(0.97 * η) > risk(η) or η == 0
        assert risk(1.03 * η) > risk(η) or η == 0


@given(SHAPES, SIGMAS, FACTORS)
def test_shrinkers_shrink(shape, sigma, factor):
    """0 <= nuclear <= Frobenius <= operator <= F⁻¹(y) <= y; the middle two are 0 exactly if y <= b₊."""
    y = factor * bulk_edge(shape, sigma)
    frobenius, operator, nuclear = (shrink(y, shape, sigma, loss) for loss in LOSSES)
    chain = [0.0, nuclear, frobenius, operator, spectra.spike_map_inverse(y, shape, sigma), y]
    assert all(a <= b * (1 + 1e-14) for a, b in itertools.pairwise(chain))
    if abs(factor - 1) > 1e-14:
        assert (frobenius > 0) == (operator > 0) == (factor > 1)


@given(SHAPES, st.floats(0.0, 1e300), st.sampled_from(LOSSES))
def test_without_noise_nothing_changes(shape, y, loss):
    """σ = 0 returns the input."""
    assert shrink(y, shape, 0.0, loss) == y


@given(SHAPES, SIGMAS)
def test_far_above_the_edge_little_changes(shape, sigma):
    """η(y) = y - σ²(m + n)/y·(1 + o(1)) for the Frobenius loss: the whole of it is expanded from Eq. 9."""
    y = 1e4 * bulk_edge(shape, sigma)
    assert (y - shrink(y, shape, sigma)) * y == pytest.approx(sigma**2 * sum(shape), rel=1e-6)


# -------------------------------------------------------------------------------------- hard threshold


def test_published_coefficients():
    """4/√3 for square matrices and known noise, 2.858 times the median for unknown noise."""
    assert hard_threshold((100, 100), 1.0) == pytest.approx(4 / math.sqrt(3) * 10, rel=1e-15)
    assert hard_threshold((100, 100)) == pytest.approx(2.858, abs=5e-4)


@given(SHAPES, SIGMAS)
def test_hard_threshold_is_where_the_shrinker_halves(shape, sigma):
    """Keeping y costs λ² + y² - 2yη(y) and dropping it λ²: the best threshold is where η(τ) = τ/2.

    ω(β) times the median of the noise law is the threshold at that noise; near the published cubic fit.
    """
    τ, ω, β = hard_threshold(shape, sigma), hard_threshold(shape), min(shape) / max(shape)
    assert shrink(τ, shape, sigma) == pytest.approx(τ / 2, rel=1e-12)
    assert τ > bulk_edge(shape, sigma)
    assert ω * MarchenkoPastur(shape, sigma).median == pytest.approx(τ, rel=1e-13)
    assert ω == pytest.approx(0.56 * β**3 - 0.95 * β**2 + 1.82 * β + 1.43, abs=0.03)
    assert hard_threshold(shape[::-1]) == ω


# ------------------------------------------------------------------------------------------ simulation


def simulated_spectra(size, draws, rng):
    """Per draw of a rank 1 to 5 signal in square noise (σ = 1): singular values y, and a_i = u_iᵀ X v_i."""
    y, a = np.empty((2, draws, size))
    for draw in range(draws):
        rank = 1 + draw % 5
        signals = rng.uniform(1.1, 4.0, rank) * math.sqrt(size)
        left, right = (np.linalg.qr(rng.standard_normal((size, rank)))[0] for _ in range(2))
        U, y[draw], Vt = np.linalg.svd((left * signals) @ right.T + rng.standard_normal((size, size)))
        a[draw] = np.einsum("ir,r,ri->i", U.T @ left, signals, (Vt @ right).T)
    return y, a


def squared_errors(shrunk, a):
    """‖X̂ - X‖² less ‖X‖² of the estimator with these singular values, per draw."""
    return np.sum(shrunk**2 - 2 * shrunk * a, axis=-1)


def random_monotone_shrinkers(y, size, count, rng):
    """Increasing functions with a random dead zone: half of any shape, half around the optimal one."""
    knots = np.linspace(0, y.max(), 60)
    for k in range(count):
        if k % 2:
            steps = rng.exponential(size=60) ** rng.uniform(0.5, 3) * (
                knots > rng.uniform(0, 1.2) * 2 * math.sqrt(size)
            )
            values = np.cumsum(steps) / max(steps.sum(), 1e-9) * y.max() * rng.uniform(0.6, 1.1)
        else:
            sigma = rng.uniform(0.8, 1.2)
            values = np.maximum.accumulate(
                shrink(knots, (size, size), sigma) * (1 + rng.uniform(0, 0.2) * rng.standard_normal(60))
            )
        yield np.interp(y, knots, values)


def rivals(y, size, rng):
    """The best and other hard and soft thresholds, and 1,000 random monotone shrinkers."""
    for level in (hard_threshold((size, size), 1.0), *(2 * math.sqrt(size) * np.array([1.0, 1.05, 1.3, 1.5]))):
        yield np.where(y > level, y, 0.0)
        yield np.maximum(y - level, 0.0)
    yield from random_monotone_shrinkers(y, size, 1000, rng)


def worst_defeat(shrunk, y, a, size):
    """The largest number of standard errors by which a rival has the smaller error, over the same draws."""
    own = squared_errors(shrunk, a)
    defeats = []
    for rival in rivals(y, size, np.random.default_rng(1)):
        lead = own - squared_errors(rival, a)
        defeats.append(lead.mean() / (lead.std() / math.sqrt(len(lead)) + 1e-12))
    return max(defeats)


def test_no_monotone_shrinker_has_a_smaller_error():
    """No threshold and none of 1,000 monotone shrinkers beats η by 3 standard errors; 128 × 128, 60 draws."""
    size = 128
    y, a = simulated_spectra(size, 60, np.random.default_rng(0))
    assert worst_defeat(shrink(y, (size, size), 1.0), y, a, size) < 3
    for sigma in (0.7, 1.3):  # a shrinker for the wrong noise level is beaten
        assert worst_defeat(shrink(y, (size, size), sigma), y, a, size) > 3
