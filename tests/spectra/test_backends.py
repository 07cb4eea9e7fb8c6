"""Backends of the denoiser against a full float64 SVD, and the completeness proof of the Lanczos run."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st

from dprmt.spectra import _backends
from dprmt.spectra._backends import lanczos, leading_spectrum
from tests.spectra.simulation import SEEDS, rotation


def with_singular_values(rng, values, columns, rows=None):
    left, right = rotation(rng, rows or len(values), len(values)), rotation(rng, columns, len(values))
    return left * values @ right.T


def with_eigenvalues(rng, values):
    Q = rotation(rng, len(values))
    matrix = Q * values @ Q.T
    return (matrix + matrix.T) / 2


def leading(matrix, edge, backend="auto", tensor=False):
    library = torch.from_numpy if tensor else np.asarray
    return leading_spectrum(library(matrix[None]), library(np.array([edge])), backend)


def assert_same_spectrum(matrix, spectrum, edge, tolerance):
    """All values above the edge, and a spectral projection equal to that of the float64 SVD."""
    left, values, _ = np.linalg.svd(matrix.astype(np.float64), full_matrices=False)
    count = int((values > edge).sum())
    found = np.asarray(spectrum.values)[0]
    assert (found > edge).sum() == count
    np.testing.assert_allclose(found[:count], values[:count], rtol=tolerance)
    U = np.asarray(spectrum.vectors, dtype=np.float64)[0, :, :count]
    np.testing.assert_allclose(U @ U.T, left[:, :count] @ left[:, :count].T, atol=10 * tolerance)


@given(
    SEEDS,
    st.integers(1, 40),
    st.integers(0, 60),
    st.sampled_from(["auto", "gram", "lanczos", "products", "svd"]),
    st.booleans(),
)
def test_small_matrices(seed, rows, extra, backend, tensor):
    """Every backend finds the singular values above the edge and their left vectors."""
    rng = np.random.default_rng(seed)
    edge = 2.0
    spikes = np.array([3.0, 5.0, 2.5, 9.0])[: rng.integers(0, 5)]
    values = np.concatenate([spikes, rng.uniform(0, 1.9, rows)])[:rows]
    matrix = with_singular_values(rng, values, rows + extra)
    assert_same_spectrum(matrix, leading(matrix, edge, backend, tensor), edge, 1e-10)


@pytest.mark.parametrize("backend", ["auto", "products"])
@pytest.mark.parametrize("library", ["numpy", "torch"])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("spikes", [[], [2.0], [1.01, 1.2, 1.2, 7.0], [1.5] * 9], ids=str)
def test_lanczos_on_a_bulk(spikes, dtype, library, backend):
    """No spike, one, a repeated pair among others, and nine equal ones."""
    rng = np.random.default_rng(len(spikes))
    rows, columns = 260, 300
    bulk = np.sqrt(np.linspace(1e-4, 0.999, rows - len(spikes)))
    matrix = with_singular_values(rng, np.concatenate([spikes, bulk]), columns).astype(dtype)
    spectrum = leading(matrix, 1.0, backend, library == "torch")
    assert spectrum.values.shape[-1] == max(1, len(spikes))
    assert_same_spectrum(matrix, spectrum, 1.0, 1e-4 if dtype is np.float32 else 1e-9)


@given(SEEDS, st.integers(0, 12), st.floats(0.9, 1.1))
def test_lanczos_is_complete_or_gives_up(seed, spikes, top):
    """A proven answer holds exactly the eigenvalues above the threshold, repeated ones included."""
    assume(abs(top - 1) > 1e-9)
    rng = np.random.default_rng(seed)
    raised = 1 + rng.exponential(1, spikes).round(1) + 0.01
    bulk = np.append(top, rng.uniform(0, min(top, 1), 219 - spikes))
    eigenvalues = np.sort(np.concatenate([raised, bulk]))
    matrix = with_eigenvalues(rng, eigenvalues)
    pairs = lanczos(matrix, 1.0, 1e-8)
    if pairs is not None:
        count = int((eigenvalues > 1).sum())
        assert int((pairs[0] > 1).sum()) == count
        np.testing.assert_allclose(pairs[0][1:], eigenvalues[220 - count :], rtol=1e-9)
        np.testing.assert_allclose(pairs[1].T @ pairs[1], np.eye(count + 1), atol=1e-10)
        residuals = np.linalg.norm(matrix @ pairs[1] - pairs[1] * pairs[0], axis=0)
        assert (residuals[1:] <= 1.01e-8).all()


@pytest.mark.parametrize("library", ["numpy", "torch"])
def test_lanczos_does_not_miss_a_vector_that_its_start_lacks(library):
    """An eigenvector orthogonal to the start vector enters by rounding alone; no answer may come before."""
    rng = np.random.default_rng(5)
    size = 400
    start = np.random.default_rng(0).standard_normal(size)
    hidden = rng.standard_normal(size)
    hidden -= start * (start @ hidden) / (start @ start)
    hidden /= np.linalg.norm(hidden)
    Q = np.linalg.qr(np.column_stack([hidden, rng.standard_normal((size, size - 1))]))[0]
    matrix = Q * np.concatenate([[1.7], np.linspace(0, 0.9, size - 1)]) @ Q.T
    matrix = (matrix + matrix.T) / 2
    pairs = lanczos(torch.from_numpy(matrix) if library == "torch" else matrix, 1.0, 1e-8)
    assert pairs is None or float(pairs[0][-1]) == pytest.approx(1.7)


def proven(matrix, basis, threshold, residual):
    θ, S = _backends.ritz_pairs(basis, matrix @ basis)
    return _backends._proven(θ, S, matrix, basis, matrix @ basis, threshold, residual)


@pytest.mark.parametrize("tensor", [False, True])
@pytest.mark.parametrize("strengths", [(1.2, 3.0), (12.0, 50.0)])
@pytest.mark.parametrize("shape", [(120, 130), (200, 200), (420, 420), (200, 900)])
def test_many_spikes(shape, strengths, tensor):
    """Half of the singular values above the edge, near it or far: decomposed in full, by another way per shape."""
    rng = np.random.default_rng(5)
    values = np.concatenate([np.linspace(*strengths, shape[0] // 2), np.linspace(0, 0.9, shape[0] - shape[0] // 2)])
    matrix = with_singular_values(rng, values, shape[1]).astype(np.float32)
    assert_same_spectrum(matrix, leading(matrix, 1.0, "auto", tensor), 1.0, 1e-5)


@pytest.mark.parametrize("library", ["numpy", "torch"])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("spikes", [(), (1.3,), (1.05, 1.1, 4.0)], ids=str)
def test_products_alone_are_proven_complete(spikes, dtype, library, monkeypatch):
    """On noise with few spikes nothing else is formed."""
    monkeypatch.delattr(_backends, "_gram")
    rng, shape = np.random.default_rng(3), (500, 700)
    edge = math.sqrt(shape[0]) + math.sqrt(shape[1])
    left, right = (rotation(rng, side, len(spikes)) for side in shape)
    noise = rng.standard_normal(shape) / (1.02 * edge)
    noise -= left @ (left.T @ noise)
    matrix = (noise + (left * spikes) @ right.T).astype(dtype)
    spectrum = leading(matrix, 1.0, "products", library == "torch")
    assert_same_spectrum(matrix, spectrum, 1.0, 1e-4 if dtype is np.float32 else 1e-9)
    top = np.linalg.svdvals(matrix.astype(float))[0]
    assert float(spectrum.values[0, 0]) == pytest.approx(top, rel=2e-3)


@pytest.mark.parametrize(("top", "said"), [(0.97, True), (1.05, False)])
def test_what_a_search_missed_is_seen(top, said):
    """The proof's own start sees an eigenvalue that is above the threshold, and proves that one below is."""
    values = np.append(np.linspace(0, 0.9, 399), top)
    block = np.random.default_rng(1).standard_normal((16, 400))
    found = _backends._nothing_above(lambda rows: rows * values, block, 1.0, 1e-12)
    assert bool(found) is said
    assert not said or float(found[0][0]) == pytest.approx(top, rel=1e-4)


