"""Relative error of the estimated squared norm, Hutchinson against Hutch++ (Figure 11 in its form)."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from paper_figures._picture import STYLES, picture
from paper_figures._published import published
from paper_figures._reproduction import Found, Item, Row, Scale

PAPER = published("estimator-error")
SIZE, DRAWS = 256, 200
PROBES = (4, 8, 16, 32, 64)
SPECTRA = {"σ_i = 1/i": 1.0, "σ_i = 1/√i": 0.5}


def measure(scale: Scale, folder: Path) -> Found:
    errors = {name: _errors(decay) for name, decay in SPECTRA.items()}

    def draw(axes: np.ndarray) -> None:
        for ax, (name, by_method) in zip(axes, errors.items(), strict=True):
            for method, values in by_method.items():
                ax.loglog(PROBES, values, marker="o", markersize=4, label=method, **STYLES[method])
            ax.set(title=f"singular values {name}", xlabel="probes k (sketch of the same width)")
            ax.set_xticks(PROBES, [str(k) for k in PROBES], minor=False)
            ax.minorticks_off()
        axes[0].set_ylabel("relative error, root mean square")
        axes[0].legend(frameon=False)

    at = PROBES.index(32)
    rows = []
    for name, by_method in errors.items():
        ratio = by_method["hutchinson"][at] / by_method["hutch++"][at]
        rows.append(Row(f"{name}: error of Hutchinson over error of Hutch++, k = 32", ratio, _printed()))
    return Found(
        rows,
        differs="Gaussian singular vectors with a chosen decay instead of a language model's gradients.",
        data=f"{SIZE} × {SIZE} matrices, {DRAWS} draws of sketch and probes",
        pictures=[picture(folder / "estimator-error.png", draw, panels=2)],
    )


def _printed() -> float:
    return PAPER.number("value", quantity="error of Hutchinson over error of Hutch++")


def _errors(decay: float) -> dict[str, list[float]]:
    import torch

    from dprmt.training.norms import hutchinson_squared_norms, hutchpp_squared_norms

    generator = torch.Generator().manual_seed(0)
    left, right = (torch.linalg.qr(torch.randn(SIZE, SIZE, generator=generator).double()).Q for _ in range(2))
    # As a layer's factors: the gradient of one sample with SIZE tokens is activationsᵀ @ gradients.
    activations = (left * torch.arange(1, SIZE + 1) ** -decay).T[None]
    gradients = right.T[None]
    true = activations.square().sum()

    def draws(k: int) -> torch.Tensor:
        return torch.randn(DRAWS, SIZE, k, generator=generator, dtype=torch.float64)

    errors: dict[str, list[float]] = {"hutchinson": [], "hutch++": []}
    for k in PROBES:
        several = activations.expand(DRAWS, -1, -1), gradients.expand(DRAWS, -1, -1)
        plain = hutchinson_squared_norms(*several, draws(k) / k**0.5)
        plus = hutchpp_squared_norms(*several, draws(k), draws(k) / k**0.5)
        for method, estimate in (("hutchinson", plain), ("hutch++", plus)):
            errors[method].append(float((estimate / true - 1).square().mean().sqrt()))
    return errors


ITEM = Item("estimator-error", "Error of the estimated norm", measure, form_only=True)
