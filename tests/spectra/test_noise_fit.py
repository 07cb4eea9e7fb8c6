"""The noise level, of momenta too, whether white noise fits, thresholds and power."""

from __future__ import annotations

import math

import mpmath as mp
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from dprmt import ParameterError
from dprmt.cli._spectrum import _doubts as doubts
from dprmt.spectra import (
    bulk_edge,
    denoise,
    detection_threshold,
    estimate_sigma,
    kappa_for,
    momentum_noise_scale,
    noisy_spectrum,
    spike_map,
    visible_signal,
    whiten,
)
from dprmt.spectra._top_singular_value import exceeded_with
from dprmt.spectra._tracy_widom import _first_called

SHAPE = (64, 256)


def white(rng: np.random.Generator) -> np.ndarray:
    return rng.standard_normal(SHAPE)


def autoregressive(rng: np.random.Generator) -> np.ndarray:
    noise = rng.standard_normal(SHAPE)
    for j in range(1, SHAPE[1]):
        noise[:, j] = 0.3 * noise[:, j - 1] + np.sqrt(1 - 0.09) * noise[:, j]
    return noise


def heavy(rng: np.random.Generator) -> np.ndarray:
    return rng.standard_t(5, SHAPE) / np.sqrt(5 / 3)


def uneven(rng: np.random.Generator) -> np.ndarray:
    return np.exp(0.3 * rng.standard_normal((SHAPE[0], 1))) * rng.standard_normal(SHAPE)


NOT_WHITE = {"correlated": autoregressive, "heavy tails": heavy, "rows differ in scale: whiten first": uneven}


@pytest.mark.parametrize("said", NOT_WHITE)
def test_noise_that_is_not_white_is_said(said: str) -> None:
    """In all of five draws each."""
    draws = [NOT_WHITE[said](np.random.default_rng(seed)) for seed in range(5)]
    verdicts = [noisy_spectrum(noise, 1.0).fit.verdict for noise in draws]
    assert all(said in verdict for verdict in verdicts)


def test_white_noise_is_not_doubted() -> None:
    fits = [noisy_spectrum(white(np.random.default_rng(seed)), 1.0).fit for seed in range(10)]
    assert sum(not fit.fits for fit in fits) <= 1
    assert 0.2 < np.mean([fit.p_value for fit in fits]) < 0.8


def test_the_rest_of_many_strong_spikes_is_noise_of_a_smaller_shape() -> None:
    """Values after k strong spikes follow the law of (m - k, n - k), in nine of ten draws at least."""
    fits = []
    for seed in range(10):
        rng = np.random.default_rng(seed)
        left, right = (np.linalg.qr(rng.standard_normal((size, 24)))[0] for size in (96, 128))
        fits.append(noisy_spectrum(rng.standard_normal((96, 128)) + 400.0 * left @ right.T, 1.0).fit)
    assert sum(not fit.fits for fit in fits) <= 1
    assert 0.2 < np.mean([fit.p_value for fit in fits]) < 0.8


@pytest.mark.parametrize("stated", [0.001, 0.01, 0.5, 2.0, 100.0])
def test_a_wrong_sigma_is_contradicted(stated: float) -> None:
    noisy = white(np.random.default_rng(0))
    noisy[:, 0] += 6.0
    found = noisy_spectrum(noisy, stated)
    assert found.fit.sigma == pytest.approx(1.0, rel=0.03)
    assert found.fit.verdict == f"σ is about {found.fit.sigma:.3g}, not {stated:g}"
    assert found.fit.verdict in str(found)
    assert noisy_spectrum(noisy, 1.0).fit.fits


def test_equal_values_are_no_noise() -> None:
    turned = np.linalg.qr(np.random.default_rng(0).standard_normal((64, 64)))[0]
    found = noisy_spectrum(turned, 0.125).fit
    median = float(estimate_sigma(turned, "median"))
    said = f"no noise model fits, σ is {found.sigma:.3g} by mp-pca and {median:.3g} by median"
    assert found.verdict == said
    two = {"a": noisy_spectrum(turned, 0.125), "b": noisy_spectrum(2 * turned, 0.125)}
    assert list(doubts(two)) == ["noise of a and 1 more: no noise model fits\n"]
    assert list(doubts({"a": two["a"]})) == [f"noise of a: {said}\n"]