@pytest.mark.parametrize("overlap", [0.5, 0.7, 1.0])
@pytest.mark.parametrize("top", [1.01, 1.5, 4.0])
def test_a_start_as_unlucky_as_is_allowed_for_proves_nothing(top, overlap):
    """A norm of 0.49 of 16 normal variables has probability 1e-12."""
    values = np.append(np.linspace(0, 0.8, 399), top)
    block = np.random.default_rng(2).standard_normal((16, 400))
    block[:, -1] *= overlap / np.linalg.norm(block[:, -1])
    assert not _backends._nothing_above(lambda rows: rows * values, block, 1.0, 1e-12)


def test_no_proof_where_the_threshold_is_within_the_bulk_top_or_rounding_is_large():
    values = np.append(np.linspace(0, 0.999, 399), 0.99999)
    block = np.random.default_rng(1).standard_normal((16, 400))
    assert _backends._nothing_above(lambda rows: rows * values, block, 1.0, 1e-12) is None
    below = np.linspace(0, 0.9, 400)
    assert _backends._nothing_above(lambda rows: rows * below, block, 1.0, 1e-12)
    assert _backends._nothing_above(lambda rows: rows * below, block, 1.0, 1e-1) is None


def test_no_proof_without_an_orthonormal_basis():
    """Ritz values bound eigenvalues from below only then; a slight skew already shifts them."""
    matrix = np.diag([3.0, 3.0, 0.5, 0.1])
    basis = np.eye(4)[:, :3]
    assert proven(matrix, basis, 1.0, 1e-6) is not None
    basis[0, 1] = 1e-9
    assert proven(matrix, basis, 1.0, 1e-6) is None


