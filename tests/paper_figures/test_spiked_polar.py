"""The polar factor of what stands out: Theorems 6 and 7 of docs/theory/when_denoising_helps.md."""

from __future__ import annotations

import math

import numpy as np
import pytest
import scipy
import torch
from hypothesis import given
from hypothesis import strategies as st

from dprmt import ParameterError
from dprmt.spectra import bulk_edge, detection_threshold, kappa_for, shrink, vector_overlaps
from paper_figures.shrinkers import spiked_polar

SEEDS = st.integers(0, 2**32 - 1)
SIDES = st.integers(1, 9)


def frame(rng, side, count):
    return np.linalg.qr(rng.standard_normal((side, count)))[0]


@given(SEEDS, SIDES, SIDES)
def test_without_noise_it_is_the_polar_factor(seed, m, n):
    """Of a matrix of any rank, by scipy's own routine where the rank is full; zeros give zero."""
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((m, n))
    np.testing.assert_allclose(spiked_polar(X, 0.0), scipy.linalg.polar(X)[0], atol=1e-8)
    rank = min(m, n, 2)
    U, V = frame(rng, m, rank), frame(rng, n, rank)
    np.testing.assert_allclose(spiked_polar((U * [5.0, 0.01][:rank]) @ V.T, 0.0), U @ V.T, atol=1e-8)
    assert not spiked_polar(0 * X, 0.0).any()


@given(SEEDS, SIDES, SIDES, st.floats(0.05, 2))
def test_singular_values_are_0_and_1_and_the_map_commutes_with_rotations(seed, m, n, sigma):
    rng = np.random.default_rng(seed)
    Y = 4 * rng.standard_normal((m, n)) * rng.exponential(size=n)
    D = spiked_polar(Y, sigma)
    values = np.linalg.svd(D, compute_uv=False)
    above = np.linalg.svd(Y, compute_uv=False) >= kappa_for((m, n), 0.01) * bulk_edge((m, n), sigma)
    np.testing.assert_allclose(values, above.astype(float), atol=1e-8)
    A, B = frame(rng, m, m), frame(rng, n, n)
    np.testing.assert_allclose(spiked_polar(A @ Y @ B, sigma), A @ D @ B, atol=1e-7)
    np.testing.assert_allclose(spiked_polar(Y.T, sigma), D.T, atol=1e-8)
    np.testing.assert_allclose(spiked_polar(1e150 * Y, 1e150 * sigma), D, atol=1e-8)
    np.testing.assert_allclose(Y * 0 + D, spiked_polar(np.stack([Y, 0 * Y]), sigma)[0], atol=1e-12)


@pytest.mark.parametrize("rank", [0, 2])
def test_no_more_directions_than_the_signal_has_up_to_the_false_alarm_rate(rank):
    """Theorem 6: rank(D) > rank(X) in at most 1 % of draws, for weak, middling and strong X; 1 % if X = 0."""
    rng, shape, draws = np.random.default_rng(0), (12, 30), 4000
    error = math.sqrt(0.01 * 0.99 / draws)
    for strength in (1.0, 3.0) if rank else (0.0,):
        X = np.zeros(shape)
        np.fill_diagonal(X[:rank], strength * detection_threshold(shape, 1.0))
        D = spiked_polar(X + rng.standard_normal((draws, *shape)), 1.0)
        extra = np.mean(np.rint((D**2).sum((1, 2))) > rank)
        assert extra <= 0.01 + 3.5 * error
        if not rank:
            assert extra >= 0.01 - 3.5 * error


def coefficients(rng, shape, signal, draws):
    """ũ_iᵀXṽ_i for X of one singular value, with the singular values of Y."""
    X = np.zeros(shape)
    X[0, 0] = signal
    U, y, Vt = np.linalg.svd(X + rng.standard_normal((draws, *shape)), full_matrices=False)
    return signal * U[:, 0, :] * Vt[:, :, 0], y