@pytest.mark.parametrize("seed", range(3))
def test_many_spikes_and_low_rank(seed: int) -> None:
    """30 spikes of 60 × 64; rank 5; half of the rows zero; float32 and its rounding."""
    rng = np.random.default_rng(seed)
    left, right = (np.linalg.qr(rng.standard_normal((side, 30)))[0] for side in (60, 64))
    spiked = (left * np.linspace(100, 40, 30)) @ right.T + rng.standard_normal((60, 64))
    assert estimate_sigma(spiked) == pytest.approx(1.0, rel=0.1)
    assert estimate_sigma(spiked, method="median") > 3
    low = rng.standard_normal((64, 5)) @ rng.standard_normal((5, 128))
    for matrix in (low, low.astype(np.float32), torch.tensor(low)):
        assert float(estimate_sigma(matrix)) == 0
    assert noisy_spectrum(low, 0.0).fit.verdict == "no noise: rank 5 of 64 to rounding"
    assert len(noisy_spectrum(low, 0.0).spikes) == 5
    half = rng.standard_normal((128, 256))
    half[64:] = 0
    assert estimate_sigma(half) == pytest.approx(1.0, rel=0.02)


def test_a_batch_takes_a_sigma_for_each_matrix() -> None:
    rng = np.random.default_rng(0)
    batch = np.stack([scale * (rng.standard_normal((20, 50)) + 3 * (i % 2)) for i, scale in enumerate((1.0, 5.0, 0.1))])
    for library in (np.asarray, torch.from_numpy):
        stack = library(batch)
        sigmas = estimate_sigma(stack)
        together = denoise(stack, sigmas)
        for one, matrix, sigma in zip(together, stack, sigmas, strict=True):
            np.testing.assert_allclose(one, denoise(matrix, float(sigma)), atol=1e-12)
    with pytest.raises(ParameterError, match="one for each matrix"):
        denoise(batch, np.ones(2))


def test_the_default_is_the_estimate_of_the_clean_matrix() -> None:
    """Noise 64 × 256 plus one column of 6: squared error over ‖X‖²; below the gate zeros, or unchanged if asked."""
    noise = white(np.random.default_rng(0))
    clean = np.zeros(SHAPE)
    clean[:, 0] = 6.0
    error = lambda estimate: ((estimate - clean) ** 2).sum() / (clean**2).sum()  # noqa: E731
    assert error(denoise(clean + noise, 1.0)) < 0.2
    assert error(denoise(clean + noise, 1.0, method="paper")) > 3
    np.testing.assert_allclose(noisy_spectrum(clean + noise, 1.0).clean, denoise(clean + noise, 1.0), atol=1e-9)
    assert not denoise(noise, 1.0).any()
    assert denoise(noise, 1.0, below_gate="unchanged") is noise
    assert denoise(noise, 1.0, method="paper") is noise
    assert not denoise(noise, 1.0, method="paper", below_gate="zero").any()


def test_what_people_hold_is_read() -> None:
    """Lists of whole numbers, sparse and 8-bit tensors; masked arrays and kernels are refused with the reason."""
    np.testing.assert_array_equal(spike_map([3, 4], (4, 9), 1.0), spike_map([3.0, 4.0], (4, 9), 1.0))
    dense = torch.eye(4, 6)
    assert float(estimate_sigma(dense.to_sparse())) == float(estimate_sigma(dense))
    assert noisy_spectrum(dense.to(torch.float8_e4m3fn), 0.1).singular_values.tolist() == [1.0] * 4
    with pytest.raises(ParameterError, match="without masked entries"):
        denoise(np.ma.masked_greater(np.eye(3), 0.5), 1.0)
    for kernel in (np.ones((16, 8, 3, 3)), np.ones((16, 8, 3, 3, 3))):
        with pytest.raises(ParameterError, match="kernel"):
            estimate_sigma(kernel)


