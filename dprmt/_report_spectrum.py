"""The report's look at a noisy matrix: what of a low-rank signal shows above the noise, and what denoising gains."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dprmt._pictures import save_picture
from dprmt.spectra import bulk_edge, cosine_similarity, denoise, detection_threshold, shrink

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Example:
    """A matrix to generate: low rank plus noise.

    Attributes
    ----------
    shape : tuple of int
        Rows and columns.
    sigma : float
        Standard deviation of one entry of the noise.
    signals : tuple of float
        Singular values of the clean matrix, in units of the detection threshold.
    seed : int
        Of the generator.
    """

    shape: tuple[int, int] = (256, 768)
    sigma: float = 1.0
    signals: tuple[float, ...] = (4.0, 2.8, 2.0, 1.5, 0.7, 0.4)
    seed: int = 0


def generate(example: Example) -> tuple[Floats, Floats]:
    """The clean and the noisy matrix.

    Returns
    -------
    clean, noisy : array, shape (m, n)
        The signal in random directions, without and with the noise.
    """
    rng = np.random.default_rng(example.seed)
    rank = len(example.signals)
    left, right = (np.linalg.qr(rng.standard_normal((side, rank)))[0] for side in example.shape)
    scale = detection_threshold(example.shape, example.sigma)
    clean = left * (scale * np.array(example.signals)) @ right.T
    return clean, clean + example.sigma * rng.standard_normal(example.shape)


def report_spectrum(path: Path, example: Example | None = None) -> str:
    """Draw the spectrum of a generated matrix, and put into words what denoising does to it.

    Parameters
    ----------
    path : Path
        Where the picture goes.
    example : Example, optional
        What to generate.

    Returns
    -------
    str
        One line.
    """
    example = example or Example()
    clean, noisy = generate(example)
    draw_spectrum(path, example, clean, noisy)
    return describe(example, clean, noisy)


def describe(example: Example, clean: Floats, noisy: Floats) -> str:
    """Spikes and alignment of the noisy matrix, in one line.

    Returns
    -------
    str
        With the numbers computed.
    """
    rank = len(example.signals)
    strong = sum(signal > 1 for signal in example.signals)
    found = int(np.sum(np.linalg.svdvals(noisy) > bulk_edge(example.shape, example.sigma)))
    denoised = denoise(noisy, example.sigma)
    before, after = cosine_similarity(noisy, clean), cosine_similarity(denoised, clean)
    rows, columns = example.shape
    return (
        f"generated {rows} × {columns} matrix of rank {rank} in noise: {strong} of {rank} signals above the detection"
        f" threshold, spikes found: {found}; cosine with the clean matrix {before:.3f}, denoised {after:.3f}"
    )


def draw_spectrum(path: Path, example: Example, clean: Floats, noisy: Floats) -> None:
    """The sorted singular values beside their histogram."""
    from dprmt.plots import plot_singular_values, plot_spectrum_histogram

    shape, sigma = example.shape, example.sigma
    observed, signals = np.linalg.svdvals(noisy), np.linalg.svdvals(clean)

    def draw(axes: Any) -> None:
        plot_singular_values(observed, shape, sigma, clean=signals, denoised=shrink(observed, shape, sigma), ax=axes[0])
        plot_spectrum_histogram(observed, shape, sigma, signals=signals, ax=axes[1])
        title = f"A generated {shape[0]} × {shape[1]} matrix: rank {len(example.signals)} plus noise, σ = {sigma:g}"
        axes[0].figure.suptitle(title, fontsize="medium")

    save_picture(path, draw, size=(11.0, 4.4), panels=(1, 2))
