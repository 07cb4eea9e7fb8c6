"""The blend of shrinkers: its divergence, the weights, the guarantee, simulations, layers and memory."""

from __future__ import annotations

import math

import mpmath
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from paper_figures.shrinkers import blend
from paper_figures.shrinkers._blend import divergence, fit_weights, members, moments_of
from tests.spectra.simulation import SEEDS, relative_error

SIDES = st.integers(1, 20)
DECAYS = {
    "one": lambda i: i == 1,
    "flat": lambda i: i <= 8,
    "power": lambda i: i**-0.5,
    "harmonic": lambda i: 1 / i,
    "exponential": lambda i: np.exp(-(i - 1) / 3),
    "bulk": lambda i: i > 0,
}


def clean_matrix(shape, decay, top):
    """Diagonal, with top singular value in units of the detection threshold of unit noise."""
    r = min(shape)
    clean = np.zeros(shape)
    clean[range(r), range(r)] = DECAYS[decay](np.arange(1, r + 1)) * top * math.prod(shape) ** 0.25
    return clean


def noisy_matrix(rng, shape, decay="harmonic", top=2.0, sigma=1.0):
    return sigma * (clean_matrix(shape, decay, top) + rng.standard_normal(shape))


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


@given(SEEDS, st.integers(1, 5), st.integers(1, 5))
def test_equals_the_trace_of_the_jacobian(seed, m, n):
    """Both traces, of J and J², by automatic differentiation of a matrix function written without an SVD."""
    y = torch.from_numpy(np.random.default_rng(seed).standard_normal((m, n)))
    values = torch.linalg.svdvals(y).numpy()
    J = jacobian(y)
    expected = float(J.trace()), float((J @ J).trace())
    assert divergence(values, *smooth(values), (m, n)) == pytest.approx(expected, rel=1e-8)


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
        actual, _ = divergence(values, *smooth(values), (3, 3 + excess))
        assert actual == pytest.approx(exact_divergence(values, (3, 3 + excess)), rel=1e-9)


@given(SEEDS, SIDES, SIDES, st.floats(0, 10), st.sampled_from(list(DECAYS)))
def test_estimated_cosine_is_never_below_that_of_doing_nothing(seed, m, n, top, decay):
    """wᵀc/√(wᵀΓw) >= c_0/‖Y‖ with the unbiased c, by the margin that caution demands; all 0 only if c_0 <= 0."""
    noisy = noisy_matrix(np.random.default_rng(seed), (m, n), decay, top)
    c, gram, variances = moments = moments_of(np.linalg.svd(noisy, compute_uv=False), (m, n))
    w = fit_weights(moments)
    assert (w >= 0).all()
    if not w.any():
        assert c[0] <= 0
        return
    length, norm, s = math.sqrt(w @ gram @ w), math.sqrt(gram[0, 0]), np.sqrt(variances)
    margin = s[0] * (1 / norm - w[0] / length) + w[1:3] @ s[1:3] / length
    assert margin >= -1e-7
    assert w @ c / length - c[0] / norm >= 0.75 * margin - 1e-6
    assert w @ c == pytest.approx(length**2, rel=1e-9)  # a least-squares estimate


def test_estimates_of_all_members_are_unbiased():
    """E c_k = E⟨f_k(Y), X⟩ for each member, and the errors have the stated variance."""
    rng, draws, shape = np.random.default_rng(1), 1500, (8, 20)
    clean = clean_matrix(shape, "power", 1.3)
    U, y, Vt = np.linalg.svd(clean + rng.standard_normal((draws, *shape)), full_matrices=False)
    overlaps = np.einsum("bir,ij,brj->br", U, clean, Vt, optimize=True)
    found = [moments_of(values, shape) for values in y]
    errors = np.array([m.inner_products - members(v, shape) @ o for m, v, o in zip(found, y, overlaps, strict=True)])
    assert (abs(errors.mean(0)) < 4 * errors.std(0) / math.sqrt(draws)).all()
    excess = errors**2 - np.array([m.variances for m in found])
    assert (abs(excess.mean(0)) < 4 * excess.std(0) / math.sqrt(draws)).all()


@given(SEEDS, SIDES, SIDES, st.floats(0, 5))
def test_norm_is_kept_and_scale_is_no_matter(seed, m, n, top):
    y = noisy_matrix(np.random.default_rng(seed), (m, n), top=top)
    blended = blend(y, 1.0)
    assert np.linalg.norm(blended) == pytest.approx(np.linalg.norm(y), rel=1e-12)
    assert relative_error(blend(1e5 * y, 1e5), 1e5 * blended) < 1e-9
    assert relative_error(blend(y.T, 1.0), blended.T) < 1e-7