@pytest.mark.parametrize(("dtype", "rounding"), [(np.float32, 1e-9), (np.float64, 1e-15)])
@pytest.mark.parametrize("backend", ["gram", "lanczos", "products"])
@pytest.mark.parametrize("ratio", [1.5, 30.0, 3e3, 3e5])
def test_accuracy_at_every_dynamic_range(ratio, backend, dtype, rounding):
    """The error of a value next to the edge grows like s₁/b, as that of an SVD, and not like its square."""
    rng = np.random.default_rng(7)
    rows = 30 if backend == "gram" else 210
    values = np.concatenate([[ratio, 1.2], np.linspace(0, 0.9, rows - 2)])
    matrix = with_singular_values(rng, values, rows + 20)
    spectrum = leading(matrix.astype(dtype), 1.0, backend)
    assert spectrum.values.shape == (1, 2)
    assert spectrum.values[0, 1] == pytest.approx(1.2, rel=rounding * (1000 + ratio))


def test_stack_with_different_edges_and_ranges_is_padded():
    """Matrices of one stack get as many columns as the widest needs, each by the precision that it needs."""
    rng = np.random.default_rng(8)
    tops = ([], [1.5], [40.0, 2.0, 1.1], [1e5, 1.3])
    for rows, backend in ((20, "gram"), (210, "lanczos")):
        matrices = [
            with_singular_values(rng, np.concatenate([top, np.linspace(0, 0.9, rows - len(top))]), rows) for top in tops
        ]
        scales = np.array([1.0, 0.5, 2.0, 1.0])
        stack = np.stack([scale * matrix for scale, matrix in zip(scales, matrices, strict=True)])
        spectrum = leading_spectrum(stack.astype(np.float32), scales, backend)
        assert spectrum.vectors.shape == (4, rows, 3)
        for top, scale, values in zip(tops, scales, spectrum.values, strict=True):
            np.testing.assert_allclose(values[: len(top)], scale * np.array(top), rtol=3e-3)
            assert (values[len(top) :] <= scale).all()
