"""Spectral entropy of a gradient, clean, noisy and denoised: the statement that noise raises it, as numbers."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from dprmt.spectra import denoise, detection_threshold
from paper_figures._picture import STYLES, picture
from paper_figures._reproduction import Found, Item, Row, Scale

SHAPE, SIGMA, SEEDS = (64, 768), 1.0, 5
STRENGTHS = (0.5, 1.0, 2.0, 4.0, 8.0)
SHOWN = ("clean", "noisy", "denoised")


def spectral_entropy(matrix: np.ndarray) -> float:
    """Entropy, in nats, of the squared singular values as shares of their sum; at most log of the smaller side."""
    shares = np.linalg.svd(matrix, compute_uv=False) ** 2
    shares = shares[shares > 0] / shares.sum()
    return float(-(shares * np.log(shares)).sum())


def measure(scale: Scale, folder: Path) -> Found:
    found = {
        name: np.array([[_entropies(s, seed)[name] for seed in range(SEEDS)] for s in STRENGTHS]) for name in SHOWN
    }

    def draw(ax: object) -> None:
        for name in SHOWN:
            ax.errorbar(  # type: ignore[attr-defined]
                STRENGTHS, found[name].mean(1), found[name].std(1), label=name, **STYLES[name]
            )
        ax.set_xscale("log", base=2)  # type: ignore[attr-defined]
        ax.axhline(np.log(min(SHAPE)), color="0.5", linewidth=0.8)  # type: ignore[attr-defined]
        ax.set(  # type: ignore[attr-defined]
            xlabel="largest singular value over the detection threshold", ylabel="spectral entropy in nats"
        )
        ax.legend(frameon=False)  # type: ignore[attr-defined]

    clean, noisy, denoised = (found[name][STRENGTHS.index(4.0)] for name in SHOWN)
    raised, lowered = float((noisy - clean).mean()), float((denoised - noisy).mean())
    return Found(
        [
            Row(
                "entropy gained by the noise, signal at 4 thresholds",
                raised,
                unit="nats",
                claim="> 0",
                holds=raised > 0,
            ),
            Row("entropy gained by denoising there", lowered, unit="nats", claim="< 0", holds=lowered < 0),
        ],
        differs="Generated matrices with singular values 1/i instead of a network's gradients.",
        data=f"{SHAPE[0]} × {SHAPE[1]}, singular values 1/i",
        seeds=SEEDS,
        pictures=[picture(folder / "spectral-entropy.png", draw)],
    )


def _entropies(strength: float, seed: int) -> dict[str, float]:
    rng = np.random.default_rng(seed)
    left, right = (np.linalg.qr(rng.standard_normal((side, min(SHAPE))))[0] for side in SHAPE)
    values = strength * detection_threshold(SHAPE, SIGMA) / np.arange(1, min(SHAPE) + 1)
    clean = left * values @ right.T
    noisy = clean + SIGMA * rng.standard_normal(SHAPE)
    return {
        name: spectral_entropy(matrix)
        for name, matrix in zip(SHOWN, (clean, noisy, denoise(noisy, SIGMA)), strict=True)
    }


ITEM = Item("spectral-entropy", "Spectral entropy of noisy gradients", measure, form_only=True)
