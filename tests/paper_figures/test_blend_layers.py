"""Blending a whole gradient: layer by layer, with a memory of earlier steps, and with weights between layers."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dprmt.spectra import (
    LayerReport,
    bulk_edge,
    cosine_similarity,
)
from paper_figures.shrinkers import BlendMemory, BlendReport, blend, blend_layers
from paper_figures.shrinkers._blend_weights import NAMES, members
from tests.spectra.simulation import denoise_layers

SEEDS = st.integers(0, 2**32 - 1)
PASSED_THROUGH = {"identity": 1.0, "soft 0.6": 0.0, "soft 0.8": 0.0, "soft 1.0": 0.0}


def clean_layer(shape, top):
    """Singular values top/i in units of the detection threshold of unit noise."""
    r = min(shape)
    clean = np.zeros(shape)
    clean[range(r), range(r)] = top * math.prod(shape) ** 0.25 / np.arange(1, r + 1)
    return clean


def gradient(rng, sigma=1.0):
    """Layers of several shapes, signals from none to strong, and tensors that are not matrices."""
    layers = {}
    for i, top in enumerate((0.0, 6.0, 2.0, 0.3, 3.0)):
        for name, shape in (("lora_A", (8, 60)), ("lora_B", (60, 8))):
            layers[f"{i}.{name}"] = sigma * (clean_layer(shape, top) + rng.standard_normal(shape))
        layers[f"{i}.bias"] = rng.standard_normal(8)
    layers["conv"] = rng.standard_normal((4, 3, 3, 3))
    layers["head"] = sigma * (clean_layer((140, 150), 2.0) + rng.standard_normal((140, 150)))
    layers["scale"] = np.array(2.0)
    return layers


def close(a, b, tolerance=1e-9):
    return np.linalg.norm(np.asarray(a) - np.asarray(b)) <= tolerance * np.linalg.norm(np.asarray(b))


def norm_of(layers):
    return math.hypot(*(float(np.linalg.norm(np.asarray(x))) for x in layers.values() if np.ndim(x) == 2))


def rebuilt(noisy, sigma, weights):
    """``Σ a_k f_k(Y)`` from a full SVD."""
    U, y, Vt = np.linalg.svd(noisy, full_matrices=False)
    values = members(y[None] / sigma, noisy.shape)[0] * sigma
    return (U * (np.array([weights[name] for name in NAMES]) @ values)) @ Vt


@given(SEEDS, st.booleans())
def test_layers_are_blended_as_if_one_by_one(seed, norm_correction):
    layers = gradient(np.random.default_rng(seed))
    blended, report = blend_layers(layers, 1.0, norm_correction)
    assert list(blended) == list(report) == list(layers)
    for name, layer in layers.items():
        assert (report[name].name, report[name].shape) == (name, layer.shape)
        single = blend(layer, 1.0, norm_correction) if layer.ndim == 2 else layer
        assert report[name].denoised == (single is not layer)
        if single is layer:
            assert blended[name] is layer
        else:
            assert close(blended[name], single)


@pytest.mark.parametrize("layer_weights", ["noisy", "least-squares"])
@pytest.mark.parametrize("norm_correction", [True, False])
@pytest.mark.parametrize("with_memory", [True, False])
def test_report(layer_weights, norm_correction, with_memory):
    """The weights rebuild the result; the other fields say what a full SVD says, as those of `LayerReport`."""
    rng = np.random.default_rng(0)
    memory = BlendMemory() if with_memory else None
    if with_memory:
        blend_layers(gradient(rng), 1.0, memory=memory)
    layers = gradient(rng)
    blended, report = blend_layers(layers, 1.0, norm_correction, layer_weights=layer_weights, memory=memory)
    _, of_the_paper = denoise_layers(layers, 1.0)
    gains = []
    for name, layer in layers.items():
        entry = report[name]
        assert isinstance(entry, LayerReport)
        assert entry.noisy_share == entry.weights["identity"]
        if layer.ndim != 2:
            assert entry == BlendReport(name, layer.shape, None, 0, denoised=False, weights=PASSED_THROUGH)
            continue
        assert entry.spikes == of_the_paper[name].spikes
        top = np.linalg.norm(layer, 2) / bulk_edge(layer.shape, 1.0)
        assert entry.top_over_edge == pytest.approx(top, rel=1e-9)
        assert list(entry.weights) == list(NAMES)
        assert close(blended[name], rebuilt(layer, 1.0, entry.weights), 1e-8) or not any(entry.weights.values())
        assert entry.denoised == (blended[name] is not layer)
        assert 0 <= entry.cosine_gain <= 1
        if not entry.denoised:
            assert (entry.weights, entry.cosine_gain) == (PASSED_THROUGH, 0)
        gains.append(entry.cosine_gain)
    assert report["1.lora_A"].denoised
    assert max(gains) > 0.1


def test_estimated_gain_of_a_strong_signal_is_the_true_one():
    """Within 0.01 of the mean improvement where little is left to chance, and too high where much is."""
    rng = np.random.default_rng(2)
    for shape, top, tolerance in (((64, 256), 4.0, 0.01), ((16, 400), 0.5, 0.1)):
        clean = clean_layer(shape, top)
        true, estimated = [], []
        for _ in range(100):
            noisy = clean + rng.standard_normal(shape)
            blended, report = blend_layers({"w": noisy}, 1.0)
            true.append(cosine_similarity(blended["w"], clean) - cosine_similarity(noisy, clean))
            estimated.append(report["w"].cosine_gain)
        assert -tolerance / 10 < np.mean(estimated) - np.mean(true) < tolerance


def test_sigma_by_layer():
    """Each layer has its own noise level, also within one batch."""
    rng = np.random.default_rng(3)
    sigmas = {"a": 1e-3, "b": 1.0, "c": 50.0, "d": 0.0, "not there": -1.0}
    noisy = clean_layer((8, 60), 3.0) + rng.standard_normal((8, 60))
    layers = {name: noisy * (sigmas[name] or 1.0) for name in "abcd"}
    blended, report = blend_layers(layers, sigmas)
    for name in "abc":
        assert close(blended[name], blend(noisy, 1.0) * sigmas[name])
        assert report[name].denoised
    assert blended["d"] is layers["d"]
    assert report["d"] == BlendReport("d", (8, 60), math.inf, 8, denoised=False, weights=PASSED_THROUGH)


# Weights between layers


@given(SEEDS, st.floats(1e-3, 1e3))
def test_least_squares_weights(seed, sigma):
    """Each layer is its least-squares estimate times one number, which keeps the joint norm of the matrices."""
    layers = gradient(np.random.default_rng(seed), sigma)
    estimates, plain = blend_layers(layers, sigma, norm_correction=False, layer_weights="least-squares")
    blended, report = blend_layers(layers, sigma, layer_weights="least-squares")
    assert norm_of(blended) == pytest.approx(norm_of(layers), rel=1e-9)
    scale = norm_of(layers) / norm_of(estimates)
    for name, layer in layers.items():
        if layer.ndim != 2:
            assert blended[name] is layer
            continue
        assert np.linalg.norm(blended[name] - scale * estimates[name]) <= 1e-8 * np.linalg.norm(layer)
        assert report[name].noisy_share == pytest.approx(scale * plain[name].noisy_share, abs=1e-9)
        unscaled = blend(layer, sigma, norm_correction=False)
        if unscaled is not layer:
            assert close(estimates[name], unscaled)
        else:
            assert not estimates[name].any()
            assert report[name].denoised
            assert report[name].noisy_share == 0


def test_least_squares_weights_raise_the_cosine_of_the_whole_gradient():
    """Where layers differ in signal: by more than 4 standard errors, and more than the noisy norms do."""
    rng = np.random.default_rng(6)
    clean = {f"{i}": clean_layer((8, 100), top) for i, top in enumerate((4.0, 1.0, 0.0, 0.0, 0.0, 0.0))}
    gains = []
    for _ in range(100):
        noisy = {name: x + rng.standard_normal(x.shape) for name, x in clean.items()}
        kept, weighted = (blend_layers(noisy, 1.0, layer_weights=w)[0] for w in ("noisy", "least-squares"))
        gains.append(cosine_similarity(weighted, clean) - cosine_similarity(kept, clean))
    assert np.mean(gains) - 4 * np.std(gains) / 10 > 0.1


# Memory


def stream(seed, steps, top, shape=(16, 200)):
    """Noisy gradients of a matrix that turns slowly, with their clean matrices."""
    rng = np.random.default_rng(seed)
    left, right = (rng.standard_normal((side, 3)) for side in shape)
    for _ in range(steps):
        left, right = (0.99 * x + math.sqrt(1 - 0.99**2) * rng.standard_normal(x.shape) for x in (left, right))
        Q, R = (np.linalg.qr(x)[0] for x in (left, right))
        clean = (Q * (top * math.prod(shape) ** 0.25 / np.arange(1, 4))) @ R.T
        yield clean, clean + rng.standard_normal(shape)


def test_pooling_over_steps_raises_the_mean_cosine():
    """By more than 4 standard errors, where single steps leave much to chance."""
    memory, gains = BlendMemory(), []
    for clean, noisy in stream(8, 250, 1.3):
        pooled, single = blend_layers({"w": noisy}, 1.0, memory=memory)[0]["w"], blend(noisy, 1.0)
        gains.append(cosine_similarity(pooled, clean) - cosine_similarity(single, clean))
    gains = np.array(gains[20:])
    blocks = gains[: len(gains) // 10 * 10].reshape(-1, 10).mean(-1)  # neighbours share their memory
    assert blocks.mean() > 4 * blocks.std() / math.sqrt(len(blocks))
    assert blocks.mean() > 0.01


def test_memory_is_a_sum_with_exponential_forgetting():
    """A resumed step equals the weighted sums of the states of single steps; names, shapes and units are apart."""
    memory, states = BlendMemory(decay=0.5), []
    for _, noisy in stream(10, 4, 2.0):
        blend_layers({"w": 3 * noisy, "other": noisy}, {"w": 3.0, "other": 1.0}, memory=memory)
        alone = BlendMemory()
        blend_layers({"w": noisy}, 1.0, memory=alone)
        states.append(alone.state_dict()["layers"][0])
    assert len(memory) == 2
    w, other = memory.state_dict()["layers"]
    for field, decay in (("inner_products", 0.5), ("gram", 0.5), ("variances", 0.25)):
        expected = sum(decay ** (3 - t) * np.array(state[field]) for t, state in enumerate(states))
        assert np.allclose(w[field], expected, rtol=1e-9)
        assert np.allclose(other[field], expected, rtol=1e-9)
    blend_layers({"w": noisy.T}, 1.0, memory=memory)
    assert len(memory) == 3
    assert memory.state_dict()["layers"][0] == w


@given(SEEDS, st.integers(1, 4))
def test_resumed_runs_are_the_same_to_the_last_bit(seed, interruption):
    """Through JSON, with the decay; neither memory knows of the other."""
    memory = BlendMemory(decay=0.83)
    for t, (_, noisy) in enumerate(stream(seed, 5, 1.5, (6, 30))):
        if t == interruption:
            resumed = BlendMemory()
            resumed.load_state_dict(json.loads(json.dumps(memory.state_dict())))
            assert resumed.decay == memory.decay
        if t >= interruption:
            again, report = blend_layers({"w": noisy}, 1.0, memory=resumed)
        blended, expected = blend_layers({"w": noisy}, 1.0, memory=memory)
    assert np.array_equal(again["w"], blended["w"])
    assert report == expected
    assert resumed.state_dict() == memory.state_dict()
