"""All singular values of some layers of a gradient: clean, noisy and denoised."""

from __future__ import annotations

import re
from collections import Counter
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


def layers_along_depth(step: GradientStep, *, count: int = 3, exclude: Sequence[str] = ()) -> list[str]:
    """List the matrices of one kind from the first layer to the last.

    Names that differ only in their numbers are of one kind. Among the most frequent kinds, the one with the largest
    clean gradients is used.

    Parameters
    ----------
    step : GradientStep
        From `private_gradients`.
    count : int
        Largest number of names, >= 1, at equal distances.
    exclude : sequence of str
        Patterns for names to exclude.

    Returns
    -------
    list of str
        Names in the order of the model; empty if no matrix is left. **Private**, because the choice uses clean
        gradients.

    Examples
    --------
    >>> layers = {f"layer.{i}.query": torch.ones(2, 3) for i in range(5)} | {"head": torch.ones(2, 3)}
    >>> layers_along_depth(GradientStep(0, 1.0, 10, 0.7, layers, layers))
    ['layer.0.query', 'layer.2.query', 'layer.4.query']
    """
    kept = Denoising(exclude=tuple(exclude)).apply(
        {name: x for name, x in step.noisy.items() if x.ndim == 2}, step.sigma
    )[1]
    if not kept:
        return []
    kinds = Counter(map(_kind, kept))
    norms: Counter[str] = Counter()
    for name in kept:
        norms[_kind(name)] += float(step.clean[name].norm())  # type: ignore[assignment]  # sums of norms
    best = max(kinds, key=lambda kind: (kinds[kind], norms[kind]))
    names = [name for name in kept if _kind(name) == best]
    places = np.linspace(0, len(names) - 1, min(count, len(names))).round().astype(int)
    return [names[place] for place in places]


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


def _kind(name: str) -> str:
    return re.sub(r"\d+", "#", name)
