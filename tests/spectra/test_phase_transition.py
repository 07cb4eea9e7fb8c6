"""Edge, threshold, spike map and overlaps: against 60-digit values, as theorems, and against simulation.

``oracles/phase_transition.py`` in commit 411bdc64 made the stored values.
"""

from __future__ import annotations

import math
from functools import partial

import mpmath as mp
import numpy as np
import pytest
import scipy
import torch
from hypothesis import given
from hypothesis import strategies as st

from dprmt.spectra import (
    MarchenkoPastur,
    bulk_edge,
    detection_threshold,
    predicted_spectrum,
    shrink,
    spike_map,
    spike_map_inverse,
    vector_overlaps,
)
from tests.spectra.simulation import FACTORS, SHAPES, SIGMAS, exceedance_counts, stored, top_of_spiked_noise

FUNCTIONS = {
    "spike_map": spike_map,
    "spike_map_inverse": spike_map_inverse,
    "left_overlap": lambda *args: vector_overlaps(*args)[0],
    "right_overlap": lambda *args: vector_overlaps(*args)[1],
    **{loss: partial(shrink, loss=loss) for loss in ("frobenius", "operator", "nuclear")},
}
CASES = stored("phase_transition")


def relative_error(value, exact):
    with mp.workdps(40):
        error = abs(mp.mpf(float(value)) - mp.mpf(exact))
        return float(error / mp.mpf(exact)) if mp.mpf(exact) else float(error)


# ---------------------------------------------------------------------------------------------- oracle


@pytest.mark.parametrize("array", [np.asarray, lambda x, dtype: torch.tensor(x, dtype=getattr(torch, dtype))])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_equals_the_printed_formula_in_60_digits(name, array):
    """To the rounding of the dtype, from 1e-15 above the edge (float64) and 1e-6 above it (float32)."""
    cases = [case for case in CASES if case["function"] == name]
    assert len(cases) > 50
    for case in cases:
        value = FUNCTIONS[name](array([case["x"]], dtype=case["dtype"]), case["shape"], case["sigma"])[0]
        factor = 4 if name == "nuclear" else 1  # its last step subtracts 1
        assert relative_error(value, case["value"]) <= factor * case["rtol"], case


def test_no_overflow_or_underflow_at_extreme_units():
    """Squares of the arguments leave the range of floats here; the functions do not."""
    for unit in (1e-200, 1e200):
        for function, at in ((shrink, 40.0), (spike_map, 20.0), (spike_map_inverse, 40.0)):
            expected = function(at, (16, 768), 1.0) * unit
            assert function(at * unit, (16, 768), unit) == pytest.approx(expected, rel=1e-14)


# -------------------------------------------------------------------------------------------- theorems


@given(SHAPES, SIGMAS, st.floats(1.0001, 1000.0))
def test_above_the_threshold(shape, sigma, factor):
    """F(λ) > λ, F(λ) > b₊, and F⁻¹(F(λ)) = λ, to the rounding of F(λ) divided by the slope of F.

    The overlap of the vectors in the smaller space is the larger one.
    """
    signal = factor * detection_threshold(shape, sigma)
    observed = spike_map(signal, shape, sigma)
    assert observed > max(signal, bulk_edge(shape, sigma))
    assert spike_map_inverse(observed, shape, sigma) == pytest.approx(signal, rel=1e-15 * (2 + 2 / (factor - 1)))
    left, right = vector_overlaps(signal, shape, sigma)
    assert (left >= right) if shape[0] <= shape[1] else (left <= right)


@given(SHAPES, SIGMAS, FACTORS, FACTORS)
def test_spike_map_is_monotone(shape, sigma, a, b):
    """λ <= λ' implies F(λ) <= F(λ'), strictly above the threshold when λ and λ' are apart."""
    low, high = sorted((a, b))
    threshold = detection_threshold(shape, sigma)
    F_low, F_high = (spike_map(factor * threshold, shape, sigma) for factor in (low, high))
    assert F_low <= F_high * (1 + 1e-15)
    if high > 1.001 and high > 1.001 * low:
        assert F_low < F_high


