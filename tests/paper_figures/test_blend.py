"""The blend of shrinkers: optimality of the weights, the guarantee, simulations, symmetries and numerics."""

from __future__ import annotations

import math

import numpy as np
import pytest
import scipy
import torch
from hypothesis import given
from hypothesis import strategies as st

from dprmt.spectra import cosine_similarity
from paper_figures.shrinkers import blend
from paper_figures.shrinkers._blend_weights import (
    NAMES,
    Moments,
    estimated_gain,
    fit_weights,
    inner_product,
    members,
    moments_of,
    squared_norm,
)
from tests.spectra.simulation import denoise

SEEDS = st.integers(0, 2**32 - 1)
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


def relative_error(actual, expected):
    actual, expected = np.asarray(actual, np.float64), np.asarray(expected, np.float64)
    return np.linalg.norm(actual - expected) / np.linalg.norm(expected)


# The weights


def brute_force_divergence(f, y, step=1e-5):
    """Σ ∂f(Y)_ij/∂Y_ij by central differences of the matrix function itself."""

    def entry(i, j, sign):
        moved = y.copy()
        moved[i, j] += sign * step
        U, values, Vt = np.linalg.svd(moved, full_matrices=False)
        return (U[i] * f(values)) @ Vt[:, j]

    return sum((entry(i, j, 1) - entry(i, j, -1)) / (2 * step) for i, j in np.ndindex(*y.shape))


def literal_blend(y, sigma, norm_correction=True):
    """The estimator from its definition: full SVD, numerical Jacobians, SciPy's non-negative least squares."""
    m, n = y.shape
    U, values, Vt = np.linalg.svd(y / sigma, full_matrices=False)
    inner, outer = abs(math.sqrt(n) - math.sqrt(m)), math.sqrt(n) + math.sqrt(m)
    functions = [lambda v: v]
    if min(m, n) > 1:
        for q in (0.6, 0.8, 1.0):
            functions.append(lambda v, t=inner + q * (outer - inner): np.maximum(v - t, 0))
    F = np.array([f(values) for f in functions])
    c = np.array([f(values) @ values - brute_force_divergence(f, y / sigma) for f in functions])
    caution = np.zeros(len(functions))
    for k in range(min(3, len(functions))):  # all but the threshold at the edge
        J = numerical_jacobian(functions[k], y / sigma)
        caution[k] = (0.75 if k == 0 else -0.75) * math.sqrt(F[k] @ F[k] + np.trace(J @ J))
    gram = F @ F.T + 1e-13 * np.diag(np.diag(F @ F.T)) + 1e-30 * np.eye(len(F))
    L = np.linalg.cholesky(gram)
    weights, _ = scipy.optimize.nnls(L.T, np.linalg.solve(L, c + caution))
    product, square = weights @ c, np.sum((weights @ F) ** 2)
    if product <= 0:
        return y
    blended = (U * (weights @ F)) @ Vt * sigma
    if norm_correction:
        return blended * np.linalg.norm(y) / np.linalg.norm(blended)
    return blended * product / square


def numerical_jacobian(f, y, step=1e-5):
    def value(entry, sign):
        moved = y.copy().reshape(-1)
        moved[entry] += sign * step
        U, values, Vt = np.linalg.svd(moved.reshape(y.shape), full_matrices=False)
        return ((U * f(values)) @ Vt).reshape(-1)

    return np.array([(value(i, 1) - value(i, -1)) / (2 * step) for i in range(y.size)])


@pytest.mark.parametrize("norm_correction", [True, False])
@pytest.mark.parametrize("shape", [(5, 8), (8, 5), (6, 6), (1, 7)], ids=str)
def test_equals_the_literal_transcription(shape, norm_correction):
    """Against Jacobians by finite differences and another solver, for signals from none to strong."""
    rng, changed = np.random.default_rng(0), 0
    for top in (0.0, 1.0, 2.0, 5.0):
        for _ in range(3):
            y = noisy_matrix(rng, shape, "harmonic", top, sigma=0.3)
            expected = literal_blend(y, 0.3, norm_correction)
            assert relative_error(blend(y, 0.3, norm_correction), expected) < 1e-6
            changed += expected is not y
    assert changed > 3


def spectra(seed, m, n, top, decay="harmonic", draws=8):
    noisy = clean_matrix((m, n), decay, top) + np.random.default_rng(seed).standard_normal((draws, m, n))
    return np.linalg.svd(noisy, compute_uv=False)


