"""Spikes from products with the matrix alone, and the probabilistic proof that there are no others."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import chi2
from torch.utils._python_dispatch import TorchDispatchMode

from dprmt.spectra import _krylov
from dprmt.spectra._backends import leading_spectrum
from dprmt.spectra._krylov import FAILURE, WIDTH, DeflatedProduct, FrobeniusRun, leading_pairs, least_overlap

SEEDS = st.integers(0, 2**32 - 1)
LIBRARIES = pytest.mark.parametrize("library", [np.asarray, torch.from_numpy], ids=["numpy", "torch"])


def noise(rng, rows, columns, spikes=()):
    """Noise with bulk edge 1, plus spikes."""
    left, right = (np.linalg.qr(rng.standard_normal((side, max(1, len(spikes)))))[0] for side in (rows, columns))
    bulk = rng.standard_normal((rows, columns)) / (math.sqrt(rows) + math.sqrt(columns))
    return bulk + (left[:, : len(spikes)] * np.array(spikes)) @ right[:, : len(spikes)].T


def nothing_deflated(y):
    return DeflatedProduct(y, y[:, :0].double() if isinstance(y, torch.Tensor) else y[:, :0].astype(float))


def start_again(run, vector, share):
    """From a start with only this share of its overlap with a vector; returns that overlap."""
    start = run.next.reshape(run.shape)
    start = start - (1 - share) * np.outer(start @ vector, vector)
    norm = np.linalg.norm(start)
    run.next, run.norm = start.reshape(-1) / norm, run.norm * norm
    return run.norm * float(np.linalg.norm(start @ vector)) / norm


@LIBRARIES
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("spikes", [[], [1.5], [2.0, 2.0, 1.4], [8.0, 1.3], [3.0] * 20], ids=str)
def test_all_pairs_above_the_edge(spikes, dtype, library):
    """As many, and the same, as a full decomposition has; repeated ones too."""
    matrix = noise(np.random.default_rng(1), 500, 600, spikes).astype(dtype)
    left, values, _ = np.linalg.svd(matrix.astype(float))
    threshold = 1.02**2
    found, vectors = leading_pairs(library(matrix), threshold, 1e-6 if dtype is np.float32 else 1e-11)
    count = int((values**2 > threshold).sum())
    assert len(found) == max(1, count)
    tolerance = 1e-6 if dtype is np.float32 else 1e-10
    if count:
        np.testing.assert_allclose(np.asarray(found)[::-1], values[:count] ** 2, rtol=tolerance)
        U = np.asarray(vectors)
        np.testing.assert_allclose(U @ U.T, left[:, :count] @ left[:, :count].T, atol=10 * tolerance)
    else:
        assert float(found[0]) == pytest.approx(values[0] ** 2, rel=1e-3)


@given(SEEDS, st.integers(1, 30), st.floats(1.0, 3.0), st.sampled_from([np.float32, np.float64]))
def test_bound_of_what_was_missed(seed, steps, top, dtype):
    """The theorem's inequality: no eigenvector beyond the threshold has a larger overlap with the start."""
    rng = np.random.default_rng(seed)
    size = 60
    Q = np.linalg.qr(rng.standard_normal((size, size)))[0]
    y = (Q * np.sqrt(np.append(rng.uniform(0, 0.95, size - 1), top))).astype(dtype)
    hidden = np.linalg.svd(y.astype(float))[0][:, 0]
    run = FrobeniusRun(nothing_deflated(y), rng, nothing_deflated(y).rounding * top)
    overlap = start_again(run, hidden, 10.0 ** rng.uniform(-9, 0))  # unlucky by up to nine digits
    for _ in range(steps):
        run.step()
        if run.sees_above(1.0):
            break
        assert run.largest_missed(1.0) >= overlap


class Conspiring(DeflatedProduct):
    """Products whose errors make one direction look like one of the bulk, as far as a bound of their norm allows."""

    def __init__(self, y, hidden, allowed):
        super().__init__(y, y[:, :0])
        self.hidden, self.allowed = hidden, allowed

    def __call__(self, rows):
        exact = super().__call__(rows)
        error = np.outer(0.35 * rows @ self.hidden - exact @ self.hidden, self.hidden)
        return exact + error * min(1.0, self.allowed / max(float(np.linalg.norm(error)), 1e-300))


@given(SEEDS, st.floats(1.0, 3.0), st.floats(-6, -3))
def test_bound_of_what_was_missed_holds_for_any_errors(seed, top, exponent):
    """Where errors of the products hide a direction, the bound does not fall below what it started with."""
    rng = np.random.default_rng(seed)
    y = np.diag(np.sqrt(np.append(rng.uniform(0, 0.7, 59), top)))
    hidden, allowed = np.eye(60)[59], 10**exponent
    run = FrobeniusRun(Conspiring(y, hidden, allowed), rng, allowed)
    overlap = start_again(run, hidden, 0.1 * allowed)
    for _ in range(25):
        run.step()
        assert not run.sees_above(1.0)
        assert run.largest_missed(1.0) >= overlap
    assert run.largest_missed(1.0) < 1e3 * run.norm * allowed


def test_bound_is_tight():
    """Noise is proven to be noise by fewer products than a Chebyshev polynomial of known ends would take."""
    rng = np.random.default_rng(3)
    y = noise(rng, 300, 400)
    run = FrobeniusRun(nothing_deflated(y), rng, 0.0)
    steps = 0
    while steps == 0 or run.largest_missed(1.02**2) >= least_overlap(WIDTH, FAILURE):
        run.step()
        steps += 1
    assert steps <= 10  # log(2·√(300·16)/0.49)/(2·0.2) = 14.1


