"""Blending a whole gradient: layer by layer, with a memory of earlier steps, and with weights between layers."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dprmt import ParameterError
from dprmt.spectra import (
    LayerReport,
    bulk_edge,
    cosine_similarity,
)
from dprmt.spectra import _denoise as layer_batches
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


def test_noise_that_remains_is_what_the_report_says():
    """In the directions of small singular values the output is noise of standard deviation noisy_share·σ."""
    rng, sigma = np.random.default_rng(1), 0.1
    clean = sigma * clean_layer((16, 400), 6.0)
    noisy = clean + sigma * rng.standard_normal(clean.shape)
    blended, report = blend_layers({"w": noisy}, sigma)
    share = report["w"].noisy_share
    assert 0 < share < 0.9
    U, _, Vt = np.linalg.svd(noisy, full_matrices=False)
    small = slice(12, None)
    assert close(U[:, small].T @ blended["w"] @ Vt[small].T, share * U[:, small].T @ noisy @ Vt[small].T, 1e-9)


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


def test_mixed_dtypes_and_libraries_come_back_as_they_were():
    matrix = clean_layer((6, 40), 4.0) + np.random.default_rng(4).standard_normal((6, 40))
    layers = {
        "double": matrix,
        "single": matrix.astype(np.float32),
        "half": matrix.astype(np.float16),
        "tensor": torch.from_numpy(matrix),
        "bfloat16": torch.from_numpy(matrix).to(torch.bfloat16),
        "parameter": torch.nn.Parameter(torch.from_numpy(matrix)),
        "counter": torch.tensor(3),
        "steps": np.arange(4),
    }
    before = {name: layer.copy() if isinstance(layer, np.ndarray) else layer.clone() for name, layer in layers.items()}
    for layer_weights in ("noisy", "least-squares"):
        blended, _ = blend_layers(layers, 1.0, layer_weights=layer_weights)
        expected = blended["double"]
        assert cosine_similarity(expected, blend(matrix, 1.0)) == pytest.approx(1)
        tolerances = {"single": 1e-5, "half": 1e-3, "tensor": 1e-9, "bfloat16": 1e-2, "parameter": 1e-9}
        for name, tolerance in tolerances.items():
            assert isinstance(blended[name], np.ndarray) == isinstance(layers[name], np.ndarray)
            assert blended[name].dtype == layers[name].dtype
            as_numpy = blended[name].double().numpy() if isinstance(blended[name], torch.Tensor) else blended[name]
            assert close(as_numpy, expected, tolerance)
        assert not blended["parameter"].requires_grad
        assert blended["counter"] is layers["counter"]
        assert blended["steps"] is layers["steps"]
    assert all(bool((before[name] == layers[name]).all()) for name in layers)


@pytest.mark.parametrize("entries", [1, 1000, 2**24])
def test_the_result_does_not_depend_on_batches(entries, monkeypatch):
    layers = gradient(np.random.default_rng(5))
    expected, _ = blend_layers(layers, 1.0, layer_weights="least-squares")
    monkeypatch.setattr(layer_batches, "_BATCH_ENTRIES", entries)
    blended, _ = blend_layers(layers, 1.0, layer_weights="least-squares")
    assert all(close(blended[name], expected[name], 1e-10) for name in layers)


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


def test_layers_without_noise_take_part_in_the_joint_norm():
    rng = np.random.default_rng(7)
    layers = {"exact": 0.1 * rng.standard_normal((4, 5)), "w": clean_layer((8, 60), 4.0) + rng.standard_normal((8, 60))}
    blended, report = blend_layers(layers, {"exact": 0.0, "w": 1.0}, layer_weights="least-squares")
    scale = report["exact"].noisy_share
    assert scale > 1
    assert close(blended["exact"], scale * layers["exact"])
    assert report["exact"].denoised
    assert norm_of(blended) == pytest.approx(norm_of(layers))
    unscaled = blend(layers["w"], 1.0, norm_correction=False)
    assert close(blended["w"], scale * unscaled)


@pytest.mark.parametrize("norm_correction", [True, False])
def test_a_gradient_in_which_nothing_is_detected_comes_back(norm_correction):
    layers = {"a": np.ones((3, 4)), "b": torch.zeros(5, 2)}
    blended, report = blend_layers(layers, 10.0, norm_correction, layer_weights="least-squares")
    assert all(blended[name] is layers[name] for name in layers)
    assert all(not entry.denoised and entry.noisy_share == 1 for entry in report.values())
    assert blend_layers({}, 1.0) == ({}, {})


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


def test_without_decay_there_is_no_memory():
    memory = BlendMemory(decay=0)
    for _, noisy in stream(9, 5, 2.0):
        assert close(blend_layers({"w": noisy}, 1.0, memory=memory)[0]["w"], blend(noisy, 1.0), 1e-14)


@pytest.mark.parametrize("layer_weights", ["noisy", "least-squares"])
def test_a_sudden_strong_signal_outweighs_the_memory(layer_weights):
    """The weights of weak steps would make far too much of it; the current step counts, and most of all."""
    rng, shape = np.random.default_rng(13), (16, 400)
    for _ in range(20):
        memory = BlendMemory()
        for _ in range(3):
            blend_layers({"w": clean_layer(shape, 0.9) + rng.standard_normal(shape)}, 1.0, memory=memory)
        clean = clean_layer(shape, 5.0)
        noisy = {"w": clean + rng.standard_normal(shape)}
        estimate = blend_layers(noisy, 1.0, norm_correction=False, layer_weights=layer_weights, memory=memory)[0]["w"]
        assert np.linalg.norm(estimate) < 1.1 * np.linalg.norm(clean)
        kept = blend_layers(noisy, 1.0, memory=memory)[0]["w"]
        assert np.linalg.norm(kept) == pytest.approx(np.linalg.norm(noisy["w"]))


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


def test_memory_is_kept_if_the_call_fails():
    memory = BlendMemory()
    good = np.random.default_rng(11).standard_normal((4, 9))
    blend_layers({"a": good}, 1.0, memory=memory)
    before = memory.state_dict()
    for bad in (np.full((4, 9), np.nan), np.full((40, 9), np.inf)):
        with pytest.raises(ParameterError, match=r"layers\['b'\]"):
            blend_layers({"a": good, "b": bad}, 1.0, memory=memory)
        assert memory.state_dict() == before
    blend_layers({"a": good, "exact": good}, {"a": 1.0, "exact": 0.0}, memory=memory)
    assert len(memory) == 1
    assert repr(memory) == "BlendMemory(decay=0.9, layers=1)"


def test_a_vector_is_left_alone_whatever_the_memory_holds():
    """Shrinking one singular value changes nothing but the norm, so all of the noise remains."""
    rng, memory = np.random.default_rng(14), BlendMemory()
    for _ in range(30):
        rows = {"row": 3.0 * rng.exponential() + rng.standard_normal((1, 20)), "column": rng.standard_normal((20, 1))}
        blended, report = blend_layers(rows, 1.0, memory=memory)
        assert all(blended[name] is rows[name] for name in rows)
        assert all(entry.noisy_share == 1 for entry in report.values())


def test_state_is_a_copy():
    memory = BlendMemory()
    noisy = np.random.default_rng(12).standard_normal((4, 9))
    blend_layers({"a": noisy}, 1.0, memory=memory)
    state = memory.state_dict()
    frozen = json.dumps(state)
    blend_layers({"a": noisy}, 1.0, memory=memory)
    assert json.dumps(state) == frozen


LAYER = {
    "name": "a",
    "shape": [4, 9],
    "inner_products": [0.0] * 4,
    "gram": [[0.0] * 4] * 4,
    "variances": [0.0] * 4,
}
STATE = {"format": 1, "decay": 0.9, "members": list(NAMES), "layers": [LAYER]}


@pytest.mark.parametrize(
    ("state", "message"),
    [
        ([], "state must be a mapping from BlendMemory.state_dict"),
        (STATE | {"format": 2}, r"state\['format'\] must be 1, got 2"),
        (STATE | {"members": ["identity"]}, r"state\['members'\] must be .*soft 0.6"),
        (STATE | {"decay": 1.0}, r"state\['decay'\] must be a finite number in \[0, 1\), got 1.0"),
        (STATE | {"decay": None}, r"state\['decay'\] must be a finite number"),
        (STATE | {"layers": None}, r"state\['layers'\] must be a list of layers"),
        (STATE | {"layers": [LAYER, LAYER]}, r"state\['layers'\] must be without duplicates"),
        (STATE | {"layers": [{"shape": [4, 9]}]}, r"state\['layers'\]\[0\] must be a mapping with the name"),
        (STATE | {"layers": [LAYER | {"shape": [4]}]}, r"state\['layers'\]\[0\]\['shape'\] must be a pair"),
        (
            STATE | {"layers": [LAYER | {"gram": [0.0]}]},
            r"\['gram'\] must be finite numbers, in lists of shape \(4, 4\)",
        ),
        (STATE | {"layers": [LAYER | {"variances": ["x"] * 4}]}, r"\['variances'\] must be finite numbers"),
        (STATE | {"layers": [LAYER | {"variances": [-1.0] * 4}]}, r"\['variances'\] must be .*not negative"),
        (STATE | {"layers": [LAYER | {"gram": [[-1.0] * 4] * 4}]}, r"\['gram'\] must be .*not negative"),
        (STATE | {"layers": [LAYER | {"inner_products": [math.nan] * 4}]}, r"\['inner_products'\] must be finite"),
    ],
)
def test_a_bad_state_is_refused_and_changes_nothing(state, message):
    memory = BlendMemory(decay=0.5)
    memory.load_state_dict(STATE)
    before = memory.state_dict()
    with pytest.raises(ParameterError, match=message):
        memory.load_state_dict(state)
    assert memory.state_dict() == before == STATE


BAD = {"good": np.ones((2, 3)), "bad": np.ones((2, 3))}


@pytest.mark.parametrize(
    ("layers", "changes", "message"),
    [
        ([np.ones((2, 2))], {}, "layers must be a mapping of names to arrays"),
        (BAD | {"bad": None}, {}, r"layers\['bad'\] must be an array, got None"),
        (BAD | {"bad": np.full((2, 3), np.nan)}, {}, r"layers\['bad'\] must be finite in every entry, got nan"),
        (BAD | {"bad": np.full((2, 3), np.inf)}, {"sigma": 0.0}, r"layers\['bad'\] must be finite in every entry"),
        (BAD | {"bad": np.ones((0, 3))}, {}, r"layers\['bad'\] must be a non-empty array"),
        (BAD | {"bad": np.ones((2, 3), int)}, {}, r"layers\['bad'\] must be of a real floating-point dtype"),
        (BAD, {"sigma": -1.0}, "sigma must be a finite number >= 0, got -1.0"),
        (BAD, {"sigma": {"good": 1.0}}, "sigma must be given for every matrix, also for 'bad', got .*good"),
        (BAD, {"layer_weights": "equal"}, "layer_weights must be one of 'noisy', 'least-squares', got 'equal'"),
        (BAD, {"memory": {}}, "memory must be a BlendMemory, or None, got {}"),
    ],
)
def test_bad_input_names_argument_value_and_range(layers, changes, message):
    with pytest.raises(ParameterError, match=message):
        blend_layers(layers, **({"sigma": 1.0} | changes))


@pytest.mark.parametrize("decay", [-0.1, 1.0, math.nan, "0.9", None])
def test_bad_decay(decay):
    with pytest.raises(ParameterError, match=r"decay must be a finite number in \[0, 1\)"):
        BlendMemory(decay)
