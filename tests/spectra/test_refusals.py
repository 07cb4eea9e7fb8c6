"""What is no input is refused by an error that names the argument, the value and what is allowed."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from dprmt import ParameterError, spectra
from dprmt.spectra import MarchenkoPastur
from tests.spectra.simulation import denoise, denoise_layers

EYE, PAIR, ONES, SHAPE = np.eye(2), np.array([2.0, 1.0]), np.ones(3), (16, 768)
NAN, INF = math.nan, math.inf
LAYERS = {"good": np.ones((2, 3)), "bad": np.ones((2, 3)), "vector": ONES}
Case = tuple[str, Callable[..., Any], tuple[Any, ...], dict[str, Any]]


def adam(**changes: Any) -> Any:
    given = {"gradient": PAIR, "direction": PAIR, "preconditioner": PAIR, "hessian": EYE, "step_size": 0.1}
    return spectra.adam_improvement_bound(**(given | changes))


def layers(of: Any = LAYERS, **options: Any) -> Any:
    return denoise_layers(of, **({"sigma": 1.0} | options))


def with_bad(matrix: Any) -> dict[str, Any]:
    return LAYERS | {"bad": matrix}


def cases(function: Callable[..., Any], *rows: tuple[str, tuple[Any, ...], dict[str, Any]]) -> list[Case]:
    return [(message, function, given, options) for message, given, options in rows]


CASES: list[Case] = [
    *cases(
        adam,
        (r"gradient must be of shape \(d,\), got \(2, 2\)", (), {"gradient": EYE}),
        ("direction must be of the shape of gradient", (), {"direction": ONES}),
        ("direction must be of a real .* dtype", (), {"direction": np.array([True, False])}),
        (r"preconditioner must be of shape \(2,\) or \(2, 2\), got \(3,\)", (), {"preconditioner": ONES}),
        ("preconditioner must be positive definite", (), {"preconditioner": np.array([1.0, 0.0])}),
        ("preconditioner must be finite", (), {"preconditioner": np.array([1.0, INF])}),
        ("preconditioner must be a symmetric matrix", (), {"preconditioner": np.array([[1.0, 0.5], [0.0, 1.0]])}),
        ("preconditioner must be from the same library", (), {"preconditioner": torch.ones(2)}),
        ("hessian must be positive semidefinite", (), {"hessian": np.diag([1.0, -1.0])}),
        (r"hessian must be of shape \(2, 2\)", (), {"hessian": np.ones(2)}),
        ("largest_curvature must be given if the hessian is an operator", (), {"hessian": lambda v: v}),
        ("largest_curvature must be an upper bound", (), {"hessian": lambda v: 2 * v, "largest_curvature": 1.0}),
        ("largest_curvature must be >= the hessian's largest eigenvalue, 1, got 0.5", (), {"largest_curvature": 0.5}),
        ("largest_curvature must be a finite number >= 0", (), {"largest_curvature": -1.0}),
        ("step_size must be a finite number > 0, got 0.0", (), {"step_size": 0.0}),
    ),
    ("baseline must be a vector of the norm", spectra.adam_bound_gap, (PAIR, PAIR, 2 * PAIR, PAIR, 0.1), {}),
    *cases(
        spectra.cosine_similarity,
        (r"b must be a set of blocks named as in a, \['q'\]", ({"q": PAIR}, {"k": PAIR}), {}),
        ("a must be at least one array", ({}, {}), {}),
        ("b must be a set of blocks", ([PAIR, PAIR], [PAIR]), {}),
        (r"b\['q'\] must be of the shape of a\['q'\], \(2,\)", ({"q": PAIR}, {"q": ONES}), {}),
        ("b must be from the same library as a", (PAIR, torch.ones(2)), {}),
        ("b must be of a real .* dtype", (PAIR, np.array([True, False])), {}),
        ("b must be finite in every entry, got nan", (PAIR, np.array([1.0, NAN])), {}),
        (r"a\[1\] must be finite in every entry, got -inf", ([PAIR, -PAIR * INF], [PAIR, PAIR]), {}),
    ),
    ("clean must be of the shape of denoised", spectra.improvement, (PAIR, PAIR, ONES), {}),
    ("clean must be at least one array", spectra.layer_improvements, ({"q": PAIR}, {"q": PAIR}, {}), {}),
    *cases(
        spectra.block_cosine,
        ("after must be a set of blocks named as in", ({"a": PAIR}, {"a": PAIR}, {"b": PAIR}), {}),
        ("before must be of the shape of target", (PAIR, ONES, PAIR), {}),
        (r"tolerance must be a finite number in \[0, 1\), got 1.0", (PAIR, PAIR, PAIR, 1.0), {}),
    ),
    *cases(
        denoise,
        ("sigma must be a finite number >= 0, got -1.0", (EYE,), {"sigma": -1.0}),
        ("sigma must be a finite number >= 0, got nan", (EYE,), {"sigma": NAN}),
        ("sigma must be a finite number >= 0, got inf", (EYE,), {"sigma": INF}),
        ("sigma must be a finite number >= 0, got '1'", (EYE,), {"sigma": "1"}),
        ("kappa must be a finite number >= 1, got 0.99", (EYE, 1.0), {"kappa": 0.99}),
        ("kappa must be a finite number >= 1, got inf", (EYE, 1.0), {"kappa": INF}),
        ("loss must be one of 'frobenius', 'operator', 'nuclear', got 'l2'", (EYE, 1.0), {"loss": "l2"}),
        ("backend must be one of 'auto', 'gram', 'lanczos', 'products', 'svd'", (EYE, 1.0), {"backend": "qr"}),
    ),
    *cases(
        layers,
        ("layers must be a mapping of names to arrays", ([EYE],), {}),
        (r"layers\['bad'\] must be an array, got None", (with_bad(None),), {}),
        (r"layers\['bad'\] must be finite in every entry, got nan", (with_bad(np.full((2, 3), NAN)),), {}),
        (r"layers\['bad'\] must be finite in every entry", (with_bad(np.full((2, 3), INF)),), {"sigma": 0.0}),
        (r"layers\['bad'\] must be a non-empty array", (with_bad(np.ones((0, 3))),), {}),
        (r"layers\['bad'\] must be of a real .* dtype", (with_bad(np.ones((2, 3), bool)),), {}),
        ("sigma must be a finite number >= 0, got -1.0", (), {"sigma": -1.0}),
        ("sigma must be given for every matrix, also for 'bad', got .*good", (), {"sigma": {"good": 1.0}}),
        (r"sigma\['bad'\] must be a finite number >= 0, got -2.0", (), {"sigma": {"good": 1.0, "bad": -2.0}}),
        ("kappa must be a finite number >= 1, got 0.5", (), {"kappa": 0.5}),
        (r"kappa\(\(2, 3\)\) must be a finite number >= 1, got 0.5", (), {"kappa": lambda shape: 0.5}),
        ("loss must be one of", (), {"loss": "l1"}),
        ("backend must be one of", (), {"backend": "qr"}),
    ),
    *cases(
        MarchenkoPastur,
        *((r"^sigma must be a finite number > 0", (SHAPE, sigma), {}) for sigma in (0.0, -1.0, NAN, INF)),
        ("^shape must be a pair", ((16, 0), 1.0), {}),
    ),
    *(("^q must be .* >= 0 and <= 1", MarchenkoPastur(SHAPE, 1.0).ppf, (q,), {}) for q in (-0.1, 1.1, [0.5, 2.0])),
    *cases(
        spectra.momentum_noise_scale,
        *(("decay must be a finite number in", (decay, 1), {}) for decay in (-0.1, 1.0, NAN)),
        ("step must be", (0.9, 0), {}),
    ),
    *cases(
        spectra.noisy_spectrum,
        *(("matrix must be", (x, 1.0), {}) for x in (ONES, np.zeros((2, 3, 4)), np.array([[True]]), NAN * EYE)),
        ("sigma must be", (EYE, -1.0), {}),
    ),
    *cases(
        spectra.predicted_spectrum,
        *(
            (r"^signals must be an array of shape \(..., r\) with r <= 4", (x, (4, 9), 1.0), {})
            for x in (np.ones(5), 1.0, np.ones((2, 5)))
        ),
    ),
    ("^loss must be one of 'frobenius', 'operator', 'nuclear'", spectra.shrink, (1.0, (3, 4), 1.0, "l2"), {}),
    ("^shape must be a pair", spectra.hard_threshold, ((0, 3),), {}),
    ("^sigma must be", spectra.hard_threshold, ((3, 3), -1.0), {}),
    *cases(
        spectra.signal_energy,
        ("sigma", (ONES, 0.0), {}),
        ("failure", (ONES, 1.0), {"failure": 0.7}),
        ("noisy", ({}, 1.0), {}),
        ("noisy", (np.ones((0, 3)), 1.0), {}),
        ("noisy must be finite", (np.array([NAN]), 1.0), {}),
    ),
    ("squared_norms", spectra.signal_energy_over_steps, (-1.0, 3, 2), {}),
    ("dimension", spectra.signal_energy_over_steps, (1.0, 0, 2), {}),
    ("steps", spectra.signal_energy_over_steps, (1.0, 3, 0), {}),
    *cases(
        spectra.kappa_for,
        *(("^false_alarm must be a finite number in", (SHAPE, rate), {}) for rate in (0.0, 1.0, -0.1, NAN, "1")),
        *(("^shape must be a pair", (shape, 0.01), {}) for shape in ((16,), (0, 2), 3)),
    ),
    *cases(
        spectra.false_alarm_rate,
        *(("^kappa must be a finite number > 0", (SHAPE, kappa), {}) for kappa in (0.0, -1.0, NAN)),
        *(("^shape must be a pair", (shape, 1.02), {}) for shape in ((16,), (0, 2), 3)),
    ),
    *cases(
        spectra.tracy_widom_edge,
        *(("^false_alarm must be a finite number in", (SHAPE, 1.0, rate), {}) for rate in (0.0, 1.0, NAN, "1")),
        *(("^shape must be a pair", (shape, 1.0, 0.01), {}) for shape in ((16,), (0, 2), 3)),
        ("^shape must be a pair whose longer side is >= 2", ((1, 1), 1.0, 0.01), {}),
        ("^centring must be one of 'johnstone', 'ma'", ((3, 4), 1.0, 0.01, "mine"), {}),
        ("^sigma must be", ((3, 4), -1.0, 0.01), {}),
    ),
]


@pytest.mark.parametrize(("message", "function", "given", "options"), CASES)
def test_what_is_no_input_is_named(
    message: str, function: Callable[..., Any], given: tuple[Any, ...], options: dict[str, Any]
) -> None:
    with pytest.raises(ParameterError, match=message):
        function(*given, **options)


MATRICES = [
    (ONES, r"matrix must be .*shape.* got \(3,\)"),
    (np.ones((2, 0)), r"matrix must be a non-empty array, whose shape has no 0, got \(2, 0\)"),
    (np.ones((0, 2, 3)), "matrix must be a non-empty array"),
    (np.ones((2, 2), bool), "matrix must be of a real floating-point or integer dtype, got .*bool"),
    (np.ones((2, 2), complex), "matrix must be of a real floating-point or integer dtype, got .*complex"),
    (np.diag([1.0, NAN]), "matrix must be finite in every entry, got nan"),
    (np.diag([1.0, -INF]), "matrix must be finite in every entry, got"),
    (np.diag([1.0, INF]).astype(np.float16), "matrix must be finite in every entry, got"),
]


@pytest.mark.parametrize("library", [np.asarray, torch.from_numpy], ids=["numpy", "torch"])
@pytest.mark.parametrize(("matrix", "message"), MATRICES)
def test_what_is_no_matrix_is_named(matrix: np.ndarray, message: str, library: Callable[..., Any]) -> None:
    for call in (lambda x: denoise(x, 1.0), lambda x: denoise(x, 0.0), spectra.estimate_sigma):
        with pytest.raises(ParameterError, match=message):
            call(library(matrix))


def test_a_kernel_is_no_stack_of_matrices_and_lists_of_other_lengths_are_none() -> None:
    with pytest.raises(ParameterError, match=r"a convolution's kernel as a matrix, such as x.reshape\(len\(x\), -1\)"):
        denoise(np.ones((8, 4, 3, 3)), 1.0)
    for matrix, allowed in ((1.0, "shape"), ([[1.0], [1.0, 2.0]], "floating")):
        with pytest.raises(ParameterError, match=rf"^matrix must be .*{allowed}"):
            spectra.estimate_sigma(matrix)


NO_SHAPE = ((16,), (16, 768, 1), (0, 5), (-1, 5), (1.5, 2), (True, 2), 16, "ab", None)
OF_SHAPES: dict[str, Callable[..., Any]] = {
    "bulk_edge": spectra.bulk_edge,
    "detection_threshold": spectra.detection_threshold,
    "spike_map": lambda *at: spectra.spike_map(1.0, *at),
    "spike_map_inverse": lambda *at: spectra.spike_map_inverse(1.0, *at),
    "vector_overlaps": lambda *at: spectra.vector_overlaps(1.0, *at),
    "shrink": lambda *at: spectra.shrink(1.0, *at),
    "predicted_spectrum": lambda *at: spectra.predicted_spectrum([1.0], *at),
}


@pytest.mark.parametrize("function", OF_SHAPES.values(), ids=OF_SHAPES)
def test_a_shape_is_a_pair_of_positive_integers_and_sigma_finite(function: Callable[..., Any]) -> None:
    for shape in NO_SHAPE:
        with pytest.raises(ParameterError, match=r"^shape must be a pair"):
            function(shape, 1.0)
    for sigma in (-1.0, NAN, INF, "1", None, True):
        with pytest.raises(ParameterError, match=r"^sigma must be"):
            function(SHAPE, sigma)


LAW, MAPS = MarchenkoPastur(SHAPE, 1.0), ("spike_map", "spike_map_inverse", "vector_overlaps", "shrink")
NO_VALUES = [
    *((value, "finite") for value in (NAN, np.array([1.0, NAN]), torch.tensor([INF]))),
    *((torch.tensor([value]), "floating") for value in (True, 1.0 + 1.0j)),
    *((value, "floating") for value in (np.array([True]), "40", None)),
]


@pytest.mark.parametrize(("value", "allowed"), NO_VALUES)
def test_a_value_is_a_real_finite_number(value: Any, allowed: str) -> None:
    for name in MAPS:
        with pytest.raises(ParameterError, match=rf"^(signal|observed) must be .*{allowed}"):
            getattr(spectra, name)(value, SHAPE, 1.0)
        with pytest.raises(ParameterError, match=r"must be .*>= 0"):
            getattr(spectra, name)(-1.0, SHAPE, 1.0)
    for method in (LAW.pdf, LAW.cdf, LAW.sf, LAW.ppf):
        with pytest.raises(ParameterError, match=rf"^[xq] must be .*{allowed}"):
            method(value)


@pytest.mark.parametrize("library", [np.asarray, torch.from_numpy], ids=["numpy", "torch"])
def test_integers_count_as_float64_and_no_values_have_no_images(library: Callable[..., Any]) -> None:
    matrix = np.diag([40, 3, 0])
    for change in (denoise, lambda x, sigma: denoise_layers({"a": x}, sigma)[0]["a"]):
        found = change(library(matrix), 1.0)
        assert found.dtype == library(np.ones(1)).dtype
        np.testing.assert_array_equal(np.asarray(found), change(matrix * 1.0, 1.0))
    maps = [lambda x, name=name: getattr(spectra, name)(x, SHAPE, 1.0) for name in MAPS if name != "vector_overlaps"]
    maps += [lambda x: spectra.vector_overlaps(x, SHAPE, 1.0)[1], lambda x: spectra.spike_map(x, SHAPE, 0.0)]
    for of_values in (*maps, LAW.pdf, LAW.cdf, LAW.sf, LAW.ppf):
        for values in (np.array([0, 1], np.int32), np.zeros((2, 0)), np.array([], np.int64)):
            found = np.asarray(of_values(library(values)))
            np.testing.assert_array_equal(found, of_values(values * 1.0))
            assert (found.dtype, found.shape) == (np.float64, values.shape)