@given(SEEDS, SIDES, SIDES, st.floats(0, 10), st.sampled_from(list(DECAYS)))
def test_estimated_cosine_is_never_below_that_of_doing_nothing(seed, m, n, top, decay):
    """wᵀc/√(wᵀΓw) >= c_0/‖Y‖ with the unbiased c, by the margin that caution demands; all 0 only if c_0 <= 0."""
    moments = moments_of(spectra(seed, m, n, top, decay), (m, n))
    c, gram, variances = moments
    w = fit_weights(moments)
    assert (w >= 0).all()
    found = w.any(-1)
    assert (c[~found, 0] <= 0).all()
    length, noisy = np.sqrt(squared_norm(w, gram))[found], np.sqrt(gram[found, 0, 0])
    gain = inner_product(w, c)[found] / length - c[found, 0] / noisy
    s, w = np.sqrt(variances[found]), w[found]
    margin = s[:, 0] * (1 / noisy - w[:, 0] / length) + (w[:, 1:3] * s[:, 1:3]).sum(-1) / length
    assert (margin >= -1e-7).all()
    assert (gain >= 0.75 * margin - 1e-6).all()
    assert np.allclose(inner_product(w, c[found]), length**2, rtol=1e-9)  # a least-squares estimate


@given(SEEDS, st.integers(2, 12), st.integers(2, 12), st.floats(0.3, 10), st.sampled_from(list(DECAYS)))
def test_oracle_inequality(seed, m, n, top, decay):
    """Told the true inner products, no non-negative combination is better, and none is worse than Y."""
    rng = np.random.default_rng(seed)
    clean = clean_matrix((m, n), decay, top)
    U, y, Vt = np.linalg.svd(clean + rng.standard_normal((m, n)), full_matrices=False)
    overlaps = np.einsum("ir,ij,rj->r", U, clean, Vt)
    f = members(y[None], (m, n))
    exact = Moments(f @ overlaps, f @ f.swapaxes(-1, -2), np.zeros((1, len(NAMES))))
    w = fit_weights(exact)

    def cosine(weights):
        shrunk = weights @ f[0]
        return shrunk @ overlaps / np.linalg.norm(shrunk) / np.linalg.norm(clean)

    if not w.any():
        assert (f @ overlaps <= 1e-9).all()
        return
    best = cosine(w[0])
    scales = 1 / np.maximum(np.linalg.norm(f[0], axis=-1), 1e-12)
    rivals = [*np.eye(len(NAMES)), *rng.exponential(size=(50, len(NAMES))) ** 3]
    for rival in rivals:
        if (rival * scales) @ f[0] @ y > 1e-6:
            assert cosine(rival * scales) <= best + 1e-6
    true_gain = best - max(0.0, cosine(np.eye(len(NAMES))[0]))
    estimate = Moments(exact.inner_products.copy(), *exact[1:])
    estimate.inner_products[0, 0] = np.sum(clean**2)  # ‖X‖² in its place, where ‖X‖ is read off
    assert true_gain >= -1e-9
    assert 0 <= estimated_gain(w, estimate)[0] <= 1


def test_estimates_of_all_members_are_unbiased():
    """E c_k = E⟨f_k(Y), X⟩ for each member, and the errors have the stated variance."""
    rng, draws, shape = np.random.default_rng(1), 4000, (8, 20)
    clean = clean_matrix(shape, "power", 1.3)
    U, y, Vt = np.linalg.svd(clean + rng.standard_normal((draws, *shape)), full_matrices=False)
    overlaps = np.einsum("bir,ij,brj->br", U, clean, Vt, optimize=True)
    moments = moments_of(y, shape)
    errors = moments.inner_products - np.einsum("bkr,br->bk", members(y, shape), overlaps)
    assert (abs(errors.mean(0)) < 4 * errors.std(0) / math.sqrt(draws)).all()
    excess = errors**2 - moments.variances
    assert (abs(excess.mean(0)) < 4 * excess.std(0) / math.sqrt(draws)).all()


# What it is good for


def cosines(shape, decay, top, draws, seed):
    """Cosines with the clean matrix: of the noisy one, behind the gate, and blended."""
    clean = clean_matrix(shape, decay, top).astype(np.float32)
    noise = np.random.default_rng(seed).standard_normal((draws, *shape), dtype=np.float32)
    noisy = clean + noise
    unit = clean / np.linalg.norm(clean)

    def against_clean(y):
        return (y * unit).sum((-1, -2)) / np.sqrt((y.astype(np.float64) ** 2).sum((-1, -2)))

    return against_clean(noisy), against_clean(denoise(noisy, 1.0)), against_clean(blend(noisy, 1.0))