def test_spikes_hold_the_shrunk_value_and_the_bulk_holds_little_in_each_and_much_in_all():
    """Theorem 7: c_spike = η(y), Σ c² of the bulk falls with m; Σ c of it does not, so that without a price Muon's
    step has the larger ⟨D, X⟩, and per length the smaller one.
    """
    rng, ratio, squares = np.random.default_rng(1), {}, {}
    printed = {24: (0.60, 0.18, 0.0026), 96: (0.60, 0.17, 0.0006)}  # on the page
    for m in (24, 96):
        shape = (m, 2 * m)
        signal = 1.6 * detection_threshold(shape, 1.0)
        c, y = coefficients(rng, shape, signal, 9600 // m)
        left, right = vector_overlaps(signal, shape, 1.0)
        assert c[:, 0].mean() == pytest.approx(signal * math.sqrt(left * right), rel=0.06)
        assert c[:, 0].mean() == pytest.approx(shrink(y[:, 0].mean(), shape, 1.0), rel=0.06)
        bulk = c[:, 1:]
        error = bulk.sum(1).std() / math.sqrt(len(c))
        assert bulk.sum(1).mean() > 0.1 * signal + 4 * error
        ratio[m] = bulk.sum(1).mean() / signal
        squares[m] = (bulk.mean(0) ** 2).sum() / signal**2
        polar, spiked = c.sum(1).mean(), c[:, 0].mean()
        found = spiked / signal, ratio[m], squares[m]
        for value, said, reach in zip(found, printed[m], (0.015, 0.015, 1e-4), strict=True):
            assert value == pytest.approx(said, abs=reach)
        assert polar / signal == pytest.approx(0.775, abs=0.015)
        assert polar > spiked
        assert polar / math.sqrt(m) < 0.5 * spiked
    assert ratio[96] > 0.7 * ratio[24]
    assert squares[96] < 0.5 * squares[24]


@given(SEEDS, st.integers(1, 6))
def test_the_priced_optimum_is_the_clipped_coefficient(seed, k):
    """Max <D, C> - τ/2 ‖D‖² over ‖D‖_op <= 1 is at Σ min(1, c⁺/τ) uvᵀ, C = Σ c uvᵀ: no random D is better."""
    rng = np.random.default_rng(seed)
    U, V = frame(rng, 6, k), frame(rng, 7, k)
    c, tau = rng.exponential(size=k), rng.exponential()
    C = (U * c) @ V.T
    value = lambda D: (D * C).sum() - tau / 2 * (D * D).sum()  # noqa: E731
    best = value((U * np.minimum(1, c / tau)) @ V.T)
    for _ in range(20):
        D = rng.standard_normal((6, 7))
        assert value(D * rng.uniform() / np.linalg.norm(D, 2)) <= best + 1e-12
        assert value((U * rng.uniform(size=k)) @ V.T) <= best + 1e-12
        near = (U * np.minimum(1, c / tau)) @ V.T + 1e-3 * D
        assert value(near / max(1, np.linalg.norm(near, 2))) <= best + 1e-12


def test_no_graph_goes_through_it():
    Y = torch.eye(4, dtype=torch.float64, requires_grad=True)
    assert not spiked_polar(Y, 0.01).requires_grad


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_tensors_come_back_as_they_were(dtype):
    rng = np.random.default_rng(0)
    Y = rng.standard_normal((3, 8, 20))
    Y[:, 0, 0] += 30
    D = spiked_polar(torch.from_numpy(Y).to(dtype), 1.0)
    assert (D.dtype, D.shape) == (dtype, (3, 8, 20))
    np.testing.assert_allclose(
        D.double().numpy(), spiked_polar(Y, 1.0), atol={8: 1e-10, 4: 1e-5, 2: 0.02}[dtype.itemsize]
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((np.ones(3), 1.0), "matrix must be a matrix or a stack"),
        ((np.full((2, 2), np.inf), 1.0), "matrix must be finite"),
        ((np.ones((2, 2)), -1.0), "sigma must be"),
        ((np.ones((2, 2)), 1.0, 0.5), "kappa must be"),
        ((np.ones((9, 8, 3, 3)), 1.0), "convolution"),
    ],
)
def test_bad_input_names_argument_value_and_range(arguments, message):
    with pytest.raises(ParameterError, match=message):
        spiked_polar(*arguments)


@pytest.mark.parametrize("small", [1e-12, 1e-3])
def test_a_direction_that_is_small_and_not_rounding_stands_where_there_is_no_noise(small):
    """Rounding of float64 is 1e-14 of the largest value here."""
    U, V = (np.linalg.qr(np.random.default_rng(side).standard_normal((side, 2)))[0] for side in (12, 9))
    matrix = U * [1.0, small] @ V.T
    np.testing.assert_allclose(np.linalg.svd(spiked_polar(matrix, 0.0), compute_uv=False)[:2], 1.0, rtol=1e-6)