@given(SHAPES, SIGMAS, st.floats(1e-9, 1e-3))
def test_spike_map_is_continuous_at_the_threshold(shape, sigma, step):
    """F(λ*) = b₊ and F(λ*(1 + δ)) = b₊(1 + O(δ²)): the slope at the threshold is 0."""
    threshold, edge = detection_threshold(shape, sigma), bulk_edge(shape, sigma)
    assert spike_map(threshold, shape, sigma) == pytest.approx(edge, rel=1e-15)
    rise = spike_map(threshold * (1 + step), shape, sigma) / edge - 1
    assert -1e-15 <= rise <= 2 * step**2 + 1e-15


@given(SHAPES, SIGMAS, FACTORS)
def test_overlaps_transposition_and_order(shape, sigma, factor):
    """Both overlaps lie in [0, 1], are 0 up to the threshold and positive above it; η(y) <= F⁻¹(y) <= y.

    (m, n) → (n, m) swaps the overlaps and leaves edge, threshold, F and F⁻¹ as they are.
    """
    signal = factor * detection_threshold(shape, sigma)
    overlaps = vector_overlaps(signal, shape, sigma)
    for overlap in overlaps:
        assert 0 <= overlap <= 1
        assert (overlap > 0) == (factor > 1) or abs(factor - 1) < 1e-15
    turned = shape[::-1]
    assert overlaps == vector_overlaps(signal, turned, sigma)[::-1]
    for function in (spike_map, spike_map_inverse):
        assert function(signal, shape, sigma) == pytest.approx(function(signal, turned, sigma), rel=1e-15)
    for scale in (bulk_edge, detection_threshold):
        assert scale(shape, sigma) == scale(turned, sigma)
    y = factor * bulk_edge(shape, sigma)
    λ = spike_map_inverse(y, shape, sigma)
    assert shrink(y, shape, sigma) <= λ * (1 + 1e-15)
    assert λ <= y


@given(SHAPES, SIGMAS, st.floats(1 + 1e-12, 1000.0))
def test_inverse_is_zero_or_above_the_threshold(shape, sigma, factor):
    """F⁻¹(y) >= λ* for y > b₊, and 0 for y < b₊."""
    edge, threshold = bulk_edge(shape, sigma), detection_threshold(shape, sigma)
    assert spike_map_inverse(edge * factor, shape, sigma) >= threshold * (1 - 1e-15)
    assert spike_map_inverse(edge / factor, shape, sigma) == 0


@given(SHAPES, SIGMAS, FACTORS, st.floats(1e-3, 1e3))
def test_scale_equivariance(shape, sigma, factor, unit):
    """Changing the unit of the matrix changes singular values with it and leaves overlaps alone."""
    signal = factor * detection_threshold(shape, sigma)
    if abs(factor - 1) < 1e-12:
        return
    assert bulk_edge(shape, unit * sigma) == pytest.approx(unit * bulk_edge(shape, sigma), rel=1e-15)
    observed = unit * spike_map(signal, shape, sigma)
    assert spike_map(unit * signal, shape, unit * sigma) == pytest.approx(observed, rel=1e-14)
    overlaps = vector_overlaps(signal, shape, sigma)
    assert vector_overlaps(unit * signal, shape, unit * sigma) == pytest.approx(overlaps, abs=1e-14)


@given(SHAPES, st.floats(0.0, 1e300))
def test_without_noise_nothing_changes(shape, signal):
    """σ = 0: F and F⁻¹ are the identity, edge and threshold are 0, every positive signal has overlap 1."""
    assert bulk_edge(shape, 0.0) == detection_threshold(shape, 0.0) == 0.0
    assert spike_map(signal, shape, 0.0) == spike_map_inverse(signal, shape, 0.0) == signal
    assert vector_overlaps(signal, shape, 0.0) == ((1.0, 1.0) if signal > 0 else (0.0, 0.0))


# ------------------------------------------------------------------------------------------ simulation

SIMULATED_SHAPES = [(16, 768), (768, 16), (512, 2048)]
DRAWS = 200


def spike_deviation(tops, predicted, shape):
    """|mean - predicted| in units of what is allowed: 3 standard errors + 0.04 F N^{-2/3}, N = min(m, n)."""
    allowed = 3 * tops.std() / math.sqrt(len(tops)) + 0.04 * predicted * min(shape) ** (-2 / 3)
    return abs(tops.mean() - predicted) / allowed


