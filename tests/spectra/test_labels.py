"""Labels of pandas and xarray objects outlive what is done to the numbers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from dprmt.spectra import denoise, shrink, spike_map, spike_map_inverse

RNG = np.random.default_rng(0)
NOISY = RNG.standard_normal((6, 20)) + 30 * np.outer(np.eye(6)[0], np.eye(20)[0])
FRAME = pd.DataFrame(NOISY, index=list("abcdef"), columns=[f"x{i}" for i in range(20)])


@pytest.mark.parametrize("function", [denoise])
def test_a_frame_keeps_rows_and_columns(function: Any) -> None:
    found = function(FRAME, 1.0)
    assert isinstance(found, pd.DataFrame)
    np.testing.assert_allclose(found.to_numpy(), function(NOISY, 1.0), rtol=1e-9, atol=1e-12)
    assert list(found.index) == list(FRAME.index)
    assert list(found.columns) == list(FRAME.columns)


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


def test_arrays_and_tensors_are_left_as_they_are() -> None:
    assert type(denoise(NOISY, 1.0)) is np.ndarray
    assert type(denoise(torch.tensor(NOISY), 1.0)) is torch.Tensor
