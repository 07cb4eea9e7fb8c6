"""The theorems of docs/theory/when_denoising_helps.md, valid and attained."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from paper_figures.shrinkers import detection_batch, direction_gain, filter_gain, largest_direction_gain, noise_gain
from paper_figures.shrinkers._gains import _crossing
from tests.spectra.simulation import SEEDS, quadratic


def best_decrease(g, mean, second):
    """Max over α >= 0 of α⟨g, E d⟩ - ½α² tr(H E ddᵀ), on a grid of rates that is refined around the best."""
    low, high = 0.0, 4 * np.linalg.norm(g) * np.linalg.norm(mean) / second + 1e-300
    for _ in range(6):
        rates = np.linspace(low, high, 201)
        values = rates * (g @ mean) - rates**2 / 2 * second
        k = int(values.argmax())
        low, high = rates[max(k - 1, 0)], rates[min(k + 1, 200)]
    return max(values[k], 0.0)


def noisy_decrease(g, H, sigma):
    return best_decrease(g, g, g @ H @ g + sigma**2 * np.trace(H))


# --- Theorem 1 -----------------------------------------------------------------------------------------------------
@given(SEEDS, st.floats(0.01, 3))
def test_gain_of_an_affine_map_has_three_factors(seed, sigma):
    """The map AY + b: gain = (1 + ρ)·κ(E d)/(1 + ν), ν = tr(H Cov d)/(E d)ᵀH(E d); never above (1 + ρ)·κ(E d)."""
    rng, g, H = quadratic(seed)
    A, b = rng.standard_normal((5, 5)), rng.standard_normal(5)
    mean, covariance = A @ g + b, sigma**2 * A @ A.T
    assume(g @ mean > 1e-3 * np.linalg.norm(g) * np.linalg.norm(mean))
    gain = best_decrease(g, mean, mean @ H @ mean + np.trace(H @ covariance)) / noisy_decrease(g, H, sigma)
    without_noise = noise_gain(g, H, sigma).gain * direction_gain(mean, g, H)
    assert gain == pytest.approx(without_noise / (1 + np.trace(H @ covariance) / (mean @ H @ mean)), rel=1e-6)
    assert gain < without_noise


@given(SEEDS, st.floats(0.01, 3), st.floats(0.1, 10))
def test_maps_whose_mean_is_along_g_gain_at_most_1_plus_rho(seed, sigma, scale):
    """And d = g attains it."""
    rng, g, H = quadratic(seed)
    A = rng.standard_normal((5, 5))
    A += np.outer(scale * g - A @ g, g) / (g @ g)  # A g = scale·g
    limit = noise_gain(g, H, sigma).gain
    second = scale**2 * g @ H @ g + sigma**2 * np.trace(H @ A @ A.T)
    assert best_decrease(g, scale * g, second) / noisy_decrease(g, H, sigma) < limit * (1 + 1e-6)
    assert best_decrease(g, g, g @ H @ g) / noisy_decrease(g, H, sigma) == pytest.approx(limit, rel=1e-6)


# --- Theorem 2 -----------------------------------------------------------------------------------------------------
@given(SEEDS, st.floats(0.01, 3))
def test_no_map_beats_the_newton_direction(seed, sigma):
    """No direction gains more than (1 + ρ)K, H⁻¹g gains that, and K is at most Kantorovich's (l + L)²/4lL."""
    rng, g, H = quadratic(seed)
    K, noisy = largest_direction_gain(g, H), noisy_decrease(g, H, sigma)
    limit = noise_gain(g, H, sigma).gain * K
    for v in rng.standard_normal((20, 5)):
        assert direction_gain(v, g, H) <= K
        assert best_decrease(g, v, v @ H @ v) / noisy <= limit
    newton = np.linalg.solve(H, g)
    assert best_decrease(g, newton, newton @ H @ newton) / noisy == pytest.approx(limit, rel=1e-6)
    assert best_decrease(g, newton, newton @ H @ newton) == pytest.approx(g @ newton / 2, rel=1e-6)
    least, *_, largest = np.linalg.eigvalsh(H)
    assert 1 <= K <= (least + largest) ** 2 / (4 * least * largest) * (1 + 1e-9)


def test_kantorovich_is_attained_and_flat_directions_have_no_bound():
    """With g half in each of the extreme eigenvectors; a part of g where there is no curvature."""
    assert largest_direction_gain(np.ones(2), np.diag([1.0, 9.0])) == pytest.approx(100 / 36)
    assert largest_direction_gain(np.ones(2), np.diag([1.0, 0.0])) == math.inf
    assert largest_direction_gain(np.array([1.0, 0.0]), np.diag([1.0, 0.0])) == 1.0


# --- Theorem 3 -----------------------------------------------------------------------------------------------------
def blockwise_best(s, h):
    """Over all ways to cut the singular values, weakest first, into blocks of equal weight that come out monotone."""
    order = np.argsort(s)
    E, C = (s * s)[order], (s * s * h)[order]
    best = 0.0
    for cuts in itertools.product([False, True], repeat=len(s) - 1):
        label = np.cumsum([False, *cuts])
        e, c = np.bincount(label, E), np.bincount(label, C)
        if np.all(np.diff(e / c) >= 0):
            best = max(best, float((e * e / c).sum()))
    return best * C.sum() / E.sum() ** 2


