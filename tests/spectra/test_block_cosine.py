"""Cosines of layered gradients, and Theorem E.1 of arXiv:2510.01137v3 on arbitrary blocks."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st

from dprmt.spectra import block_cosine, cosine_similarity, improvement, layer_improvements
from tests.spectra.simulation import SEEDS

KINDS = st.lists(
    st.sampled_from(["turned", "same", "opposite", "zero target", "zero estimate", "both zero"]), min_size=1, max_size=6
)


def unit(vector):
    return vector / np.linalg.norm(vector)


def block_triple(rng, kind):
    """x, y, y' of one block that meets the hypotheses of the theorem."""
    size = int(rng.integers(1, 6))
    x, y, other = rng.standard_normal((3, size)) * 10.0 ** rng.integers(-2, 3, size=(3, 1))
    turned = unit(other) * np.linalg.norm(y)
    if turned @ x < y @ x:
        y, turned = turned, y
    if kind == "opposite":
        y = -np.linalg.norm(y) * unit(x)
    x = 0 * x if kind in ("zero target", "both zero") else x
    y = 0 * y if kind in ("zero estimate", "both zero") else y
    if kind == "same":
        return x, y, y.copy()
    return x, y, turned * np.linalg.norm(y) / np.linalg.norm(turned)


def as_layers(rng, kinds):
    triples = [block_triple(rng, kind) for kind in kinds]
    return tuple({f"layer{i}": triple[j] for i, triple in enumerate(triples)} for j in range(3))


@given(SEEDS, KINDS)
def test_theorem(seed, kinds):
    """If every block keeps its norm and loses no cosine, so does the whole; zero blocks do not matter."""
    x, y, y_new = as_layers(np.random.default_rng(seed), kinds)
    result = block_cosine(x, y, y_new)
    assert result.applies
    assert result.less_aligned == result.norm_changed == ()
    assert result.after >= result.before - result.slack
    assert result.slack < 1e-12
    assert result.before == pytest.approx(cosine_similarity(y, x), abs=1e-14)
    assert result.after == pytest.approx(cosine_similarity(y_new, x), abs=1e-14)


@given(SEEDS, KINDS)
def test_reverse_of_the_theorem_is_reported(seed, kinds):
    """Swapping y and y' breaks (i) in exactly those blocks whose cosine had grown."""
    x, y, y_new = as_layers(np.random.default_rng(seed), kinds)
    gains = {name: cosine_similarity(y_new[name], x[name]) - cosine_similarity(y[name], x[name]) for name in x}
    assume(all(gain == 0 or gain > 1e-9 for gain in gains.values()))
    result = block_cosine(x, y_new, y)
    assert set(result.less_aligned) == {name for name, gain in gains.items() if gain > 0}
    assert result.norm_changed == ()
    assert result.applies == (max(gains.values()) == 0)


@given(SEEDS, KINDS, st.floats(1e-6, 0.2))
def test_slack_covers_hypotheses_that_hold_up_to_the_tolerance(seed, kinds, tolerance):
    """If (i) and (ii) hold up to τ, then cos(y', x) >= cos(y, x) - slack."""
    rng = np.random.default_rng(seed)
    x, y, y_new = as_layers(rng, kinds)
    y_new = {name: block * (1 + tolerance * rng.uniform(-0.99, 0.99)) for name, block in y_new.items()}
    result = block_cosine(x, y, y_new, tolerance)
    assert result.applies
    assert result.after >= result.before - result.slack


@pytest.mark.parametrize("tolerance", [1e-6, 1e-3, 0.05])
def test_slack_is_attained(tolerance):
    """One block shrinks, the other grows, and both turn away: the cosine falls by almost the slack."""
    plane = lambda cosine: np.array([cosine, math.sqrt(1 - cosine**2)])  # noqa: E731
    x = [plane(1.0), plane(1.0)]
    y = [plane(1.0), plane(tolerance - 1)]
    y_new = [(1 - tolerance) * plane(1 - tolerance), (1 + tolerance) * plane(-1.0)]
    result = block_cosine(x, y, y_new, tolerance * (1 + 1e-9))
    assert result.applies
    assert 0.9 * result.slack < result.before - result.after <= result.slack


def test_norm_change_is_reported_and_can_cost_the_conclusion():
    x = {"strong": np.array([10.0, 0.0]), "weak": np.array([0.1, 0.1])}
    y = {"strong": np.array([1.0, 0.1]), "weak": np.array([0.0, 0.1])}
    y_new = {"strong": np.array([0.1, 0.01]), "weak": np.array([1.0, 1.0])}
    result = block_cosine(x, y, y_new)
    assert result.less_aligned == ()
    assert result.norm_changed == ("strong", "weak")
    assert not result.applies
    assert result.after < result.before


@pytest.mark.parametrize(
    ("dtype", "within", "beyond"),
    [(torch.float64, 5e-14, 1e-12), (torch.float32, 4e-7, 1e-5), (torch.bfloat16, 4e-3, 2e-2)],
)
def test_default_tolerance_is_that_of_the_coarsest_dtype(dtype, within, beyond):
    x = torch.tensor([1.0, 2.0], dtype=torch.float64)
    for factor, holds in ((1 + within, True), (1 + beyond, False)):
        result = block_cosine([x, x.to(dtype)], [x, x.to(dtype)], [factor * x, x.to(dtype)])
        assert result.applies == holds
        assert result.norm_changed == (() if holds else (0,))


SHAPES = st.lists(st.sampled_from([(1,), (3,), (2, 5), (2, 3, 4)]), min_size=1, max_size=4)


def blocks(rng, shapes):
    return {f"layer{i}": rng.standard_normal(shape) * 10.0 ** rng.integers(-3, 4) for i, shape in enumerate(shapes)}


def flat(layers):
    return np.concatenate([np.ravel(layer) for layer in layers.values()])


def literal_cosine(a, b):
    return a @ b / (math.sqrt(a @ a) * math.sqrt(b @ b))


@given(SEEDS, SHAPES, st.floats(-200, 200), st.floats(-200, 200))
def test_cosine_of_layers_is_that_of_the_concatenation(seed, shapes, log_a, log_b):
    """cos(a, b) = ⟨a, b⟩/(‖a‖‖b‖) of the concatenated vectors, however they are cut into layers.

    cos(sa, tb) = cos(a, b) for positive s and t up to 10^±200, and |cos| <= 1, with equality for b = a.
    """
    rng = np.random.default_rng(seed)
    a, b = blocks(rng, shapes), blocks(rng, shapes)
    scaled_a = {name: 10.0**log_a * x for name, x in a.items()}
    scaled_b = {name: 10.0**log_b * x for name, x in b.items()}
    expected = pytest.approx(literal_cosine(flat(a), flat(b)), rel=1e-12, abs=1e-14)
    for one, other in ((a, b), (list(a.values()), list(b.values())), (flat(a), flat(b)), (scaled_a, scaled_b)):
        assert cosine_similarity(one, other) == expected
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
