"""One step from noisy gradients on a quadratic: how much the loss falls, and how much the cosine guarantees."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple, get_args

import torch

from dprmt._validation import check_choice, check_count, check_real
from dprmt.spectra import adam_improvement_bound, cosine_similarity, denoise, detection_threshold
from paper_figures.quadratic._curvature import LayerQuadratic

StepMethod = Literal["adam", "adambc", "denoised"]


class StepRecord(NamedTuple):
    """One step of one method. Improvements are in units of ‖g‖²/(2λ_max), what a clean SGD step guarantees."""

    method: str
    signal: float
    """Top singular value of g in units of the detection threshold of the noise."""
    cosine: float
    """cos(g, s)."""
    improvement: float
    bound: float
    """Valid lower bound."""
    printed_bound: float
    """Proposition I.1 as printed."""
    printed_bound_applies: bool
    """Whether its missing premise holds."""
    weighted_bound: float
    """Valid lower bound from norms and cosine in the geometry of the preconditioner."""
    weighted_cosine: float
    """cos_P(g, s)."""


def one_step_improvements(
    quadratic: LayerQuadratic,
    signals: Sequence[float] = (0.5, 1.0, 1.5, 2.0, 3.0, 5.0, 8.0),
    *,
    methods: Sequence[StepMethod] = ("adam", "adambc", "denoised"),
    draws: int = 10,
    past: int = 100,
    stability: float = 0.1,
    relative_step: float = 0.25,
    kappa: float = 1.02,
    seed: int = 0,
) -> list[StepRecord]:
    """Draw noisy gradients of a layer at several noise levels, and compare what the methods make of them.

    A step is ``-αPs``. The preconditioner P is made of ``past`` earlier noisy gradients at the same point:
    with v̂ their mean square, ``1/(√v̂ + γ)`` for "adam" and "denoised", ``1/√max(v̂ - Φ, γ')`` for "adambc", where Φ
    is the variance of the noise. The direction s is the noisy gradient, denoised with norm correction for "denoised".
    ``α = τ‖g‖/(λ_max p_max‖s‖)``, so that no step is longer than τ times the SGD step ``g/λ_max``.

    Note that Proposition I.1 is not true as printed: its lower bound on gᵀPs holds for one vector in the role of
    both, or under a further premise. `dprmt.spectra.adam_improvement_bound` has a counterexample, the corrected
    sharp bound, the P-weighted one and the printed one; all are recorded here. At equal norms and equal P ("adam" and
    "denoised"), the first and the last increase with the cosine, as Corollary I.2 says.

    Parameters
    ----------
    quadratic : LayerQuadratic
        g, H and λ_max(H).
    signals : sequence of float
        Noise levels, as the top singular value of g in units of the detection threshold; > 0.
    methods : sequence of {"adam", "adambc", "denoised"}
        Which to compare. They see the same noise.
    draws : int
        Noisy gradients per level.
    past : int
        Gradients behind v̂, say 1/(1 - β₂).
    stability : float
        γ = stability·√Φ and γ' = stability·Φ.
    relative_step : float
        τ > 0.
    kappa : float
        Gate of the denoiser, in units of the bulk edge.
    seed : int
        Of the noise.

    Returns
    -------
    list of StepRecord
        By level, draw and method.

    Raises
    ------
    ParameterError
        If a number is out of range, a method is unknown, or the gradient is zero.

    References
    ----------
    Appendix I of arXiv:2510.01137v3.

    Examples
    --------
    >>> from paper_figures.quadratic import digits_layer
    >>> records = one_step_improvements(digits_layer(samples=50, steps=10, hidden=16), signals=[4.0], draws=2)
    >>> all(record.improvement >= record.bound for record in records)
    True
    """
    for method in methods:
        check_choice("methods", method, get_args(StepMethod))
    draws, past = check_count("draws", draws), check_count("past", past)
    stability = check_real("stability", stability, low=0.0, low_open=True)
    τ = check_real("relative_step", relative_step, low=0.0, low_open=True)
    g, λ = quadratic.gradient, quadratic.largest_curvature
    top = float(torch.linalg.matrix_norm(g, 2))
    check_real("norm of the gradient", top, low=0.0, low_open=True)
    rows, columns = g.shape
    generator = torch.Generator().manual_seed(check_count("seed", seed, low=0))
    records = []
    for signal in signals:
        signal = check_real("signals", signal, low=0.0, low_open=True)
        σ = top / (signal * detection_threshold((rows, columns), 1.0))
        for _ in range(draws):
            noise = σ * torch.randn((past + 1, rows, columns), generator=generator, dtype=torch.float64)
            noisy, v = g + noise[0], (g + noise[1:]).square().mean(0)
            for method in methods:
                P = 1 / (v.sqrt() + stability * σ)
                if method == "adambc":
                    P = 1 / (v - σ**2).clamp_min(stability * σ**2).sqrt()
                s = denoise(noisy, σ, kappa, method="paper") if method == "denoised" else noisy
                α = τ * float(g.norm()) / (λ * float(P.max()) * float(s.norm()))
                found = adam_improvement_bound(
                    g.flatten(), s.flatten(), P.flatten(), quadratic.curvature, α, largest_curvature=λ * (1 + 1e-9)
                )
                unit = float(g.square().sum()) / (2 * λ)
                values = found.improvement / unit, found.bound / unit, found.printed_bound / unit
                weighted = found.weighted_bound / unit, found.weighted_cosine
                cosine = cosine_similarity(s, g)
                records.append(StepRecord(method, signal, cosine, *values, found.printed_bound_applies, *weighted))
    return records