@given(SEEDS, st.integers(1, 6))
def test_filters_gain_at_most_what_is_stated_and_attain_it(seed, k):
    """Random monotone weights stay below; all partitions agree; free weights reach K of the diagonal curvature."""
    rng = np.random.default_rng(seed)
    s, h = rng.uniform(0.1, 5, k), np.exp(rng.uniform(-4, 2, k))
    monotone, free = filter_gain(s, h), filter_gain(s, h, monotone=False)
    assert monotone == pytest.approx(blockwise_best(s, h), rel=1e-9)
    assert free == pytest.approx(largest_direction_gain(s, np.diag(h)), rel=1e-9)
    assert 1 <= monotone <= free * (1 + 1e-12)
    for w in np.sort(rng.exponential(size=(20, k)) ** 2)[:, np.argsort(np.argsort(s))]:
        assert direction_gain(w * s, s, np.diag(h)) <= monotone * (1 + 1e-9)
    for kept in range(1, k + 1):  # truncations are monotone filters
        strong = s >= np.sort(s)[-kept]
        assert direction_gain(strong * s, s, np.diag(h)) <= monotone * (1 + 1e-9)


@given(SEEDS, st.integers(2, 6))
def test_no_monotone_filter_gains_where_the_weak_are_no_more_curved(seed, k):
    """The gain is 1 if and only if every set of weakest singular values has a mean curvature at most that of all."""
    rng = np.random.default_rng(seed)
    s, h = np.sort(rng.uniform(0.1, 5, k)), np.exp(rng.uniform(-1, 1, k))
    mean = np.cumsum(s * s * h) / np.cumsum(s * s)
    assume(np.all(abs(mean[:-1] / mean[-1] - 1) > 1e-6))
    assert (filter_gain(s, h) == pytest.approx(1.0, abs=1e-13)) == bool(np.all(mean <= mean[-1]))


# --- Theorem 4 -----------------------------------------------------------------------------------------------------
@given(SEEDS, st.floats(0.0, 3), st.integers(1, 4))
def test_a_projection_helps_if_and_only_if_it_drops_enough_curvature(seed, sigma, kept):
    """Gain (1 - e)²/(1 - q) of ΠY: above 1 if and only if q > e(2 - e); drawn projections, not of H's own."""
    rng, g, H = quadratic(seed)
    Q = np.linalg.qr(rng.standard_normal((5, kept)))[0]
    Π = Q @ Q.T
    total = g @ H @ g + sigma**2 * np.trace(H)
    remaining = g @ Π @ H @ Π @ g + sigma**2 * np.trace(Π @ H @ Π)
    gain = best_decrease(g, Π @ g, remaining) / noisy_decrease(g, H, sigma)
    e, q = 1 - g @ Π @ g / (g @ g), 1 - remaining / total
    assume(e < 1 - 1e-6)
    assume(abs(q - e * (2 - e)) > 1e-5)
    assert gain == pytest.approx((1 - e) ** 2 / (1 - q), rel=1e-5)
    assert (gain > 1) == (q > e * (2 - e))
    assert gain <= noise_gain(g, H, sigma).gain * largest_direction_gain(g, H) * (1 + 1e-6)


@given(SEEDS, st.floats(0.0, 2), st.integers(1, 7))
def test_the_best_truncation_keeps_what_is_less_than_twice_as_curved(seed, sigma, k):
    """Of all 2ᵏ - 1 subsets of eigenvectors the best keeps i if and only if h_i(1 + σ²/g_i²) < 2·(mean of the kept)."""
    rng = np.random.default_rng(seed)
    a, h = rng.uniform(0.1, 5, k) ** 2, np.exp(rng.uniform(-3, 3, k))
    b = h * (a + sigma**2)
    sets = [np.array(s) for s in itertools.product([False, True], repeat=k) if any(s)]
    value = [a[s].sum() ** 2 / b[s].sum() for s in sets]
    best = sets[int(np.argmax(value))]
    bound = 2 * b[best].sum() / a[best].sum()
    assume(np.all(abs(b / a / bound - 1) > 1e-9))
    assert np.array_equal(b / a < bound, best)


SHAPE = (10, 24)


class Samples:
    """Per-sample gradients: a mean of rank two, covariance of rank three, and an isotropic part."""

    def __init__(self, seed, mean=0.3, low_rank=1.0, isotropic=1.0):
        self.rng, self.isotropic = np.random.default_rng(seed), isotropic
        U, V = (np.linalg.qr(self.rng.standard_normal((side, 3)))[0] for side in SHAPE)
        self.mean = mean * (U[:, :2] * [1.0, 0.6]) @ V[:, :2].T
        turned = np.linalg.qr(self.rng.standard_normal((3, 3)))[0]
        self.modes = low_rank * np.einsum("mk,kj,nk->kmn", U, turned, V) * np.array([1.0, 0.7, 0.4])[:, None, None]

    def means(self, batch, count):
        """Means over batches; exact, as all is Gaussian."""
        noise = self.isotropic * self.rng.standard_normal((count, *SHAPE))
        noise += np.einsum("ck,kmn->cmn", self.rng.standard_normal((count, len(self.modes))), self.modes)
        return self.mean + noise / math.sqrt(batch)

    def top(self, batch, count=400):
        return np.linalg.norm(self.means(batch, count), 2, axis=(1, 2))


