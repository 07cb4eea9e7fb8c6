"""All singular values of some layers of a gradient: clean, noisy and denoised."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from dprmt.report.measurements._run import GradientStep
from dprmt.spectra import bulk_edge, detection_threshold, kappa_for
from dprmt.training.denoising import Denoising


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


def measure_spectra(step: GradientStep, layers: Sequence[str], *, kappa: float | None = None) -> list[LayerSpectra]:
    """Compute the singular values of some matrices of a gradient.

    Parameters
    ----------
    step : GradientStep
        From `private_gradients`.
    layers : sequence of str
        Names of matrices.
    kappa : float, optional
        The gate >= 1 of the denoiser of arXiv:2510.01137v3; by default `kappa_for` at 1 %.

    Returns
    -------
    list of LayerSpectra
        In the order of ``layers``. **Private.**

    Raises
    ------
    ParameterError
        If ``kappa`` is out of range.

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
    noisy = {name: step.noisy[name].double() for name in layers}
    options = Denoising("paper", false_alarm=0.01) if kappa is None else Denoising("paper", kappa=kappa)
    denoised, _ = options.apply(noisy, step.sigma)
    return [_spectra(name, step, noisy, denoised) for name in layers]


def _spectra(
    name: str, step: GradientStep, noisy: Mapping[str, torch.Tensor], denoised: Mapping[str, torch.Tensor]
) -> LayerSpectra:
    m, n = noisy[name].shape
    values = [torch.linalg.svdvals(x.double()).cpu().numpy() for x in (step.clean[name], noisy[name], denoised[name])]
    return LayerSpectra(name, step.number, (m, n), step.sigma, *values)
