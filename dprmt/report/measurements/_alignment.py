"""Effect of denoising on the alignment with the clean gradient: over steps, over layers, over the gate κ."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from dprmt._validation import ParameterError, check_real
from dprmt.report.measurements._run import GradientStep
from dprmt.spectra import cosine_similarity
from dprmt.training.denoising import Denoising


@dataclass(frozen=True)
class LayerAlignment:
    """One layer at one step. It is **private**.

    Attributes
    ----------
    layer : str
        Name of the layer.
    top_over_edge : float or None
        Top noisy singular value over the bulk edge; None if the layer is not denoised.
    clean_square, noisy_square : float
        Squared norms of the clean and the noisy gradient; the denoised gradient has the norm of the noisy one.
    noisy_inner, denoised_inner : float
        Inner products with the clean gradient. The denoised one assumes that every matrix with a value above the edge
        passes the gate.
    shape : tuple of int
        Shape of the layer's gradient.
    """

    layer: str
    top_over_edge: float | None
    clean_square: float
    noisy_square: float
    noisy_inner: float
    denoised_inner: float
    shape: tuple[int, ...] = ()

    @property
    def improvement(self) -> float:
        """Cosine with the clean gradient after denoising minus before, without a gate; 0 for a zero gradient."""
        scale = math.sqrt(self.clean_square * self.noisy_square)
        return (self.denoised_inner - self.noisy_inner) / scale if scale > 0 else 0.0

    def passes(self, kappa: float) -> bool:
        """Return whether the layer is denoised at a gate."""
        return self.top_over_edge is not None and self.top_over_edge >= kappa


@dataclass(frozen=True)
class AlignmentStep:
    """Alignment of a whole gradient with the clean one, and of its layers. It is **private**.

    Attributes
    ----------
    number : int
        Number of the step.
    cosine : float
        Cosine of the noisy gradient with the clean one.
    corrected, uncorrected : float
        Improvement(t) of the denoiser of Eq. 10 with and without norm correction, at the gate of the measurement.
    layers : tuple of LayerAlignment
        All layers.
    """

    number: int
    cosine: float
    corrected: float
    uncorrected: float
    layers: tuple[LayerAlignment, ...]


@dataclass(frozen=True)
class KappaPoint:
    """Effect of one gate over all matrices and steps. It is **private**.

    Attributes
    ----------
    kappa : float
        The gate.
    by_step : tuple of float
        Improvement(t) of the whole gradient at every step.
    matrices, passed, gained : int
        Number of matrices of all steps together, of those that pass, and of those among them whose alignment grew.
    """

    kappa: float
    by_step: tuple[float, ...]
    matrices: int
    passed: int
    gained: int

    @property
    def passing(self) -> float:
        """Share of the matrices that pass."""
        return self.passed / self.matrices if self.matrices else 0.0

    @property
    def improved(self) -> float:
        """Share of those whose alignment grew; NaN if none passes."""
        return self.gained / self.passed if self.passed else math.nan

    @property
    def improvement(self) -> float:
        """Mean over the steps."""
        return float(np.mean(self.by_step))


def measure_alignment(step: GradientStep, *, kappa: float = 1.02, exclude: Sequence[str] = ()) -> AlignmentStep:
    """Compare noisy and denoised gradient with the clean one.

    Parameters
    ----------
    step : GradientStep
        From `private_gradients`.
    kappa : float
        The gate >= 1 for Improvement(t) of the denoiser of Eq. 10.
    exclude : sequence of str
        Patterns for names of layers that are not denoised, as in `dprmt.training.denoising.Denoising`.

    Returns
    -------
    AlignmentStep
        **Private.**

    Raises
    ------
    ParameterError
        If ``kappa`` is out of range.

    Formal guarantees
    -----------------
    None, because it reads clean gradients.

    References
    ----------
    Section 3.1, Eq. 10 and appendix H.2 of arXiv:2510.01137v3.

    Examples
    --------
    >>> import torch
    >>> generator = torch.Generator().manual_seed(0)
    >>> clean = {"weight": 0.4 * torch.ones(8, 200, dtype=torch.float64)}
    >>> noise = torch.randn(8, 200, generator=generator, dtype=torch.float64)
    >>> step = GradientStep(0, 1.0, 10, 0.7, clean, {"weight": clean["weight"] + noise})
    >>> measured = measure_alignment(step)
    >>> round(measured.cosine, 1), round(measured.corrected, 1)
    (0.4, 0.4)
    """
    check_real("kappa", kappa, low=1.0)
    clean, noisy = ({name: x.double() for name, x in layers.items()} for layers in (step.clean, step.noisy))
    before = cosine_similarity(noisy, clean)
    paper = Denoising("paper", kappa=kappa, exclude=tuple(exclude))
    after = [
        cosine_similarity(replace(paper, method=method).apply(noisy, step.sigma)[0], clean)
        for method in ("paper", "shrink")
    ]
    ungated, report = replace(paper, kappa=1.0).apply(noisy, step.sigma)
    layers = tuple(
        LayerAlignment(
            layer=name,
            top_over_edge=report[name].top_over_edge if name in report else None,
            clean_square=float(clean[name].square().sum()),
            noisy_square=float(noisy[name].square().sum()),
            noisy_inner=float((noisy[name] * clean[name]).sum()),
            denoised_inner=float((ungated[name] * clean[name]).sum()),
            shape=tuple(noisy[name].shape),
        )
        for name in noisy
    )
    return AlignmentStep(step.number, before, after[0] - before, after[1] - before, layers)


def kappa_sweep(
    steps: Sequence[AlignmentStep],
    kappas: Sequence[float] = (1.0, 1.005, 1.01, 1.015, 1.02, 1.03, 1.04, 1.05, 1.06, 1.08, 1.1),
) -> list[KappaPoint]:
    """Compute the effect of every gate, with norm correction, from layers measured without a gate.

    Parameters
    ----------
    steps : sequence of AlignmentStep
        At least one.
    kappas : sequence of float
        Gates >= 1.

    Returns
    -------
    list of KappaPoint
        One per gate. **Private.**

    Raises
    ------
    ParameterError
        If there is no step or a gate is below 1.

    Formal guarantees
    -----------------
    None: it is a function of clean gradients, and so is a gate that is chosen from it.

    References
    ----------
    Figures 4 and 6-8 of arXiv:2510.01137v3.

    Examples
    --------
    >>> layer = LayerAlignment("query", 1.03, clean_square=1.0, noisy_square=4.0, noisy_inner=0.4, denoised_inner=1.0)
    >>> step = AlignmentStep(0, 0.2, 0.3, 0.3, (layer,))
    >>> [(point.kappa, point.passing, round(point.improvement, 3)) for point in kappa_sweep([step], (1.02, 1.04))]
    [(1.02, 1.0, 0.3), (1.04, 0.0, 0.0)]
    """
    if not steps:
        raise ParameterError("steps", [], "at least one")
    matrices = [layer for step in steps for layer in step.layers if layer.top_over_edge is not None]
    points = []
    for kappa in kappas:
        passing = [layer for layer in matrices if layer.passes(check_real("kappas", kappa, low=1.0))]
        gained = sum(layer.improvement > 0 for layer in passing)
        by_step = tuple(_improvement(step, kappa) for step in steps)
        points.append(KappaPoint(kappa, by_step, len(matrices), len(passing), gained))
    return points


def _improvement(step: AlignmentStep, kappa: float) -> float:
    # Norm correction keeps every layer's norm, so the cosine of the whole follows from the layers' inner products.
    gain = math.fsum(layer.denoised_inner - layer.noisy_inner for layer in step.layers if layer.passes(kappa))
    clean = math.fsum(layer.clean_square for layer in step.layers)
    noisy = math.fsum(layer.noisy_square for layer in step.layers)
    return gain / math.sqrt(clean * noisy) if clean * noisy > 0 else 0.0
