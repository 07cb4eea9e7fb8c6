"""What denoisers gain over a grid of signals: a heat map of the change of the cosine with the clean matrix."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from dprmt.spectra import cosine_similarity, denoise, detection_threshold
from paper_figures._picture import picture
from paper_figures._reproduction import Found, Item, Row, Scale
from paper_figures.shrinkers import blend_layers

SHAPE, SIGMA, DRAWS = (32, 256), 1.0, 6
STRENGTHS = (0.5, 0.8, 1.0, 1.2, 1.5, 2.0, 3.0, 5.0)
RANKS = (1, 2, 4, 8, 16)
DENOISERS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "the paper's (Frobenius)": lambda noisy: np.asarray(denoise(noisy, SIGMA, 1.02, method="paper")),
    "operator loss": lambda noisy: np.asarray(denoise(noisy, SIGMA, 1.02, method="paper", loss="operator")),
    "nuclear loss": lambda noisy: np.asarray(denoise(noisy, SIGMA, 1.02, method="paper", loss="nuclear")),
    "blended": lambda noisy: np.asarray(blend_layers({"layer": noisy}, SIGMA)[0]["layer"]),
}


def measure(scale: Scale, folder: Path) -> Found:
    gains = {name: np.zeros((len(RANKS), len(STRENGTHS))) for name in DENOISERS}
    for i, rank in enumerate(RANKS):
        for j, strength in enumerate(STRENGTHS):
            for name, gain in _mean_gains(rank, strength).items():
                gains[name][i, j] = gain
    limit = max(float(np.abs(values).max()) for values in gains.values())

    def draw(axes: np.ndarray) -> None:
        for ax, (name, values) in zip(axes, gains.items(), strict=True):
            image = ax.imshow(values, cmap="PuOr", vmin=-limit, vmax=limit, origin="lower", aspect="auto")
            for (i, j), value in np.ndenumerate(values):
                color = "white" if abs(value) > 0.6 * limit else "black"
                ax.text(j, i, f"{100 * value:+.0f}", ha="center", va="center", fontsize=7, color=color)
            ax.set_xticks(range(len(STRENGTHS)), [f"{s:g}" for s in STRENGTHS])
            ax.set_yticks(range(len(RANKS)), [str(rank) for rank in RANKS])
            ax.set(title=name, xlabel="singular values over the threshold")
        axes[0].set_ylabel("rank of the signal")
        axes[2].set_ylabel("rank of the signal")
        for ax in axes:
            ax.figure.colorbar(image, ax=ax, label="gain of the cosine, in the cells × 100")

    rows = []
    for name, values in gains.items():
        rows.append(Row(f"{name}: mean gain of the cosine", float(values.mean())))
        rows.append(Row(f"{name}: least gain on the grid", float(values.min())))
        rows.append(
            Row(
                f"{name}: share of the grid on which the cosine falls by more than 0.01", float((values < -0.01).mean())
            )
        )
    return Found(
        rows,
        differs="Not of a paper. Equal singular values in Gaussian noise, with norm correction and κ = 1.02.",
        data=f"{SHAPE[0]} × {SHAPE[1]}, {DRAWS} draws",
        seeds=DRAWS,
        pictures=[picture(folder / "denoisers.png", draw, panels=2, rows=2)],
    )


def _mean_gains(rank: int, strength: float) -> dict[str, float]:
    rng = np.random.default_rng(rank)
    found: dict[str, list[float]] = {name: [] for name in DENOISERS}
    for _ in range(DRAWS):
        clean = strength * detection_threshold(SHAPE, SIGMA) * _directions(rank, rng)
        noisy = clean + SIGMA * rng.standard_normal(SHAPE)
        before = cosine_similarity(noisy, clean)
        for name, denoiser in DENOISERS.items():
            found[name].append(cosine_similarity(denoiser(noisy), clean) - before)
    return {name: float(np.mean(values)) for name, values in found.items()}


def _directions(rank: int, rng: np.random.Generator) -> np.ndarray:
    left, right = (np.linalg.qr(rng.standard_normal((side, rank)))[0] for side in SHAPE)
    product: Any = left @ right.T
    return np.asarray(product)


ITEM = Item("denoisers", "Denoisers over a grid of signals", measure, scales=("paper",))