@pytest.mark.parametrize("shape", [(7, 7), (30, 12), (1, 9)])
def test_power_is_what_is_stated(shape: tuple[int, int]) -> None:
    """A spike of `visible_signal` is called in 95 % of 800 draws, at other powers too; at the threshold in few."""
    rng, gate = np.random.default_rng(1), kappa_for(shape, 0.01) * sum(side**0.5 for side in shape)
    for power in (0.5, 0.95):
        noisy = rng.standard_normal((800, *shape))
        noisy[:, 0, 0] += visible_signal(shape, 1.0, power=power)
        called = np.mean(np.linalg.svdvals(noisy)[:, 0] > gate)
        assert called == pytest.approx(power, abs=3.5 * (power * (1 - power) * (1 / 800 + 1 / 1600)) ** 0.5)
    noisy = rng.standard_normal((800, *shape))
    noisy[:, 0, 0] += detection_threshold(shape, 1.0)
    assert np.mean(np.linalg.svdvals(noisy)[:, 0] > gate) < 0.12


@pytest.mark.parametrize("shape", [(1, 3), (2, 2), (3, 40), (64, 256), (1024, 1024)])
def test_noise_alone_passes_at_its_rate(shape) -> None:
    """The draws behind the power: of few leading rows where the matrix is large, in 0.5 and 30 % of them nothing is
    needed to pass.
    """
    for rate in (0.005, 0.3):
        needed = _first_called(*shape, exceeded_with(rate, *shape))
        assert np.mean(needed == 0) == pytest.approx(rate, abs=3.5 * (rate * (1 - rate) / len(needed)) ** 0.5)


def test_whitening_makes_uneven_noise_white_and_keeps_rank() -> None:
    rng = np.random.default_rng(0)
    noise = np.exp(rng.standard_normal((64, 1))) * rng.standard_normal(SHAPE) * np.exp(0.5 * rng.standard_normal(256))
    scaled, rows, columns = whiten(noise)
    np.testing.assert_allclose(scaled * rows[:, None] * columns, noise)
    np.testing.assert_allclose((scaled**2).mean(0), 1.0)
    assert noisy_spectrum(scaled, 1.0).fit.p_value > 0.01
    with pytest.raises(ParameterError, match="rows or columns of zeros"):
        whiten(np.diag([1.0, 0.0]))


matrices = hnp.arrays(float, st.tuples(st.integers(1, 6), st.integers(1, 6)), elements=st.floats(-10, 10))


@pytest.mark.parametrize("shape", [(16, 768), (768, 16), (64, 256), (15, 128), (100, 100)])
def test_recovers_the_level_of_pure_noise(shape):
    """The mean of 100 estimates is within 3 standard errors + 0.5/√(mn) of σ; not of a σ 3 % off."""
    noise = 0.3 * np.random.default_rng(2).standard_normal((100, *shape))
    estimates = estimate_sigma(noise)
    spread = estimates.std() / 0.3
    assert 0.6 < spread * math.sqrt(math.prod(shape)) < 1.8  # the statement of the docstring
    allowed = 3 * spread / 10 + 0.5 / math.sqrt(math.prod(shape))
    assert [abs(estimates.mean() / σ - 1) < allowed for σ in (0.291, 0.3, 0.309)] == [False, True, False]


def test_a_signal_of_low_rank_does_not_matter():
    """Rank 3 in 200 × 300, ten times the edge: the estimate moves by less than 3 %, not so for rank 150."""
    rng = np.random.default_rng(4)
    noise = rng.standard_normal((200, 300))
    strong = 300.0 * np.eye(200, 300)
    low, high = strong.copy(), strong.copy()
    low[3:], high[150:] = 0.0, 0.0
    assert estimate_sigma(noise + low) == pytest.approx(1.0, rel=0.03)
    assert estimate_sigma(noise + high) == pytest.approx(1.0, rel=0.05)
    assert estimate_sigma(noise + low, method="median") == pytest.approx(1.0, rel=0.03)
    assert estimate_sigma(noise + high, method="median") > 1.5


