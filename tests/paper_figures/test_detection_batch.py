"""How the top of a gradient grows with the batch: Theorem 8 of docs/theory/when_denoising_helps.md."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from paper_figures.shrinkers import detection_batch
from paper_figures.shrinkers._gains import _crossing

SEEDS = st.integers(0, 2**32 - 1)
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
