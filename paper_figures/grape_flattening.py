"""Figure 1 of arXiv:2506.15588 on a small network: clipping and noise flatten the spectrum of a layer's gradient.

The layer is the 128 × 256 one of a perceptron on scikit-learn's digits, after a few steps without noise. The clipping
norm is given in units of the median per-sample norm: below it, noise and signal shrink together; above it, only the
noise grows.

Usage: ``python paper_figures/grape_flattening.py OUT.png``
"""

from __future__ import annotations

import sys

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import nn

from dprmt.plots import plot_spectrum_flattening, save_picture

BATCH, WARM_UP = 256, 30
CLIPPING, NOISE = (0.1, 1.0, 10.0), (0.1, 0.5, 2.0)


def per_sample_gradients() -> torch.Tensor:
    """Gradients (B, 128, 256) of the middle layer, of one batch."""
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


def spectra(samples: torch.Tensor) -> dict[float, dict[str, np.ndarray]]:
    """Singular values by clipping norm and noise multiplier; the clean ones as "clean"."""
    norms = samples.flatten(1).norm(dim=1)
    rng = torch.Generator().manual_seed(1)
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


def main(path: str) -> None:
    """Draw one panel per clipping norm and print the stable ranks."""
    found = spectra(per_sample_gradients())

    def draw(axes: np.ndarray) -> None:
        for ax, (clipping, values) in zip(np.ravel(axes), found.items(), strict=True):
            private = {name: spectrum for name, spectrum in values.items() if name != "clean"}
            plot_spectrum_flattening(values["clean"], private, ax=ax, title=f"C = {clipping:g} × median norm")

    save_picture(path, draw, size=(15.0, 4.4), panels=(1, 3))
    print(f"stable rank of a 128 x 256 gradient, {BATCH} samples")
    print(f"{'C/median norm':>14}" + "".join(f"{name:>10}" for name in found[CLIPPING[0]]))
    for clipping, values in found.items():
        print(f"{clipping:>14g}" + "".join(f"{stable_rank(spectrum):>10.2f}" for spectrum in values.values()))


if __name__ == "__main__":
    if len(sys.argv) != 2:
        raise SystemExit("usage: python paper_figures/grape_flattening.py OUT.png")
    main(sys.argv[1])
