"""Sorted singular values of a matrix below and above the detection threshold, clean, noisy and denoised (Figure 3).

Beside them what theory says of the largest one and of its singular vectors, with simulated draws.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from dprmt.plots import plot_overlaps, plot_singular_values, plot_spike_map
from dprmt.spectra import bulk_edge, denoise, detection_threshold, spike_map
from paper_figures._picture import picture
from paper_figures._reproduction import Found, Item, Row, Scale

SHAPE, SIGMA, DRAWS = (64, 768), 1.0, 20
STRENGTHS = (0.5, 0.8, 1.0, 1.2, 1.5, 2.0, 2.5, 3.0)
"""Signals of the simulated draws, in units of the threshold."""
SIGNALS = {"(a) below the threshold": 0.6, "(b) above it": 2.5}


def measure(scale: Scale, folder: Path) -> Found:
    rng = np.random.default_rng(0)
    threshold = detection_threshold(SHAPE, SIGMA)
    cases = {name: [_noisy(strength * threshold, rng) for _ in range(DRAWS)] for name, strength in SIGNALS.items()}
    tops = {name: [float(np.linalg.norm(noisy, 2)) for _, noisy in draws] for name, draws in cases.items()}
    below, above = tops.values()
    edge, predicted = bulk_edge(SHAPE, SIGMA), spike_map(2.5 * threshold, SHAPE, SIGMA)

    signals = threshold * np.array(STRENGTHS)
    observed, left, right = _simulated(signals, rng).T

    def draw(axes: np.ndarray) -> None:
        plot_spike_map(SHAPE, SIGMA, simulated=(signals, observed), ax=axes[2])
        plot_overlaps(SHAPE, SIGMA, simulated=(signals, left, right), ax=axes[3])
        for ax, (name, draws) in zip(axes[:2], cases.items(), strict=True):
            clean, noisy = (np.linalg.svd(matrix, compute_uv=False) for matrix in draws[0])
            after = np.linalg.svd(denoise(draws[0][1], SIGMA, norm_correction=False), compute_uv=False)
            plot_singular_values(noisy, SHAPE, SIGMA, clean=clean, denoised=after, ax=ax)
            ax.set_title(name)
        axes[0].legend(frameon=False, loc="center left", bbox_to_anchor=(0.0, 0.62))
        axes[1].get_legend().remove()

    return Found(
        [
            _relative("(a) mean largest singular value over the bulk edge, minus 1", below, edge),
            _relative("(b) mean largest singular value over F(λ), minus 1", above, predicted),
        ],
        differs="Generated matrices of a LoRA factor's shape; the paper shows a RoBERTa layer and prints no number.",
        data=f"rank 2 in Gaussian noise, {SHAPE[0]} × {SHAPE[1]}, {DRAWS} draws",
        seeds=DRAWS,
        pictures=[picture(folder / "singular-values.png", draw, panels=2, rows=2)],
    )


def _noisy(strength: float, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    left, right = (np.linalg.qr(rng.standard_normal((side, 2)))[0] for side in SHAPE)
    clean = left * (strength * np.array([1.0, 0.4])) @ right.T
    return clean, clean + SIGMA * rng.standard_normal(SHAPE)


def _simulated(signals: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Means over draws, one row a signal: largest noisy singular value, squared overlaps on the left and right."""
    return np.array([np.mean([_spike(signal, rng) for _ in range(DRAWS)], axis=0) for signal in signals])


def _spike(signal: float, rng: np.random.Generator) -> tuple[float, float, float]:
    left, right = (vector / np.linalg.norm(vector) for vector in (rng.standard_normal(side) for side in SHAPE))
    u, s, vt = np.linalg.svd(signal * np.outer(left, right) + SIGMA * rng.standard_normal(SHAPE), full_matrices=False)
    return float(s[0]), float(u[:, 0] @ left) ** 2, float(vt[0] @ right) ** 2


def _relative(label: str, tops: list[float], predicted: float) -> Row:
    error = float(np.mean(tops)) / predicted - 1
    return Row(label, 100 * error, unit="%", claim="within 4 %", holds=abs(error) < 0.04)


ITEM = Item("singular-values", "Singular values before and after the noise", measure, form_only=True)
