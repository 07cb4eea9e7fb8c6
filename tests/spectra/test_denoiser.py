"""The denoiser against Eq. 10 of arXiv:2510.01137v3 with a full SVD, its symmetries, and labels that it keeps."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dprmt.spectra import bulk_edge, shrink, spike_map, spike_map_inverse
from dprmt.testing import check_denoiser
from tests.spectra.simulation import SEEDS, denoise, relative_error, spiked

SIDES = st.integers(1, 24)
BACKENDS = ("auto", "gram", "lanczos", "products", "svd")


def literal_eta(y, shape, sigma):
    """Eq. 9, letter by letter, with λ̂ from the quartic."""
    m, n = shape
    if y <= sigma * (math.sqrt(m) + math.sqrt(n)):
        return 0.0
    c = y**2 - sigma**2 * (m + n)
    λ = math.sqrt((c + math.sqrt(c**2 - 4 * m * n * sigma**4)) / 2)
    left = (λ**4 - m * n * sigma**4) / (λ**4 + m * λ**2 * sigma**2)
    right = (λ**4 - m * n * sigma**4) / (λ**4 + n * λ**2 * sigma**2)
    return λ * math.sqrt(left) * math.sqrt(right)


def literal_denoise(noisy, sigma, kappa=1.02, norm_correction=True):
    """Eq. 10, letter by letter."""
    g = np.asarray(noisy, dtype=np.float64)
    m, n = g.shape
    U, λ, V = np.linalg.svd(g, full_matrices=False)
    τ = kappa * sigma * (math.sqrt(n) + math.sqrt(m))
    if λ[0] < τ:
        return g
    optimal = sum(literal_eta(λ[i], (m, n), sigma) * np.outer(U[:, i], V[i]) for i in range(len(λ)))
    return np.linalg.norm(g) / np.linalg.norm(optimal) * optimal if norm_correction else optimal


@given(SEEDS, SIDES, SIDES, st.sampled_from([0.0, 0.8, 1.1, 2.0, 6.0]), st.booleans(), st.sampled_from(BACKENDS))
def test_equals_the_literal_transcription(seed, m, n, signal, norm_correction, backend):
    """Denoise(Y) is Eq. 10, with and without norm correction, by every backend."""
    rng = np.random.default_rng(seed)
    noisy = spiked(rng, (m, n), [signal, signal / 2][: min(m, n)], sigma=0.3)
    expected = literal_denoise(noisy, 0.3, 1.02, norm_correction)
    assert relative_error(denoise(noisy, 0.3, 1.02, norm_correction, backend=backend), expected) < 1e-6


@pytest.mark.parametrize("shape", [(16, 768), (768, 16), (240, 300), (300, 240)], ids=str)
@pytest.mark.parametrize(
    ("dtype", "tolerance"),
    [(torch.float64, 1e-10), (torch.float32, 3e-6), (torch.bfloat16, 6e-3), (torch.float16, 1e-3)],
)
def test_dtypes_and_libraries(shape, dtype, tolerance):
    """NumPy and torch, float64 down to half precision, at the sizes of real layers."""
    noisy = torch.from_numpy(spiked(np.random.default_rng(0), shape, [1.5, 1.1, 0.9], 1e-3)).to(dtype)
    expected = literal_denoise(noisy.double().numpy(), 1e-3)
    denoised = denoise(noisy, 1e-3)
    assert (denoised.dtype, denoised.device, denoised.shape) == (noisy.dtype, noisy.device, noisy.shape)
    assert relative_error(denoised.double().numpy(), expected) < tolerance
    if dtype is not torch.bfloat16:
        from_numpy = denoise(noisy.numpy(), 1e-3)
        assert isinstance(from_numpy, np.ndarray)
        assert from_numpy.dtype == noisy.numpy().dtype
        assert relative_error(from_numpy, expected) < tolerance


@pytest.mark.parametrize("scale", [1e-37, 1e-20, 1e17, 1e37])
@pytest.mark.parametrize("library", [np.asarray, torch.from_numpy], ids=["numpy", "torch"])
def test_squares_do_not_leave_the_range_of_float32(scale, library):
    noisy = spiked(np.random.default_rng(2), (9, 30), [1.5]).astype(np.float32)
    tiny = denoise(library(np.float32(scale) * noisy), scale)
    assert relative_error(np.asarray(tiny, np.float64) / scale, denoise(noisy, 1.0)) < 1e-5


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("norm_correction", [True, False])
def test_symmetries(norm_correction, backend):
    """Only singular values count: rotations, the transpose and scale commute with it; nothing is removed at σ = 0."""
    denoiser = partial(denoise, norm_correction=norm_correction, backend=backend)
    check_denoiser(denoiser, promise=None, examples=25)


@given(SEEDS, SIDES, SIDES, st.floats(1, 3), st.floats(-1, 1))
def test_gate_is_at_kappa_times_the_bulk_edge(seed, m, n, kappa, offset):
    """Y comes back to the last bit if s₁ < κb, and not otherwise (one value in a thousand on either side)."""
    rng = np.random.default_rng(seed)
    other = np.linspace(0.1, 0.9, min(m, n))
    left, right = (np.linalg.qr(rng.standard_normal((side, min(m, n))))[0] for side in (m, n))
    inside = kappa * (1 - 1e-3 * abs(offset) - 1e-6)
    outside = kappa * (1 + 1e-3 * abs(offset) + 1e-6)
    for top, passes in ((inside, False), (outside, True)):
        other[0] = top
        noisy = bulk_edge((m, n), 0.7) * (left * other @ right.T)
        for dtype in (np.float64, np.float32):
            before = noisy.astype(dtype)
            after = denoise(before, 0.7, kappa, norm_correction=False)
            assert (after is not before) == passes
            assert np.array_equal(after, before) != passes


@pytest.mark.parametrize("library", [np.asarray, torch.from_numpy], ids=["numpy", "torch"])
@pytest.mark.parametrize("shape", [(2, 3, 12, 40), (2, 3, 40, 12), (6, 210, 212)], ids=str)
def test_batch_is_the_matrices_one_by_one(shape, library):
    """Leading axes are a batch; the matrices in it that do not pass the gate keep every bit."""
    rng = np.random.default_rng(4)
    stack = np.stack([spiked(rng, shape[-2:], [signal]) for signal in (0, 2, 0.5, 1.4, 30, 0)]).reshape(shape)
    denoised = denoise(library(stack), 1.0)
    assert tuple(denoised.shape) == shape
    changed = []
    for noisy, result in zip(stack.reshape(6, *shape[-2:]), np.asarray(denoised).reshape(6, *shape[-2:]), strict=True):
        single = denoise(noisy, 1.0)
        changed.append(single is not noisy)
        if single is noisy:
            assert np.array_equal(result, noisy)
        else:
            assert relative_error(result, single) < 1e-9
    assert changed == [False, True, False, True, True, False]


@pytest.mark.parametrize("kappa", [1.02, 1.0])
def test_argument_is_not_modified(kappa):
    rng = np.random.default_rng(5)
    for shape in ((3, 8, 50), (8, 50), (50, 8)):
        noisy = spiked(rng, shape[-2:], [3.0]) + np.zeros(shape)
        noisy[1:] *= 0.1 if len(shape) == 3 else 1.0
        before = noisy.copy()
        denoise(noisy, 1.0, kappa)
        denoise(torch.from_numpy(noisy), 1.0, kappa)
        assert np.array_equal(noisy, before)


def test_a_matrix_with_nothing_to_remove_or_to_rescale_comes_back_itself():
    """Without noise; and where every value is shrunk to 0: rescaling is impossible then.

    At κ = 1 that is a top value at the edge to the last bit; by the nuclear loss one above it, too.
    """
    tensor = torch.ones(2, 3, 4, dtype=torch.bfloat16)
    assert denoise(tensor, 0) is tensor
    for zero, sigma in ((np.ones((3, 4)), 0.0), (np.zeros((3, 4)), 1.0)):
        assert denoise(zero, sigma) is zero
    matrix, other = 6.0 * np.eye(4, 16), np.zeros((4, 16))
    assert bulk_edge((4, 16), 1.0) == 6.0
    assert denoise(matrix, 1.0, kappa=1.0) is matrix
    assert not denoise(matrix, 1.0, kappa=1.0, norm_correction=False).any()
    other[1, 2] = 6.15
    assert not denoise(other, 1.0, 1.02, norm_correction=False, loss="nuclear").any()
    assert denoise(other, 1.0, 1.02, loss="nuclear") is other
    assert denoise(other, 1.0, 1.02) is not other


@pytest.mark.parametrize("loss", ["frobenius", "operator", "nuclear"])
def test_losses(loss):
    """Without norm correction the singular values are those of `shrink`."""
    noisy = spiked(np.random.default_rng(7), (12, 50), [2.0, 1.2])
    values = np.linalg.svd(noisy, compute_uv=False)
    denoised = denoise(noisy, 1.0, norm_correction=False, loss=loss)
    expected = shrink(values, (12, 50), 1.0, loss=loss)
    np.testing.assert_allclose(np.linalg.svd(denoised, compute_uv=False), expected, atol=1e-9)
    assert np.linalg.norm(denoise(noisy, 1.0, loss=loss)) == pytest.approx(np.linalg.norm(noisy))


def test_tensor_that_requires_grad():
    tensor = torch.from_numpy(spiked(np.random.default_rng(8), (6, 30), [2.0])).requires_grad_()
    denoised = denoise(tensor, 1.0)
    assert not denoised.requires_grad
    assert relative_error(denoised, literal_denoise(tensor.detach(), 1.0)) < 1e-9
    stack = torch.stack([tensor, 0 * tensor])
    assert not denoise(stack, 1.0).requires_grad


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", [(5, 16, 768), (768, 16), (400, 900)], ids=str)
def test_device_agrees_with_the_host(shape, dtype):
    """Same result on the device and on the host, and it stays on the device."""
    if not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")
    noisy = torch.from_numpy(spiked(np.random.default_rng(11), shape[-2:], [1.5, 1.1])).to(dtype)
    noisy = noisy.expand(shape).contiguous()
    on_device = denoise(noisy.cuda(), 1.0)
    assert on_device.is_cuda
    assert on_device.dtype == dtype
    tolerance = {torch.float64: 1e-9, torch.float32: 1e-5, torch.bfloat16: 1e-2}[dtype]
    assert relative_error(on_device.cpu().double(), denoise(noisy, 1.0).double()) < tolerance
    assert denoise(torch.zeros(shape, device="cuda"), 1.0).is_cuda


RNG = np.random.default_rng(0)
NOISY = RNG.standard_normal((6, 20)) + 30 * np.outer(np.eye(6)[0], np.eye(20)[0])
FRAME = pd.DataFrame(NOISY, index=list("abcdef"), columns=[f"x{i}" for i in range(20)])


def test_a_frame_keeps_rows_and_columns() -> None:
    found = denoise(FRAME, 1.0)
    assert isinstance(found, pd.DataFrame)
    np.testing.assert_allclose(found.to_numpy(), denoise(NOISY, 1.0), rtol=1e-9, atol=1e-12)
    assert (list(found.index), list(found.columns)) == (list(FRAME.index), list(FRAME.columns))
    assert type(denoise(NOISY, 1.0)) is np.ndarray
    assert type(denoise(torch.tensor(NOISY), 1.0)) is torch.Tensor


@pytest.mark.parametrize("function", [spike_map, spike_map_inverse, shrink])
def test_a_series_keeps_index_and_name(function: Any) -> None:
    values = pd.Series([9.0, 30.0], index=["weak", "strong"], name="top")
    found = function(values, (6, 20), 1.0)
    assert isinstance(found, pd.Series)
    assert (list(found.index), found.name) == (["weak", "strong"], "top")
    np.testing.assert_array_equal(found.to_numpy(), function(values.to_numpy(), (6, 20), 1.0))


def test_a_data_array_keeps_dimensions_coordinates_and_name() -> None:
    xarray = pytest.importorskip("xarray")
    names = [f"neuron {i}" for i in range(NOISY.shape[0])]
    labelled = xarray.DataArray(NOISY, dims=("row", "column"), coords={"row": names}, name="layer")
    found = denoise(labelled, 1.0)
    assert isinstance(found, xarray.DataArray)
    assert (found.dims, found.name, list(found.coords["row"].to_numpy())) == (("row", "column"), "layer", names)
    np.testing.assert_array_equal(found.to_numpy(), denoise(NOISY, 1.0))