@given(st.integers(1, 40), st.floats(-15, -3))
def test_probability_of_a_small_overlap(width, exponent):
    """The closed form is above the χ² probability, by less than a factor of two where that is small."""
    failure = 10**exponent
    exact = chi2.cdf(least_overlap(width, failure) ** 2, width)
    assert exact <= failure * (1 + 1e-9)
    assert least_overlap(width, failure) >= 0.5 * math.sqrt(chi2.ppf(failure, width))


@LIBRARIES
def test_a_spike_that_the_search_missed_is_seen(monkeypatch, library):
    """The proof runs from a start of its own: a search that finds nothing does not make a matrix noise."""
    monkeypatch.setattr(_krylov, "_search", lambda product, *rest: (product.deflated[0], product.deflated))
    rng = np.random.default_rng(4)
    for strength in (1.4, 2.0, 9.0):
        y = library(noise(rng, 300, 400, [strength]).astype(np.float32))
        assert leading_pairs(y, 1.02**2, 1e-6) is None
    assert leading_pairs(library(noise(rng, 300, 400).astype(np.float32)), 1.02**2, 1e-6) is not None


def test_the_second_of_two_equal_spikes_is_seen():
    """A Krylov space of one vector holds one of them; deflated, the other one remains."""
    y = np.diag(np.sqrt([4.0, 4.0, *np.linspace(0, 0.9, 300)]))
    product = nothing_deflated(y).without(np.eye(302)[:, :1])
    run = FrobeniusRun(product, np.random.default_rng(0), product.rounding * 4)
    assert not run.shows_below(1.0)
    assert run.sees_above(1.0)
    assert len(leading_pairs(y, 1.0, 1e-9)[0]) == 2


def test_the_start_is_what_the_probability_is_over():
    """With a start that lacks the spike the proof is wrong; so it is the event that has probability 1e-12."""
    y = np.diag(np.sqrt([4.0, *np.linspace(0, 0.9, 300)]))
    product = nothing_deflated(y)
    for lacking, wrong in ((True, True), (False, False)):
        run = FrobeniusRun(product, np.random.default_rng(0), product.rounding * 4)
        if lacking:
            start_again(run, np.eye(301)[0], 0.0)
        assert run.shows_below(1.0) is wrong


@pytest.mark.parametrize("rows", [200, 800])
def test_rounding_of_products(rows):
    """A float32 product is within what the proof charges for it, and the charge is not a hundred times too large."""
    rng = np.random.default_rng(5)
    y = noise(rng, rows, 2 * rows).astype(np.float32)
    block = rng.standard_normal((WIDTH, rows))
    block /= np.linalg.norm(block)
    wide = y.astype(float)
    error = np.linalg.norm(nothing_deflated(y)(block) - (block @ wide) @ wide.T)
    charged = nothing_deflated(y).rounding
    assert error <= charged / 3
    assert error >= charged / 1000


def test_what_cannot_be_proven_is_left_to_others(monkeypatch):
    """A value within rounding of the edge, and more spikes than pay: no answer, after one search, of others' work."""
    searches = []
    monkeypatch.setattr(_krylov, "_search", lambda *a, f=_krylov._search: searches.append(1) or f(*a))
    rng = np.random.default_rng(6)
    y = noise(rng, 200, 260, [1.7])
    within = float(np.linalg.svd(y)[1][1] ** 2)
    assert leading_pairs(y, within * (1 + 1e-13), 1e-9) is None
    assert leading_pairs(noise(rng, 200, 260, np.linspace(3, 2, 120)), 1.02**2, 1e-9) is None
    assert len(searches) == 2


def test_a_far_value_ends_the_run_at_once(monkeypatch):
    monkeypatch.delattr(_krylov, "FrobeniusRun")
    y = noise(np.random.default_rng(7), 300, 400, [50.0])
    values, vectors = leading_pairs(y, 1.02**2, 1e-9, limit=100.0)
    assert float(values[-1]) == pytest.approx(2500, rel=1e-2)
    assert vectors.shape[1] == len(values)


@LIBRARIES
@pytest.mark.parametrize("spikes", [[], [2.0, 1.4], [30.0, 1.4], np.linspace(3, 1.5, 150)], ids=len)
def test_backend_without_the_product(spikes, library):
    """The choice of the way changes no answer; where it fails, the others take over."""
    matrix = noise(np.random.default_rng(8), 420, 700, spikes).astype(np.float32)
    stack, edges = library(matrix[None]), library(np.array([1.02]))
    usual = leading_spectrum(stack, edges)
    spectrum = leading_spectrum(stack, edges, "products")
    assert spectrum.values.shape == usual.values.shape
    above = np.asarray(usual.values)[0] > 1.02
    np.testing.assert_allclose(np.asarray(spectrum.values)[0, above], np.asarray(usual.values)[0, above], rtol=2e-6)
    projections = [np.asarray(s.vectors)[0][:, above] for s in (spectrum, usual)]
    np.testing.assert_allclose(*(U @ U.T for U in projections), atol=2e-5)


class LargestProduct(TorchDispatchMode):
    """Entries of the largest product of matrices within."""

    most = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        if func.overloadpacket in (torch.ops.aten.mm, torch.ops.aten.bmm):
            self.most = max(self.most, result.numel())
        return result


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_backend_without_the_product_forms_none(dtype):
    """Nothing of the size of YYᵀ is multiplied together; the other way forms it, and is seen to."""
    matrix = torch.from_numpy(noise(np.random.default_rng(9), 500, 700, [3.0, 2.0])).to(dtype)[None]
    seen = {}
    for backend in ("products", "lanczos"):
        with LargestProduct() as products:
            leading_spectrum(matrix, torch.tensor([1.02]), backend)
        seen[backend] = products.most
    assert 0 < seen["products"] <= 32 * 700
    assert seen["lanczos"] >= 500 * 500
