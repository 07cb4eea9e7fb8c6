"""Proposition I.1 along a run: what its corrected bound needs before it promises a decrease, and what is there."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from dprmt.report.measurements._run import GradientStep
from dprmt.spectra import cosine_similarity
from dprmt.training.denoising import Denoising


@dataclass(frozen=True)
class AdamBoundStep:
    """One step compared with the bound. It is **private**.

    Attributes
    ----------
    number : int
        Number of the step.
    spread : float
        p_max/p_min >= 1, largest over smallest entry of the preconditioner P.
    cosine, denoised_cosine : float
        Cosine of the noisy and of the denoised gradient with the clean one.
    weighted_cosine, denoised_weighted_cosine : float
        The same in the geometry of P: gᵀPs/(‖g‖_P‖s‖_P). Above 0 a step along Ps decreases the objective at small
        enough rates.
    """

    number: int
    spread: float
    cosine: float
    denoised_cosine: float
    weighted_cosine: float
    denoised_weighted_cosine: float

    @property
    def shortfall(self) -> float:
        """One minus the cosine above which the bound promises a decrease at small enough rates, 2/(1 + spread)."""
        return 2 / (1 + self.spread)

    @property
    def promised(self) -> tuple[bool, bool]:
        """True where the bound is positive at small enough rates: of the noisy and of the denoised gradient."""
        return 1 - self.cosine < self.shortfall, 1 - self.denoised_cosine < self.shortfall


def measure_adam_bound(step: GradientStep, *, kappa: float = 1.02, exclude: Sequence[str] = ()) -> AdamBoundStep | None:
    """Compare the cosines of a step with the one that the corrected Proposition I.1 needs.

    The bound ``α‖g‖‖s‖(½(p_max + p_min)cos(g, s) - ½(p_max - p_min)) - O(α²)`` is positive for small α if and only if
    ``cos(g, s) > (p_max - p_min)/(p_max + p_min)``, whatever the curvature is.

    Parameters
    ----------
    step : GradientStep
        A step from `private_gradients`; its P is used.
    kappa : float
        The gate >= 1 of the denoiser of Eq. 10, with norm correction.
    exclude : sequence of str
        Patterns for names of layers that are not denoised.

    Returns
    -------
    AdamBoundStep or None
        **Private.** None if the optimizer has no preconditioner.

    Raises
    ------
    ParameterError
        If ``kappa`` is out of range.

    Formal guarantees
    -----------------
    None, because it reads clean gradients.

    References
    ----------
    Proposition I.1 of arXiv:2510.01137v3, corrected as in `dprmt.spectra.adam_improvement_bound`.

    Examples
    --------
    >>> clean, noisy = {"w": torch.tensor([2.0, -1.0])}, {"w": torch.tensor([1.0, 1.0])}
    >>> scales = {"w": torch.tensor([1.0, 10.0])}
    >>> step = measure_adam_bound(GradientStep(0, 1.0, 10, 0.7, clean, noisy, scales))
    >>> step.spread, round(step.cosine, 3), round(step.weighted_cosine, 3), step.promised
    (10.0, 0.316, -0.645, (False, False))
    """
    names = [name for name in step.noisy if name in step.preconditioner]  # of DP-GRAPE, its projected weights alone
    if not names:
        return None
    clean, noisy, scales = (
        {name: layers[name].double() for name in names} for layers in (step.clean, step.noisy, step.preconditioner)
    )
    denoised, _ = Denoising("paper", kappa=kappa, exclude=exclude).apply(noisy, step.sigma)
    least, largest = min(float(p.min()) for p in scales.values()), max(float(p.max()) for p in scales.values())
    return AdamBoundStep(
        step.number,
        largest / least,
        cosine_similarity(noisy, clean),
        cosine_similarity(denoised, clean),
        _weighted_cosine(clean, noisy, scales),
        _weighted_cosine(clean, denoised, scales),
    )


def _weighted_cosine(
    first: Mapping[str, torch.Tensor], second: Mapping[str, torch.Tensor], scales: Mapping[str, torch.Tensor]
) -> float:
    def inner(one: Mapping[str, torch.Tensor], other: Mapping[str, torch.Tensor]) -> float:
        return math.fsum(float((one[name] * scale * other[name]).sum()) for name, scale in scales.items())

    length = math.sqrt(inner(first, first)) * math.sqrt(inner(second, second))
    return inner(first, second) / length if length > 0 else 0.0
