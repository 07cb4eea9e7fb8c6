"""What is said of noise that nobody knows: its level, whether white noise fits, thresholds and power."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from dprmt import ParameterError
from dprmt.cli._spectrum import _doubts as doubts
from dprmt.spectra import (
    denoise,
    detection_threshold,
    estimate_sigma,
    kappa_for,
    noisy_spectrum,
    spike_map,
    visible_signal,
    whiten,
)

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


@pytest.mark.parametrize(
    ("noise", "said"),
    [(autoregressive, "correlated"), (heavy, "heavy tails"), (uneven, "rows differ in scale: whiten first")],
)
def test_noise_that_is_not_white_is_said(noise, said) -> None:
    """In all of five draws each."""
    verdicts = [noisy_spectrum(noise(np.random.default_rng(seed)), 1.0).fit.verdict for seed in range(5)]
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


def test_whitening_makes_uneven_noise_white_and_keeps_rank() -> None:
    rng = np.random.default_rng(0)
    noise = np.exp(rng.standard_normal((64, 1))) * rng.standard_normal(SHAPE) * np.exp(0.5 * rng.standard_normal(256))
    scaled, rows, columns = whiten(noise)
    np.testing.assert_allclose(scaled * rows[:, None] * columns, noise)
    np.testing.assert_allclose((scaled**2).mean(0), 1.0)
    assert noisy_spectrum(scaled, 1.0).fit.p_value > 0.01
    with pytest.raises(ParameterError, match="rows or columns of zeros"):
        whiten(np.diag([1.0, 0.0]))