SIMULATIONS = [  # shape, spectrum, top in units of the detection threshold, draws, what it must be better than
    ((16, 768), "power", 1.3, 300, ("noisy", "gate")),
    ((16, 768), "power", 0.5, 1000, ()),
    ((16, 768), "bulk", 0.5, 1000, ("gate",)),
    ((16, 768), "one", 0.5, 600, ()),
    ((16, 768), "one", 2.0, 400, ("noisy",)),
    ((16, 768), "harmonic", 10.0, 60, ("noisy",)),
    ((768, 16), "flat", 1.0, 300, ("noisy", "gate")),
    ((16, 384), "one", 1.5, 1000, ("noisy",)),
    ((16, 384), "exponential", 1.0, 800, ("noisy", "gate")),
    ((64, 256), "one", 1.2, 300, ("noisy", "gate")),
    ((64, 256), "bulk", 0.5, 150, ("gate",)),
    ((128, 128), "power", 2.0, 150, ("noisy", "gate")),
    ((256, 256), "power", 1.3, 40, ("noisy", "gate")),
    ((256, 256), "exponential", 1.3, 60, ("noisy",)),
    ((4, 400), "power", 1.0, 3000, ("gate",)),
    ((2, 2), "one", 1.0, 10000, ()),
    ((8, 8), "harmonic", 1.5, 6000, ("noisy", "gate")),
]


@pytest.mark.parametrize(("shape", "decay", "top", "draws", "better_than"), SIMULATIONS, ids=str)
def test_mean_cosine(shape, decay, top, draws, better_than):
    """Never below the noisy matrix by 0.005, nor below the gate by 0.02; better where it should be: by 4 errors."""
    noisy, gated, blended = cosines(shape, decay, top, draws, seed=5)
    for name, rival, tolerance in (("noisy", noisy, 0.005), ("gate", gated, 0.02)):
        gain = blended - rival
        error = gain.std() / math.sqrt(draws)
        assert gain.mean() - 4 * error > (0 if name in better_than else -tolerance)


# Symmetries and numerics


@given(SEEDS, SIDES, SIDES, st.floats(0, 5), st.booleans())
def test_orthogonal_equivariance_and_transposition(seed, m, n, top, norm_correction):
    """blend(QYR) = Q·blend(Y)·R and blend(Yᵀ) = blend(Y)ᵀ: only singular values count."""
    rng = np.random.default_rng(seed)
    y = noisy_matrix(rng, (m, n), top=top)
    Q, R = (np.linalg.qr(rng.standard_normal((side, side)))[0] for side in (m, n))
    expected = blend(y, 1.0, norm_correction)
    assert relative_error(blend(Q @ y @ R, 1.0, norm_correction), Q @ expected @ R) < 1e-7
    assert relative_error(blend(y.T, 1.0, norm_correction), expected.T) < 1e-7


@given(SEEDS, SIDES, SIDES, st.floats(0, 5), st.floats(-200, 200), st.booleans())
def test_scale_equivariance(seed, m, n, top, exponent, norm_correction):
    """blend(cY; cσ) = c·blend(Y; σ), over four hundred orders of magnitude."""
    y = noisy_matrix(np.random.default_rng(seed), (m, n), top=top)
    c = 10.0**exponent
    expected = blend(y, 1.0, norm_correction)
    assert relative_error(blend(c * y, c, norm_correction) / c, expected) < 1e-6


@given(SEEDS, SIDES, SIDES, st.floats(0, 5))
def test_norm_is_kept(seed, m, n, top):
    y = noisy_matrix(np.random.default_rng(seed), (m, n), top=top)
    assert np.linalg.norm(blend(y, 1.0)) == pytest.approx(np.linalg.norm(y), rel=1e-12)


@given(SEEDS, SIDES, SIDES, st.booleans())
@pytest.mark.parametrize("library", [np.asarray, torch.from_numpy], ids=["numpy", "torch"])
def test_batches(library, seed, m, n, norm_correction):
    """A stack is a set of independent matrices; those that do not change keep every bit."""
    rng = np.random.default_rng(seed)
    stack = np.stack([noisy_matrix(rng, (m, n), top=top) for top in (0.0, 0.0, 3.0, 0.5, 6.0, 0.0)]).reshape(2, 3, m, n)
    before = stack.copy()
    together = np.asarray(blend(library(stack), 1.0, norm_correction))
    assert np.array_equal(stack, before)
    for i in np.ndindex(2, 3):
        alone = blend(library(stack[i]), 1.0, norm_correction)
        assert relative_error(together[i], alone) < 1e-10
        if np.array_equal(np.asarray(alone), stack[i]):
            assert np.array_equal(together[i], stack[i])


def test_without_norm_correction_it_is_an_estimate_of_the_clean_matrix():
    """Same direction, and a smaller squared error than both the norm-corrected and the noisy one."""
    rng = np.random.default_rng(5)
    clean = clean_matrix((12, 80), "harmonic", 2.0)
    noisy = clean + rng.standard_normal((50, 12, 80))
    kept, shrunk = blend(noisy, 1.0), blend(noisy, 1.0, norm_correction=False)
    errors = [((y - clean) ** 2).sum((-1, -2)).mean() for y in (shrunk, kept, noisy)]
    assert errors[0] < errors[1] < errors[2]
    assert errors[0] < 0.8 * np.sum(clean**2)  # the error of the estimate 0
    assert all(cosine_similarity(a, b) > 1 - 1e-9 for a, b in zip(kept, shrunk, strict=True))
