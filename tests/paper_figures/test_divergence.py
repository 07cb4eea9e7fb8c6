"""Divergence of spectral estimators: against Jacobians, 60-digit arithmetic, and the theorem it serves."""

from __future__ import annotations

import math

import mpmath
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from paper_figures.shrinkers import spectral_divergence
from paper_figures.shrinkers._divergence import squared_jacobian_trace

SEEDS = st.integers(0, 2**32 - 1)
SIDES = st.integers(1, 5)


def smooth(y):
    """An odd function with an even one's curvature, and its derivative."""
    return y**3 / (1 + y**2), (3 * y**2 + y**4) / (1 + y**2) ** 2


def apply_spectrally(y):
    """``Y (YᵀY) (I + YᵀY)⁻¹``, whose singular values are smooth(y_i), without a decomposition."""
    gram = y.T @ y
    return torch.linalg.solve(torch.eye(len(gram), dtype=y.dtype) + gram, gram @ y.T).T


def jacobian(y):
    size = y.numel()
    return torch.autograd.functional.jacobian(apply_spectrally, y).reshape(size, size)


@given(SEEDS, SIDES, SIDES)
def test_equals_the_trace_of_the_jacobian(seed, m, n):
    """Both traces, of J and J², by automatic differentiation of a matrix function written without an SVD."""
    y = torch.from_numpy(np.random.default_rng(seed).standard_normal((m, n)))
    values = torch.linalg.svdvals(y).numpy()
    J = jacobian(y)
    assert spectral_divergence(values, *smooth(values), (m, n)) == pytest.approx(float(J.trace()), rel=1e-8)
    squared = squared_jacobian_trace(values, *smooth(values), (m, n))
    assert squared == pytest.approx(float((J @ J).trace()), rel=1e-8)


@pytest.mark.parametrize("shape", [(3, 3), (3, 5), (5, 3)], ids=str)
@pytest.mark.parametrize("values", [(2.0, 2.0, 2.0), (2.0, 2.0, 0.5), (1.5, 0.0, 0.0), (0.0, 0.0, 0.0)], ids=str)
def test_repeated_and_vanishing_values(shape, values):
    """The limit forms, at matrices where the plain formula is 0/0."""
    m, n = shape
    y = torch.zeros(m, n, dtype=torch.float64)
    y[range(3), range(3)] = torch.tensor(values, dtype=torch.float64)
    J = jacobian(y)
    observed = np.array(values)
    assert spectral_divergence(observed, *smooth(observed), shape) == pytest.approx(float(J.trace()), abs=1e-12)
    squared = squared_jacobian_trace(observed, *smooth(observed), shape)
    assert squared == pytest.approx(float((J @ J).trace()), abs=1e-12)


def exact_divergence(values, shape):
    """The formula as it stands in the literature, in 60 digits."""
    with mpmath.workdps(60):
        y = [mpmath.mpf(float(v)) for v in values]
        f, slope = zip(*(smooth(v) for v in y), strict=True)
        pairs = [(i, j) for i in range(len(y)) for j in range(i)]
        total = sum(slope) + abs(shape[0] - shape[1]) * sum(a / b for a, b in zip(f, y, strict=True))
        total += 2 * sum((y[i] * f[i] - y[j] * f[j]) / (y[i] ** 2 - y[j] ** 2) for i, j in pairs)
        return float(total)


@given(st.floats(-15, -0.5), st.floats(-9, -0.5), st.floats(0.01, 50.0), st.integers(0, 3))
def test_close_values(gap, other_gap, y, excess):
    """1e-9 accurate however close values are, where plain floats lose everything."""
    values = y * np.array([1 + 10**gap + 10**other_gap, 1 + 10**gap, 1.0])
    if len(set(values)) == 3:
        actual = spectral_divergence(values, *smooth(values), (3, 3 + excess))
        assert actual == pytest.approx(exact_divergence(values, (3, 3 + excess)), rel=1e-9)


def test_identity_and_scale():
    """The identity has divergence mn; units cancel, over three hundred orders of magnitude."""
    rng = np.random.default_rng(0)
    for m, n in ((1, 1), (1, 7), (4, 4), (6, 30), (30, 6)):
        values = rng.uniform(0, 3, min(m, n))
        assert spectral_divergence(values, values, np.ones_like(values), (m, n)) == pytest.approx(m * n, rel=1e-12)
    f, slope = smooth(values)
    expected = spectral_divergence(values, f, slope, (30, 6))
    for scale in (1e-140, 1e-3, 1e150):
        assert spectral_divergence(scale * values, scale * f, slope, (6, 30)) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize(("m", "n", "threshold"), [(6, 14, 3.0), (8, 8, 2.0), (14, 6, 4.0)])
def test_inner_product_with_the_clean_matrix_is_unbiased(m, n, threshold):
    """E[Σ f y - div] = E⟨f(Y), X⟩ within 4 standard errors; without one of its sums it is off by more than 20.

    The squared error of the estimate is ``‖f‖² + tr J²`` in the mean as well.
    """
    rng, draws, r = np.random.default_rng(2), 6000, min(m, n)
    clean = np.zeros((m, n))
    clean[range(r), range(r)] = 4 / np.arange(1, r + 1)
    U, y, Vt = np.linalg.svd(clean + rng.standard_normal((draws, m, n)), full_matrices=False)
    f, slope = np.maximum(y - threshold, 0), (y > threshold) * 1.0
    actual = np.einsum("bir,ij,brj,br->b", U, clean, Vt, f, optimize=True)
    product = (f * y).sum(-1)
    estimate = product - spectral_divergence(y, f, slope, (m, n))

    def deviation(values):
        errors = values - actual
        return abs(errors.mean()) / (errors.std() / math.sqrt(draws))

    assert deviation(estimate) < 4
    ratios = abs(n - m) * (f / y).sum(-1)
    assert deviation(product - slope.sum(-1) - ratios) > 20  # no pairs
    assert deviation(estimate + slope.sum(-1)) > 20  # no slopes
    if m != n:
        assert deviation(estimate + ratios) > 20  # no (n-m) term
    excess = (estimate - actual) ** 2 - (f**2).sum(-1) - squared_jacobian_trace(y, f, slope, (m, n))
    assert abs(excess.mean()) < 4 * excess.std() / math.sqrt(draws)
