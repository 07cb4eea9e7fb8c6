"""Cosines of layered gradients, Improvement(t), and the SGD comparison of section 3.1."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dprmt.spectra import cosine_similarity, improvement, layer_improvements

SEEDS = st.integers(0, 2**32 - 1)
SHAPES = st.lists(st.sampled_from([(1,), (3,), (2, 5), (2, 3, 4)]), min_size=1, max_size=4)


def blocks(rng, shapes):
    return {f"layer{i}": rng.standard_normal(shape) * 10.0 ** rng.integers(-3, 4) for i, shape in enumerate(shapes)}


def flat(layers):
    return np.concatenate([np.ravel(layer) for layer in layers.values()])


def literal_cosine(a, b):
    return a @ b / (math.sqrt(a @ a) * math.sqrt(b @ b))


@given(SEEDS, SHAPES)
def test_cosine_of_layers_is_that_of_the_concatenation(seed, shapes):
    """cos(a, b) = ⟨a, b⟩/(‖a‖‖b‖) of the concatenated vectors, however they are cut into layers."""
    rng = np.random.default_rng(seed)
    a, b = blocks(rng, shapes), blocks(rng, shapes)
    expected = literal_cosine(flat(a), flat(b))
    assert cosine_similarity(a, b) == pytest.approx(expected, rel=1e-12, abs=1e-14)
    assert cosine_similarity(list(a.values()), list(b.values())) == pytest.approx(expected, rel=1e-12, abs=1e-14)
    assert cosine_similarity(flat(a), flat(b)) == pytest.approx(expected, rel=1e-12, abs=1e-14)


@given(SEEDS, SHAPES, st.floats(-200, 200), st.floats(-200, 200))
def test_cosine_ignores_scale_and_never_leaves_its_range(seed, shapes, log_a, log_b):
    """cos(sa, tb) = cos(a, b) for positive s and t up to 10^±200, and |cos| <= 1, with equality for b = a."""
    rng = np.random.default_rng(seed)
    a, b = blocks(rng, shapes), blocks(rng, shapes)
    scaled_a = {name: 10.0**log_a * x for name, x in a.items()}
    scaled_b = {name: 10.0**log_b * x for name, x in b.items()}
    assert cosine_similarity(scaled_a, scaled_b) == pytest.approx(cosine_similarity(a, b), rel=1e-12, abs=1e-14)
    assert abs(cosine_similarity(a, scaled_a)) <= 1
    assert cosine_similarity(a, scaled_a) == pytest.approx(1, abs=1e-14)
    assert cosine_similarity(a, {name: -x for name, x in a.items()}) == pytest.approx(-1, abs=1e-14)


def test_zero_vector_has_cosine_zero():
    zero, ones = {"a": np.zeros(3), "b": np.zeros((2, 2))}, {"a": np.ones(3), "b": np.ones((2, 2))}
    assert cosine_similarity(zero, ones) == cosine_similarity(ones, zero) == cosine_similarity(zero, zero) == 0.0
    assert improvement(zero, ones, ones) == pytest.approx(-1, abs=1e-15)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_sums_are_not_taken_in_the_dtype_of_the_data(dtype):
    rng = torch.Generator().manual_seed(0)
    a, b = (torch.randn(300_000, generator=rng).add(0.1).to(dtype) for _ in range(2))
    expected = literal_cosine(a.double().numpy(), b.double().numpy())
    assert cosine_similarity(a, b) == pytest.approx(expected, rel=1e-12)


@given(SEEDS, SHAPES)
def test_improvement_is_the_difference_of_cosines(seed, shapes):
    """Improvement = cos(denoised, clean) - cos(noisy, clean), of all layers at once or of each one."""
    rng = np.random.default_rng(seed)
    denoised, noisy, clean = (blocks(rng, shapes) for _ in range(3))
    whole = literal_cosine(flat(denoised), flat(clean)) - literal_cosine(flat(noisy), flat(clean))
    assert improvement(denoised, noisy, clean) == pytest.approx(whole, rel=1e-10, abs=1e-13)
    assert improvement(noisy, noisy, clean) == 0
    by_layer = layer_improvements(denoised, noisy, clean)
    assert list(by_layer) == list(denoised)
    for name, value in by_layer.items():
        d, y, x = (layers[name].ravel() for layers in (denoised, noisy, clean))
        assert value == pytest.approx(literal_cosine(d, x) - literal_cosine(y, x), rel=1e-10, abs=1e-13)