def overlap_deviation(overlaps, predicted, shape, factor):
    """The same for overlaps: 3 standard errors + c N^{-2/3}, c = 0.9 up to 1.3 λ* and 0.1 above."""
    finite_size = (0.9 if factor < 1.3 else 0.1) * min(shape) ** (-2 / 3)
    return abs(overlaps.mean() - predicted) / (3 * overlaps.std() / math.sqrt(len(overlaps)) + finite_size)


@pytest.mark.parametrize("factor", [1.1, 1.2, 1.5, 2.0, 3.0, 5.0])
@pytest.mark.parametrize("shape", SIMULATED_SHAPES)
def test_spikes_and_overlaps_are_where_theory_puts_them(shape, factor):
    """Mean over 200 draws within 3 standard errors plus the finite-size terms of the two helpers above.

    Near the threshold the fluctuations of spike and edge mix on the scale N^{-2/3} (relative); the constants
    0.04 (spike) and 0.9, 0.1 (overlap) cover what 4,000 draws show at these shapes. Rejected: the bulk edge
    or the clean value in place of F, and from 1.5 λ* on the two overlaps exchanged.
    """
    signal = factor * detection_threshold(shape, 1.0)
    left, right = vector_overlaps(signal, shape, 1.0)
    for orientation, overlap, other in ((shape, left, right), (shape[::-1], right, left)):
        tops, overlaps = top_of_spiked_noise(orientation, signal, DRAWS, np.random.default_rng(7))
        assert spike_deviation(tops, spike_map(signal, shape, 1.0), shape) <= 1
        assert spike_deviation(tops, signal, shape) > 1
        assert overlap_deviation(overlaps, overlap, shape, factor) <= 1
        if factor >= 1.5:
            assert spike_deviation(tops, bulk_edge(shape, 1.0), shape) > 1
            assert spike_deviation(tops, spike_map(signal, shape, 1.05), shape) > 1
            assert overlap_deviation(overlaps, other, shape, factor) > 1


@pytest.mark.parametrize("factor", [0.0, 0.5])
@pytest.mark.parametrize("shape", SIMULATED_SHAPES)
def test_hidden_signals_stay_at_the_edge(shape, factor):
    """Below the threshold the mean of the largest singular value lies between b₊(1 - 0.5 N^{-2/3}) and b₊.

    The Tracy–Widom law has mean -1.21, so the largest singular value lies a little inside: by 1.5 % of b₊ at
    N = 16 and 0.4 % at N = 512. Rejected: an edge 3 % too low or 10 % too high.
    """
    tops, _ = top_of_spiked_noise(shape, factor * detection_threshold(shape, 1.0), DRAWS, np.random.default_rng(8))
    error = 3 * tops.std() / math.sqrt(DRAWS)

    def accepts(edge):
        return edge * (1 - 0.5 * min(shape) ** (-2 / 3)) - error <= tops.mean() <= edge

    edge = bulk_edge(shape, 1.0)
    assert [accepts(edge * factor) for factor in (0.97, 1.0, 1.1)] == [False, True, False]


def test_the_sampler_draws_from_the_right_law():
    """Kolmogorov–Smirnov accepts the sampler against dense SVDs, and rejects it for a signal 10 % larger."""
    rng = np.random.default_rng(3)
    for shape in ((5, 9), (9, 5), (4, 4)):
        dense = rng.standard_normal((4000, *shape))
        dense[:, 0, 0] += 3.0
        u, s, _ = np.linalg.svd(dense)
        tops, overlaps = top_of_spiked_noise(shape, 3.0, 4000, rng)
        assert scipy.stats.ks_2samp(tops, s[:, 0]).pvalue > 1e-3
        assert scipy.stats.ks_2samp(overlaps, u[:, 0, 0] ** 2).pvalue > 1e-3
        wrong, _ = top_of_spiked_noise(shape, 3.3, 4000, rng)
        assert scipy.stats.ks_2samp(wrong, s[:, 0]).pvalue < 1e-6
        gate = 1.1 * bulk_edge(shape, 1.0)
        rate = exceedance_counts(shape, [gate], 40_000, rng)[0] / 40_000
        noise = np.linalg.svd(rng.standard_normal((40_000, *shape)), compute_uv=False)[:, 0]
        assert abs(rate - np.mean(noise > gate)) < 4 * math.sqrt(2 * rate / 40_000)


# -------------------------------------------------------------------------------- predicted spectrum


