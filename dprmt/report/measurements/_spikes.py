"""Singular values and vectors of noisy gradients: measured against Eqs. 3-5, and whole spectra of some layers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from dprmt._validation import check_count, check_real
from dprmt.report.measurements._run import GradientStep
from dprmt.spectra import bulk_edge, detection_threshold, kappa_for, spike_map, vector_overlaps
from dprmt.training.denoising import Denoising


@dataclass(frozen=True)
class Spike:
    """The top singular value of one layer at one step in noise. It is **private**.

    Attributes
    ----------
    layer, step, shape
        Which matrix.
    noise_scale : float
        σ divided by the σ of the run.
    signal_over_threshold : float
        Clean top singular value λ over the detection threshold λ* = σ(mn)^{1/4}.
    predicted : float
        F(λ) over the bulk edge (Eq. 3): 1 at and below the threshold.
    single : float
        Top singular value with one draw of the noise, over the edge. For ``noise_scale`` 1 it belongs to the released
        gradient.
    mean : float
        Mean of the same value over repeated draws of the noise on the same clean gradient.
    predicted_overlaps, overlaps : (float, float)
        Squared overlap of the left and the right vector: Eqs. 4-5, and the mean over the draws.
    """

    layer: str
    step: int
    shape: tuple[int, int]
    noise_scale: float
    signal_over_threshold: float
    predicted: float
    single: float
    mean: float
    predicted_overlaps: tuple[float, float]
    overlaps: tuple[float, float]

    @property
    def error(self) -> float:
        """Measured mean over predicted top singular value, minus 1."""
        return self.mean / self.predicted - 1

    @property
    def called(self) -> bool:
        """True if the value of one draw is above what noise alone exceeds in 1 % of draws."""
        return self.single > kappa_for(self.shape, 0.01)


def measure_spikes(
    step: GradientStep, *, draws: int = 8, noise_scales: Sequence[float] = (1.0,), seed: int = 0
) -> list[Spike]:
    """Measure the top singular value and its vectors of every matrix of a gradient.

    The clean gradient of a layer at a step is one point on the curve F. Less noise, as with a larger batch, moves it
    along the curve.

    Parameters
    ----------
    step : GradientStep
        From `private_gradients`.
    draws : int
        Number of times that fresh noise is added to the same clean gradient, >= 2.
    noise_scales : sequence of float
        Standard deviations of the noise > 0, relative to the noise of the run.
    seed : int
        Seed of this noise.

    Returns
    -------
    list of Spike
        One per matrix and scale. **Private.**

    Raises
    ------
    ParameterError
        If ``draws``, ``seed`` or a scale is out of range.

    Formal guarantees
    -----------------
    None: it reads clean gradients, and its noise comes from a known seed.

    References
    ----------
    Eqs. 3-5 of arXiv:2510.01137v3.

    Examples
    --------
    >>> generator = torch.Generator().manual_seed(0)
    >>> clean = {"weight": 0.4 * torch.ones(8, 200, dtype=torch.float64)}
    >>> noise = torch.randn(8, 200, generator=generator, dtype=torch.float64)
    >>> step = GradientStep(0, 1.0, 10, 0.7, clean, {"weight": clean["weight"] + noise})
    >>> (spike,) = measure_spikes(step)
    >>> round(spike.signal_over_threshold, 1), round(spike.predicted, 1), abs(spike.error) < 0.05
    (2.5, 1.3, True)
    """
    check_count("draws", draws, low=2)
    generator = torch.Generator().manual_seed(check_count("seed", seed, low=0))
    scales = [check_real("noise_scales", scale, low=0.0, low_open=True) for scale in noise_scales]
    matrices = {name: clean.double() for name, clean in step.clean.items() if clean.ndim == 2}
    return [_spike(name, step, x, scale, draws, generator) for name, x in matrices.items() for scale in scales]


def _spike(
    name: str, step: GradientStep, clean: torch.Tensor, scale: float, draws: int, generator: torch.Generator
) -> Spike:
    m, n = shape = (clean.shape[0], clean.shape[1])
    σ = scale * step.sigma
    edge = bulk_edge(shape, σ)
    U, λ, Vh = torch.linalg.svd(clean, full_matrices=False)
    noise = σ * torch.randn((draws, m, n), generator=generator, dtype=torch.float64)
    noisy_U, s, noisy_Vh = torch.linalg.svd(clean + noise, full_matrices=False)
    signal = float(λ[0])
    left, right = vector_overlaps(signal, shape, σ)
    measured = (noisy_U[:, :, 0] @ U[:, 0]).square().mean(), (noisy_Vh[:, 0] @ Vh[0]).square().mean()
    return Spike(
        layer=name,
        step=step.number,
        shape=shape,
        noise_scale=scale,
        signal_over_threshold=signal / detection_threshold(shape, σ),
        predicted=float(spike_map(signal, shape, σ)) / edge,
        single=float(torch.linalg.matrix_norm(step.noisy[name].double(), 2) if scale == 1 else s[0, 0]) / edge,
        mean=float(s[:, 0].mean()) / edge,
        predicted_overlaps=(float(left), float(right)),
        overlaps=(float(measured[0]), float(measured[1])),
    )


@dataclass(frozen=True)
class Agreement:
    """Agreement of measured and predicted top singular values and overlaps, over layers and steps.

    Attributes
    ----------
    count : int
        Number of matrices.
    bias, median_error, large_error : float
        Errors of the top singular value, measured over predicted minus 1, with the noise averaged over the draws. Bias
        is the mean; the others are the median and the 95 % quantile of the absolute value.
    overlap_bias, overlap_error, overlap_large_error : float
        Errors of the squared overlap, measured minus predicted, left and right together: mean, median size and 95 %
        quantile.
    passing : float
        Share of the matrices that pass the gate, with one draw.
    """

    count: int
    bias: float
    median_error: float
    large_error: float
    overlap_bias: float
    overlap_error: float
    overlap_large_error: float
    passing: float


def agreement(spikes: Sequence[Spike]) -> Agreement:
    """Summarise measured against predicted.

    Parameters
    ----------
    spikes : sequence of Spike
        At least one, for example those above the threshold.

    Returns
    -------
    Agreement
        **Private**, as the spikes are.

    Formal guarantees
    -----------------
    None: it is a function of clean gradients.

    Examples
    --------
    >>> exact = Spike("query", 0, (8, 200), 1.0, 2.0, 1.2, 1.25, 1.2, (0.9, 0.4), (0.9, 0.5))
    >>> result = agreement([exact])
    >>> result.large_error, round(result.overlap_bias, 3)
    (0.0, 0.05)
    """
    errors = np.array([spike.error for spike in spikes])
    differences = np.array([np.subtract(spike.overlaps, spike.predicted_overlaps) for spike in spikes]).ravel()
    large, overlap_large = (float(np.quantile(abs(x), 0.95)) for x in (errors, differences))
    return Agreement(
        count=len(spikes),
        bias=float(errors.mean()),
        median_error=float(np.median(abs(errors))),
        large_error=large,
        overlap_bias=float(differences.mean()),
        overlap_error=float(np.median(abs(differences))),
        overlap_large_error=overlap_large,
        passing=float(np.mean([spike.called for spike in spikes])),
    )


@dataclass(frozen=True)
class LayerSpectra:
    """One layer at one step. It is **private**.

    Attributes
    ----------
    layer, step, shape
        Which matrix.
    sigma : float
        Standard deviation of the noise in one entry.
    clean, noisy, denoised : array, shape (min(m, n),)
        Singular values in decreasing order.
    """

    layer: str
    step: int
    shape: tuple[int, int]
    sigma: float
    clean: NDArray[np.float64]
    noisy: NDArray[np.float64]
    denoised: NDArray[np.float64]

    @property
    def signal_over_threshold(self) -> float:
        """Top clean singular value over the detection threshold."""
        return float(self.clean[0]) / detection_threshold(self.shape, self.sigma)

    @property
    def top_over_edge(self) -> float:
        """Top noisy singular value over the bulk edge."""
        return float(self.noisy[0]) / bulk_edge(self.shape, self.sigma)

    @property
    def called(self) -> bool:
        """True if the top noisy singular value is above what noise alone exceeds in 1 % of draws."""
        return float(self.noisy[0]) > kappa_for(self.shape, 0.01) * bulk_edge(self.shape, self.sigma)

    @property
    def verdict(self) -> str:
        """One of: a signal seen, a signal missed, a false alarm, nothing."""
        if self.signal_over_threshold > 1:
            return "signal, called" if self.called else "signal, not called"
        return "false alarm" if self.called else "no signal, not called"


def measure_spectra(step: GradientStep, layers: Sequence[str]) -> list[LayerSpectra]:
    """Compute the singular values of some matrices of a gradient, and of the same denoised at a false alarm of 1 %.

    Parameters
    ----------
    step : GradientStep
        From `private_gradients`.
    layers : sequence of str
        Names of matrices.

    Returns
    -------
    list of LayerSpectra
        In the order of ``layers``. **Private.**

    Formal guarantees
    -----------------
    None, because it reads clean gradients.

    References
    ----------
    Figure 3 of arXiv:2510.01137v3.

    Examples
    --------
    >>> clean = {"weight": 5 * torch.ones(2, 8) / 4}
    >>> (spectra,) = measure_spectra(GradientStep(0, 0.5, 10, 0.7, clean, clean), ["weight"])
    >>> spectra.clean.round(6).tolist()
    [5.0, 0.0]
    """
    noisy, found = {name: step.noisy[name].double() for name in layers}, []
    denoised, _ = Denoising("paper", false_alarm=0.01).apply(noisy, step.sigma)
    for name, matrix in noisy.items():
        m, n = matrix.shape
        values = [torch.linalg.svdvals(x.double()).cpu().numpy() for x in (step.clean[name], matrix, denoised[name])]
        found.append(LayerSpectra(name, step.number, (m, n), step.sigma, *values))
    return found
