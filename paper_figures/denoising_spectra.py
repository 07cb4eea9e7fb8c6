"""Figure 3 of arXiv:2510.01137v3 on a generated matrix, and the predictions behind it, as one picture.

Usage: ``python paper_figures/denoising_spectra.py OUT.png``
"""

from __future__ import annotations

import sys

import numpy as np

from dprmt.plots import plot_overlaps, plot_singular_values, plot_spike_map, save_picture
from dprmt.spectra import denoise, detection_threshold

SHAPE, SIGMA, DRAWS = (64, 768), 1.0, 20


def noisy_spike(signal: float, rng: np.random.Generator) -> tuple[float, float, float]:
    """Top singular value and squared overlaps of one draw of a rank-one signal in noise."""
    left, right = (rng.standard_normal(side) for side in SHAPE)
    left, right = left / np.linalg.norm(left), right / np.linalg.norm(right)
    noisy = signal * np.outer(left, right) + SIGMA * rng.standard_normal(SHAPE)
    u, s, vt = np.linalg.svd(noisy, full_matrices=False)
    return float(s[0]), float(u[:, 0] @ left) ** 2, float(vt[0] @ right) ** 2


def simulate(signals: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Means over draws: one row per signal, columns as in :func:`noisy_spike`."""
    return np.array([np.mean([noisy_spike(signal, rng) for _ in range(DRAWS)], axis=0) for signal in signals])


def main(path: str) -> None:
    """Draw the three panels."""
    rng = np.random.default_rng(0)
    threshold = detection_threshold(SHAPE, SIGMA)
    signals = threshold * np.array([0.5, 0.8, 1.0, 1.2, 1.5, 2.0, 2.5, 3.0])
    observed, left, right = simulate(signals, rng).T
    bases = [np.linalg.qr(rng.standard_normal((side, 4)))[0] for side in SHAPE]
    clean = bases[0] * (threshold * np.array([4.0, 2.5, 1.6, 0.6])) @ bases[1].T
    noisy = clean + SIGMA * rng.standard_normal(SHAPE)
    values = {name: np.linalg.svd(matrix, compute_uv=False) for name, matrix in (("clean", clean), ("noisy", noisy))}
    denoised = np.linalg.svd(denoise(noisy, SIGMA, norm_correction=False), compute_uv=False)

    def draw(axes: np.ndarray) -> None:
        first, second, third = np.ravel(axes)
        plot_singular_values(values["noisy"], SHAPE, SIGMA, clean=values["clean"], denoised=denoised, ax=first)
        plot_spike_map(SHAPE, SIGMA, simulated=(signals, observed), ax=second)
        plot_overlaps(SHAPE, SIGMA, simulated=(signals, left, right), ax=third)

    save_picture(path, draw, size=(15.0, 4.4), panels=(1, 3))
    print(f"means of {DRAWS} draws, {SHAPE[0]} x {SHAPE[1]}")
    print(f"{'signal/threshold':>16}{'observed':>10}{'left':>8}{'right':>8}")
    for row in zip(signals / threshold, observed, left, right, strict=True):
        print(f"{row[0]:>16.2f}{row[1]:>10.3f}{row[2]:>8.3f}{row[3]:>8.3f}")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        raise SystemExit("usage: python paper_figures/denoising_spectra.py OUT.png")
    main(sys.argv[1])