def test_predicted_spectrum_is_spikes_then_quantiles():
    """Above the threshold Eq. 3; below, the midpoint quantiles of the law, in decreasing order."""
    shape, signals = (8, 100), np.array([2.0, 40.0, 0.0, 25.0])
    spectrum = predicted_spectrum(signals, shape, 1.0)
    assert spectrum[:2] == pytest.approx(spike_map(np.array([40.0, 25.0]), shape, 1.0))
    assert MarchenkoPastur(shape, 1.0).cdf(spectrum[2:]) == pytest.approx((np.arange(6)[::-1] + 0.5) / 6)
    assert np.all(np.diff(spectrum) < 0)


def test_predicted_spectrum_of_batches_tensors_and_nothing():
    """Each row of a batch is predicted alone; no signal at all is pure noise; σ = 0 returns the signals."""
    batch = torch.tensor([[1.0, 30.0], [0.0, 2.0], [1000.0, 50.0]], dtype=torch.float32)
    rows = torch.stack([predicted_spectrum(row, (4, 100), 1.0) for row in batch])
    assert predicted_spectrum(batch, (4, 100), 1.0).dtype == torch.float32
    assert torch.equal(predicted_spectrum(batch, (4, 100), 1.0), rows)
    assert predicted_spectrum([], (4, 100), 1.0) == pytest.approx(predicted_spectrum([0.0], (4, 100), 1.0))
    assert predicted_spectrum([1.0, 3.0], (3, 5), 0.0).tolist() == [3.0, 1.0, 0.0]


def test_predicted_spectrum_matches_a_simulated_one():
    """The mean of each singular value, 64 × 256, is within 1.5 % of the prediction, and not for σ 5 % off."""
    rng, shape = np.random.default_rng(5), (64, 256)
    signal = np.zeros(shape)
    signal[0, 0], signal[1, 1] = 30.0, 20.0
    mean = np.linalg.svd(signal + 0.5 * rng.standard_normal((60, *shape)), compute_uv=False).mean(0)
    errors = {σ: np.max(np.abs(mean / predicted_spectrum([30.0, 20.0], shape, σ) - 1)) for σ in (0.5, 0.525)}
    assert errors[0.5] < 0.015 < 0.03 < errors[0.525]


# ------------------------------------------------------------------------- forms, dtypes and bad input

ELEMENTWISE = [spike_map, spike_map_inverse, lambda *args: vector_overlaps(*args)[0], shrink]


@pytest.mark.parametrize("function", ELEMENTWISE)
def test_what_goes_in_comes_out(function):
    """Python numbers, NumPy scalars and arrays, tensors: same form, dtype and shape, same numbers."""
    values = np.linspace(0.0, 100.0, 24).reshape(2, 3, 4)
    expected = function(values, (16, 768), 1.0)
    assert isinstance(expected, np.ndarray)
    assert expected.dtype == np.float64
    assert expected.shape == values.shape
    assert isinstance(function(40, (16, 768), 1.0), float)
    assert isinstance(function(np.float32(40), (16, 768), 1.0), np.float32)
    assert function([40.0, 50.0], (16, 768), 1.0).dtype == np.float64
    for dtype, rtol in ((np.float32, 1e-7), (np.float16, 1e-3)):
        result = function(values.astype(dtype), (16, 768), 1.0)
        assert result.dtype == dtype
        assert result == pytest.approx(function(values.astype(dtype).astype(float), (16, 768), 1.0), rel=rtol)
    for name, rtol in (("float64", 0), ("float32", 1e-7), ("float16", 1e-3), ("bfloat16", 4e-3)):
        dtype = getattr(torch, name)
        tensor = torch.tensor(values).to(dtype)
        result = function(tensor, (16, 768), 1.0)
        assert result.dtype == dtype
        assert result.shape == tensor.shape
        torch.testing.assert_close(result.double(), function(tensor.double(), (16, 768), 1.0), rtol=rtol, atol=1e-7)


@pytest.mark.parametrize("function", ELEMENTWISE)
def test_the_argument_is_left_alone(function):
    """No result shares memory with the argument, also when σ = 0 makes it the same numbers."""
    for values in (np.array([30.0, 40.0]), torch.tensor([30.0, 40.0], dtype=torch.float64)):
        for sigma in (0.0, 1.0):
            function(values, (16, 768), sigma)[:] = -1.0
            assert values.tolist() == [30.0, 40.0]
