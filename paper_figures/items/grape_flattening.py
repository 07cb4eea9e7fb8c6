"""Clipping and noise flatten the spectrum of a layer's gradient (Figure 1), on scikit-learn's digits.

The layer is the 128 × 256 one of a perceptron after a few steps without noise. The clipping norm is in units of the
median per-sample norm: below it noise and signal shrink together, above it only the noise grows.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from paper_figures._measured import mean_row
from paper_figures._picture import LINES, MARKERS, STYLES, picture
from paper_figures._reproduction import Found, Item, Row, Scale

if TYPE_CHECKING:
    import torch

BATCH, WARM_UP = 256, 30
CLIPPING, NOISE, DRAWS = (0.1, 1.0, 10.0), (0.1, 0.5, 2.0), 5


def per_sample_gradients() -> torch.Tensor:
    """Gradients (B, 128, 256) of the middle layer, of one batch."""
    import torch
    from sklearn.datasets import load_digits
    from torch import nn

    torch.manual_seed(0)
    images, labels = (torch.from_numpy(array) for array in load_digits(return_X_y=True))
    images = images.float() / 16
    net = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 128), nn.ReLU(), nn.Linear(128, 10))
    adam = torch.optim.Adam(net.parameters(), lr=1e-3)
    for step in range(WARM_UP):
        part = slice(step * 50, step * 50 + 50)
        adam.zero_grad()
        nn.functional.cross_entropy(net(images[part]), labels[part]).backward()
        adam.step()
    fixed = {name: p.detach() for name, p in net.named_parameters()}

    def loss(weight: torch.Tensor, image: torch.Tensor, label: torch.Tensor) -> torch.Tensor:
        scores = torch.func.functional_call(net, {**fixed, "2.weight": weight}, image[None])
        return nn.functional.cross_entropy(scores, label[None])

    gradient = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0, 0))
    return gradient(fixed["2.weight"], images[-BATCH:], labels[-BATCH:])


def spectra(samples: torch.Tensor, seed: int = 1) -> dict[float, dict[str, np.ndarray]]:
    """Singular values by clipping norm and noise multiplier; the clean ones as "clean"."""
    import torch

    norms = samples.flatten(1).norm(dim=1)
    rng = torch.Generator().manual_seed(seed)
    found: dict[float, dict[str, np.ndarray]] = {}
    for clipping in CLIPPING:
        bound = clipping * float(norms.median())
        clipped = torch.einsum("b,bmn->mn", (bound / norms).clamp_max(1.0), samples)
        noise = torch.randn(clipped.shape, generator=rng) * bound
        matrices = {"clean": samples.sum(0), "clipped": clipped} | {f"σ = {s:g}": clipped + s * noise for s in NOISE}
        found[clipping] = {name: torch.linalg.svdvals(matrix).numpy() for name, matrix in matrices.items()}
    return found


def stable_rank(values: np.ndarray) -> float:
    """‖G‖²_F/‖G‖²: about how many directions hold the energy."""
    return float(np.square(values).sum() / values.max() ** 2)


def draw_spectra(ax: Any, spectra: Mapping[str, np.ndarray]) -> None:
    """Sorted singular values of the gradient, in units of the largest."""
    for (name, values), style, marker in zip(
        spectra.items(), (STYLES["clean"], STYLES["clipped"], *LINES[1:]), MARKERS, strict=False
    ):
        heights = np.sort(values)[::-1] / values.max()
        marked = np.unique(np.geomspace(1, len(values), 12).round().astype(int) - 1).tolist()
        ax.loglog(
            np.arange(1, len(values) + 1), heights, marker=marker, markersize=4, markevery=marked, label=name, **style
        )
    ax.set_ylim(1e-4, 1.4)
    ax.set(xlabel="index", ylabel="singular value, in units of the largest")
    ax.legend(frameon=False)


def measure(scale: Scale, folder: Path) -> Found:
    samples = per_sample_gradients()
    draws = [spectra(samples, seed) for seed in range(1, 1 + DRAWS)]
    found = draws[0]

    def draw(axes: np.ndarray) -> None:
        for ax, (clipping, values) in zip(axes, found.items(), strict=True):
            draw_spectra(ax, values)
            ax.set_title(f"C = {clipping:g} × median norm")

    rows = []
    for clipping, values in found.items():
        ranks = {name: stable_rank(spectrum) for name, spectrum in values.items()}
        clean = ranks["clean"]
        most = [stable_rank(draw[clipping][f"σ = {NOISE[-1]:g}"]) for draw in draws]
        where = f"C = {clipping:g} × median norm"
        rows.append(Row(f"{where}: stable rank, clean", clean))
        rows.append(Row(f"{where}: stable rank, clipped", ranks["clipped"]))
        label, claim = f"{where}: stable rank, σ = {NOISE[-1]:g}", f"more than twice {clean:.3g}: noise flattens"
        rows.append(mean_row(label, most, claim=claim, within=(2 * clean, math.inf)))
    return Found(
        rows,
        differs="A perceptron's layer on digits; the paper shows layers of its own models, and no number.",
        model="perceptron, layer of 128 × 256",
        data=f"scikit-learn's digits, {BATCH} samples",
        pictures=[picture(folder / "grape-flattening.png", draw, panels=len(CLIPPING))],
    )


ITEM = Item("grape-flattening", "Clipping and noise flatten the spectrum", measure, form_only=True)
