"""Finite matrices give finite results: what does not fit the dtype is left unscaled, or refused."""

from __future__ import annotations

import contextlib

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dprmt import ParameterError
from paper_figures.shrinkers import BlendMemory, blend, blend_layers
from tests.spectra.simulation import denoise, denoise_layers

LIBRARIES = pytest.mark.parametrize("library", [np.asarray, torch.from_numpy], ids=["numpy", "torch"])
SIGMA = 4000.0


def near_the_limit(seed=0, entries=(6e4, 5e4)):
    """A float16 matrix of noise with two entries near 65504, whose rescaled denoised version is beyond it."""
    matrix = SIGMA * np.random.default_rng(seed).standard_normal((64, 64))
    matrix[0, : len(entries)] = entries
    return matrix.astype(np.float16)


def by_layers(function, matrix, **options):
    result, report = function({"other": matrix[:5], "w": matrix}, SIGMA, **options)
    assert report["w"].denoised
    return result["w"]


WAYS = {
    "denoise": lambda matrix, **options: denoise(matrix, SIGMA, **options),
    "blend": lambda matrix, **options: blend(matrix, SIGMA, **options),
    "denoise_layers": lambda matrix, **options: by_layers(denoise_layers, matrix, **options),
    "blend_layers": lambda matrix, **options: by_layers(blend_layers, matrix, **options),
}


@LIBRARIES
@pytest.mark.parametrize("way", WAYS)
def test_what_does_not_fit_is_not_rescaled(way, library):
    """The rescaled version of this matrix has entries beyond 65504; the shrunk one has not."""
    matrix = near_the_limit()
    wide = WAYS[way](matrix.astype(np.float32))
    assert abs(wide).max() > np.finfo(np.float16).max
    result = np.asarray(WAYS[way](library(matrix)))
    assert result.dtype == np.float16
    assert np.isfinite(result).all()
    unscaled = WAYS[way](matrix.astype(np.float32), norm_correction=False)
    np.testing.assert_allclose(result.astype(np.float32), unscaled, rtol=2e-3, atol=1.0)


@LIBRARIES
def test_others_of_the_stack_keep_their_norm(library):
    fits = near_the_limit(1, entries=(3e4, 2e4))
    noise = (SIGMA * np.random.default_rng(2).standard_normal((64, 64))).astype(np.float16)
    result = np.asarray(denoise(library(np.stack([noise, fits, near_the_limit()])), SIGMA)).astype(np.float32)
    assert np.array_equal(result[0], noise)
    np.testing.assert_allclose(result[1], denoise(fits.astype(np.float32), SIGMA), rtol=2e-3, atol=1.0)
    np.testing.assert_allclose(result[2], denoise(near_the_limit(), SIGMA).astype(np.float32), rtol=2e-3, atol=1.0)


@LIBRARIES
@pytest.mark.parametrize("way", WAYS)
def test_what_fits_neither_way_is_refused(way, library):
    """Entries all near the limit: smoothing puts some of the estimate beyond it, without any rescaling."""
    matrix = np.full((64, 64), np.finfo(np.float16).max)
    matrix[::2, ::2] *= 1 - 2.0**-10
    matrix[0, :] = -np.finfo(np.float16).max
    matrix[:, 0] = np.finfo(np.float16).max
    matrix = matrix.astype(np.float16)
    matrix[0, 0] = 0.0
    wide = WAYS[way](matrix.astype(np.float32), norm_correction=False)
    if abs(wide).max() <= np.finfo(np.float16).max:
        pytest.fail("the example no longer leaves the range")
    with pytest.raises(ParameterError, match=r"a matrix whose denoised version fits .*float16"):
        WAYS[way](library(matrix))


@LIBRARIES
def test_a_common_scale_that_does_not_fit_is_refused(library):
    """Least-squares weights share one factor between layers: one of them alone must not leave it."""
    noise = (SIGMA * np.random.default_rng(2).standard_normal((64, 64))).astype(np.float16)
    layers = {"w": library(near_the_limit()), "v": library(noise)}
    memory = BlendMemory()
    with pytest.raises(ParameterError, match=r"layers\['w'\] must be a matrix whose denoised version fits"):
        blend_layers(layers, SIGMA, layer_weights="least-squares", memory=memory)
    assert len(memory) == 0
    exact = {"w": library(near_the_limit()), "v": library(noise)}
    with pytest.raises(ParameterError, match=r"layers\['w'\] times .* must be finite in every entry, got inf"):
        blend_layers(exact, {"w": 0.0, "v": SIGMA}, layer_weights="least-squares")


@given(st.integers(0, 2**32 - 1), st.floats(2.0, 4.8), st.floats(0.3, 1.0), st.sampled_from(sorted(WAYS)))
def test_finite_in_finite_out(seed, magnitude, share, way):
    """Every finite float16 matrix gives a finite one, or an error that names it."""
    rng = np.random.default_rng(seed)
    matrix = 10.0**magnitude * rng.standard_normal((12, 20)) * (rng.random((12, 20)) < share)
    matrix = np.clip(matrix + 5e4 * (rng.random((12, 20)) < 0.05), -65504, 65504).astype(np.float16)
    function = denoise if way.startswith("denoise") else blend
    with contextlib.suppress(ParameterError):
        assert np.isfinite(function(matrix, 10.0 ** rng.uniform(0, magnitude))).all()


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("function", [denoise, blend])
def test_the_top_of_wider_dtypes(function, dtype):
    """The same at the largest numbers of float32 and float64, whose squares would overflow."""
    scale = float(np.finfo(dtype).max) / 7e4
    matrix = near_the_limit().astype(dtype) * dtype(scale)
    result = function(matrix, SIGMA * scale)
    assert np.isfinite(result).all()
    unscaled = function(near_the_limit().astype(np.float64), SIGMA, norm_correction=False)
    np.testing.assert_allclose(result / dtype(scale), unscaled, rtol=1e-4, atol=1e-1)
