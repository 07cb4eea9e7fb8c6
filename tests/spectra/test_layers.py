"""Denoising a named set of layers: the same as one by one, everything else untouched, and a true report."""

from __future__ import annotations

import math
from collections import OrderedDict

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dprmt import spectra
from dprmt.spectra import LayerReport, bulk_edge, kappa_for
from tests.spectra.simulation import SEEDS, denoise, denoise_layers, spiked


def gradient(rng, sigma=1.0):
    """Layers of several shapes, signals on either side of the gate, and tensors that are not matrices."""
    layers = {}
    for i, signal in enumerate((0.0, 3.0, 1.3, 0.3, 2.0)):
        layers[f"{i}.lora_A"] = spiked(rng, (8, 60), [signal], sigma)
        layers[f"{i}.bias"] = rng.standard_normal(8)
        layers[f"{i}.lora_B"] = spiked(rng, (60, 8), [signal], sigma)
    layers["conv"] = rng.standard_normal((4, 3, 3, 3))
    layers["head"] = spiked(rng, (200, 210), [1.5], sigma)
    layers["scale"] = np.array(2.0)
    return layers


def close(a, b, tolerance=1e-9):
    return np.linalg.norm(np.asarray(a) - np.asarray(b)) <= tolerance * np.linalg.norm(np.asarray(b))


@given(SEEDS, st.booleans(), st.sampled_from(["frobenius", "operator"]))
def test_layers_are_denoised_as_if_one_by_one(seed, norm_correction, loss):
    """denoise_layers(layers)[name] = denoise(layers[name]) for matrices, else layers[name] itself."""
    layers = gradient(np.random.default_rng(seed))
    denoised, report = denoise_layers(layers, 1.0, 1.05, norm_correction, loss=loss)
    assert list(denoised) == list(report) == list(layers)
    for name, layer in layers.items():
        assert report[name].name == name
        assert report[name].shape == layer.shape
        single = denoise(layer, 1.0, 1.05, norm_correction, loss=loss) if layer.ndim == 2 else layer
        assert report[name].denoised == (single is not layer)
        if single is layer:
            assert denoised[name] is layer
        else:
            assert close(denoised[name], single)


@given(SEEDS)
def test_report_counts_what_a_full_svd_counts(seed):
    """top_over_edge = s₁/b, or a lower bound for a large matrix below the edge; spikes = #{s_i > b}."""
    layers = gradient(np.random.default_rng(seed))
    _, report = denoise_layers(layers, 1.0)
    for name, layer in layers.items():
        if layer.ndim != 2:
            assert report[name] == LayerReport(name, layer.shape, None, 0, denoised=False)
            continue
        values = np.linalg.svd(layer, compute_uv=False) / bulk_edge(layer.shape, 1.0)
        assert report[name].spikes == (values > 1).sum()
        assert report[name].top_over_edge == pytest.approx(values[0], rel=1e-9)
        assert report[name].denoised == (values[0] >= kappa_for(layer.shape, 0.01))
    noise = np.random.default_rng(seed).uniform(-1, 1, (220, 220))
    top = denoise_layers({"w": noise}, 1.0)[1]["w"].top_over_edge
    values = np.linalg.svd(noise, compute_uv=False) / bulk_edge(noise.shape, 1.0)
    assert values[0] * (1 - 2e-2) <= top <= values[0] * (1 + 1e-9)


def test_sigma_and_kappa_by_layer():
    """Each layer has its own noise level, also within one batch, and its own gate by its shape."""
    rng = np.random.default_rng(1)
    sigmas = {"a": 1e-3, "b": 1.0, "c": 50.0, "d": 0.0, "not there": -1.0}
    layers = {name: spiked(rng, (8, 60), [1.5], max(sigmas[name], 1.0)) for name in "abcd"}
    denoised, report = denoise_layers(layers, sigmas)
    for name in "abc":
        assert close(denoised[name], denoise(layers[name], sigmas[name]))
        assert report[name].denoised
    stack, levels = np.stack([layers[name] for name in "dabc"]), [sigmas[name] for name in "dabc"]
    for one, name in zip(denoise(stack, levels), "dabc", strict=True):
        assert close(one, denoised[name])
    stacked = dict(zip("dabc", spectra.denoise(stack, levels, 1e9), strict=True))
    for found in (spectra.denoise_layers(layers, sigmas, 1e9)[0], stacked):  # nothing passes such a gate
        assert [name for name in "abcd" if np.any(found[name])] == ["d"]
    assert denoised["d"] is layers["d"]
    assert report["d"] == LayerReport("d", (8, 60), math.inf, 8, denoised=False)
    layers["tall"] = layers["b"].T.copy()
    seen = []
    denoised, report = denoise_layers(layers, 1.0, lambda shape: seen.append(shape) or (1.0 if shape[0] == 60 else 1e9))
    assert sorted(seen) == [(8, 60), (60, 8)]
    assert [name for name in layers if report[name].denoised] == ["tall"]


def test_mixed_dtypes_and_libraries_come_back_as_they_were():
    rng = np.random.default_rng(3)
    matrix = spiked(rng, (6, 40), [2.0])
    layers = OrderedDict(
        double=matrix,
        single=matrix.astype(np.float32),
        half=matrix.astype(np.float16),
        tensor=torch.from_numpy(matrix),
        bfloat16=torch.from_numpy(matrix).to(torch.bfloat16),
        parameter=torch.nn.Parameter(torch.from_numpy(matrix)),
        view=torch.from_numpy(np.stack([matrix, matrix], -1))[..., 0],
        counter=torch.tensor(3),
        steps=np.arange(4),
    )
    denoised, _ = denoise_layers(layers, 1.0)
    expected = denoise(matrix, 1.0)
    for name, tolerance in (("single", 1e-5), ("half", 1e-3), ("tensor", 1e-9), ("view", 1e-9)):
        assert type(denoised[name]) is type(layers[name])
        assert denoised[name].dtype == layers[name].dtype
        assert close(denoised[name], expected, tolerance)
    assert denoised["bfloat16"].dtype is torch.bfloat16
    assert close(denoised["bfloat16"].double(), expected, 1e-2)
    assert not denoised["parameter"].requires_grad
    assert close(denoised["parameter"], expected)
    assert denoised["counter"] is layers["counter"]
    assert denoised["steps"] is layers["steps"]


def test_noise_and_gate_are_not_rounded_to_the_dtype_of_a_tensor():
    """0.1 is no float32: the ratio to the edge is as accurate as the singular value, which is exact here."""
    _, report = denoise_layers({"w": torch.diag(torch.tensor([3.0, 1.0]))}, 0.1)
    assert report["w"].top_over_edge == pytest.approx(3 / (0.1 * 2 * math.sqrt(2)), rel=1e-14)
    on_the_gate = 3 / (0.1 * 2 * math.sqrt(2)) * (1 + 1e-9)
    assert not denoise_layers({"w": torch.diag(torch.tensor([3.0, 1.0]))}, 0.1, on_the_gate)[1]["w"].denoised