@given(matrices, st.floats(0.01, 100))
def test_scale_and_transposition(matrix, unit):
    """The estimate scales with the matrix and does not see transposition."""
    estimate = estimate_sigma(matrix)
    assert estimate >= 0
    assert estimate_sigma(unit * matrix) == pytest.approx(unit * estimate, rel=1e-9, abs=1e-12 * unit)
    assert estimate_sigma(matrix.T) == pytest.approx(estimate, rel=1e-9, abs=1e-12)


@given(st.integers(2, 9), st.integers(2, 9), st.floats(1e-6, 1e6), st.floats(1.5, 100))
def test_one_strong_signal_is_one_spike(m: int, n: int, sigma: float, strength: float) -> None:
    """Of a matrix without noise, whose one value is F(λ), the spike's clean value is λ; scaling scales it."""
    signal = strength * sigma * (m * n) ** 0.25
    observed = float(spike_map(signal, (m, n), sigma))
    matrix = np.zeros((m, n))
    matrix[0, 0] = observed
    spectrum = noisy_spectrum(matrix, sigma)
    gate = kappa_for((m, n), 0.01) * bulk_edge((m, n), sigma)
    assert spectrum.gate == gate
    assert len(spectrum.spikes) == (observed > gate)
    if spectrum.spikes:
        assert spectrum.spikes[0].signal == pytest.approx(signal, rel=1e-9)
        assert spectrum.top_over_edge == pytest.approx(observed / bulk_edge((m, n), sigma))


def test_tensors_say_what_arrays_do() -> None:
    torch = pytest.importorskip("torch")
    matrix = np.random.default_rng(1).standard_normal((6, 9)).astype(np.float32)
    one, other = noisy_spectrum(matrix, 0.5), noisy_spectrum(torch.from_numpy(matrix).requires_grad_(), 0.5)
    assert one.as_dict() == other.as_dict()


DECAYS = st.one_of(st.floats(0.0, 0.9999), st.floats(1e-12, 1e-3).map(lambda x: 1 - x))


@given(DECAYS, st.integers(1, 60))
def test_equals_the_sum_over_weights(decay, step):
    """σ̄_t² = Σ_k w_k² for the weights w_k = (1-β)β^k/(1-β^t) of the bias-corrected average."""
    with mp.workdps(50):
        β = mp.mpf(decay)
        weights = [(1 - β) * β**k for k in range(step)]
        exact = mp.sqrt(sum(w * w for w in weights)) / sum(weights)
    assert momentum_noise_scale(decay, step) == pytest.approx(float(exact), rel=1e-12)


@given(DECAYS, st.integers(1, 10**6))
def test_falls_from_one_to_its_limit(decay, step):
    scale = momentum_noise_scale(decay, step)
    assert math.sqrt((1 - decay) / (1 + decay)) * (1 - 1e-12) <= scale <= 1 + 1e-12
    assert momentum_noise_scale(decay, 2 * step) <= scale * (1 + 1e-12)
    assert momentum_noise_scale(0.9, 10**4) == pytest.approx(19**-0.5, rel=1e-12)


@pytest.mark.parametrize(("decay", "step"), [(0.9, 1), (0.9, 5), (0.5, 3), (0.99, 40)])
def test_describes_a_simulated_momentum(decay, step):
    """The standard deviation over 40,000 entries, within 4 standard errors; not the limit's, nor without correction."""
    noise = np.random.default_rng(1).standard_normal((step, 40_000))
    m = np.zeros(40_000)
    for ξ in noise:
        m = decay * m + (1 - decay) * ξ
    measured, error = (m / (1 - decay**step)).std(), 1 / math.sqrt(2 * 40_000)
    stated = momentum_noise_scale(decay, step)
    assert abs(measured / stated - 1) < 4 * error
    assert abs(measured / math.sqrt((1 - decay) / (1 + decay)) - 1) > 4 * error
    assert abs(m.std() / stated - 1) > 4 * error