@given(SEEDS, st.floats(0.0, 1.0), st.floats(0.0, 2.0))
def test_the_top_lies_between_its_coherent_part_and_that_plus_sampling_noise(seed, mean, low_rank):
    """√(μ² + v²/B) <= √E λ₁² <= μ + √(tr Γ/B), v² the variance along M's top pair; energies exactly ‖M‖² + tr Γ/B."""
    source = Samples(seed, mean, low_rank)
    U, s, Vt = np.linalg.svd(source.mean)
    along = np.einsum("kmn,m,n->k", source.modes, U[:, 0], Vt[0])
    variance = along @ along + source.isotropic**2
    trace = (source.modes**2).sum() + source.isotropic**2 * SHAPE[0] * SHAPE[1]
    for batch in (1, 16, 400):
        means = source.means(batch, 120)
        squares = np.linalg.norm(means, 2, axis=(1, 2)) ** 2
        error = 5 * squares.std() / math.sqrt(len(squares))
        assert s[0] ** 2 + variance / batch <= squares.mean() + error
        assert squares.mean() - error <= (s[0] + math.sqrt(trace / batch)) ** 2
        energy = (means**2).sum((1, 2))
        assert abs(energy.mean() - (s @ s + trace / batch)) < 6 * energy.std() / math.sqrt(len(energy))


@given(SEEDS)
def test_the_mean_top_never_rises_with_the_batch_nor_falls_below_the_mean_s(seed):
    """For any numbers whatever: the mean over all pairs of λ₁ of their mean is at most the mean of λ₁ of each."""
    G = np.random.default_rng(seed).standard_cauchy((6, 3, 5))
    top = lambda A: np.linalg.norm(A, 2, axis=(-2, -1))  # noqa: E731
    pairs = np.array([(G[i] + G[j]) / 2 for i in range(6) for j in range(i)])
    assert top(G.mean(0)) <= top(pairs).mean() * (1 + 1e-12) <= top(G).mean() * (1 + 1e-12)


def crossing(source, theta):
    """The least B with E λ₁(Ḡ_B) >= θ/B, by bisection with the same draws at all B."""
    noise = source.means(1, 400) - source.mean
    low, high = 1.0, 1e7
    while high / low > 1.002:
        middle = math.sqrt(low * high)
        top = np.linalg.norm(source.mean + noise / math.sqrt(middle), 2, axis=(1, 2)).mean()
        low, high = (low, middle) if top >= theta / middle else (middle, high)
    return high


@pytest.mark.parametrize(("mean", "low_rank", "width"), [(0.5, 0.0, 1.9), (0.5, 1.0, 1.9), (0.1, 1.0, math.inf)])
def test_the_interval_holds_the_batch_size_and_is_narrow_where_the_mean_is_seen(mean, low_rank, width):
    """At most 5 % + 3 errors of 150 runs miss; where the mean dominates, the ends are within a factor."""
    b, count, noise = 256, 24, 500.0
    source = Samples(7, mean, low_rank)
    theta = noise * (SHAPE[0] * SHAPE[1]) ** 0.25
    truth = crossing(source, theta)
    found = detection_batch(np.array([source.means(b, count) for _ in range(150)]), b, noise)
    missed = np.mean((found.low > truth * 1.01) | (found.high < truth / 1.01))
    assert missed <= 0.05 + 3 * math.sqrt(0.05 * 0.95 / 150)
    assert np.all(found.low <= found.value)
    assert np.all(found.value <= found.high)
    assert np.median(found.high / np.maximum(found.low, 1e-9)) < width
    if width < math.inf:
        assert np.median(found.value) == pytest.approx(truth, rel=0.15)
        assert np.mean(found.low > truth / 3) > 0.9  # a truth three times as large would be told
        assert np.mean(found.high < truth * 3) > 0.9


def test_no_coherent_part_has_no_upper_end():
    """Pure sampling noise: an upper end is claimed in at most the failure rate of runs."""
    source = Samples(3, mean=0.0)
    found = detection_batch(np.array([source.means(8, 12) for _ in range(300)]), 8, 50.0)
    assert np.mean(np.isfinite(found.high)) < 0.025 + 3 * math.sqrt(0.025 / 300)


def test_the_crossing_is_the_root_of_unbiased_squares() -> None:
    """(T8) of μ² = 9 - (14/3)/4 and τ² = 8·14/3, by numpy's roots."""
    along, b, theta = np.array([1.0, 2.0, 3.0, 6.0]), 8, 100.0
    root = max(np.roots([9 - 14 / 12, 8 * 14 / 3, -(theta**2)]).real)
    assert _crossing(along, b, theta) == pytest.approx(root, rel=1e-12)
