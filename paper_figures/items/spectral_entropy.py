"""Spectral entropy of gradients, clean, noisy and denoised: the statement that noise raises it, as numbers.

The gradients are those of `improvement`, at the noise of the run and at noise so small that a direction is seen.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from dprmt.plots._style import legend_below
from paper_figures._measured import ABOVE_ZERO, BELOW_ZERO, mean_row
from paper_figures._picture import STYLES, picture
from paper_figures._reproduction import Found, Item, Row, Scale
from paper_figures.items.improvement import ITEM as OWNER
from paper_figures.items.improvement import MODEL, Steps, probed, where_files_are

GAINS = {
    "entropy gained by the noise of the run": ("noisy", "clean", "> 0", ABOVE_ZERO),
    "by noise that leaves a signal of 2.5 thresholds": ("heard", "clean", "> 0", ABOVE_ZERO),
    "entropy gained by denoising there": ("denoised", "heard", "< 0", BELOW_ZERO),
}


@where_files_are
def measure(scale: Scale, folder: Path) -> Found:
    runs, _ = probed(folder, scale)

    def draw(axes: np.ndarray) -> None:
        for ax, (data, of_data) in zip(np.atleast_1d(axes), runs.items(), strict=True):
            for name, style in (("clean", "clean"), ("noisy", "noisy"), ("heard", "clipped"), ("denoised", "denoised")):
                label = {"heard": "noise for 2.5 thresholds"}.get(name, name)
                values = np.concatenate([_means(run, name) for run in of_data])
                ax.plot(values, marker="o", markersize=3, label=label, **STYLES[style])
            ax.set(xlabel="step, all runs in turn", ylabel="mean spectral entropy of layers, nats", title=data)
            legend_below(ax)

    rows: list[Row] = []
    for data, of_data in runs.items():
        for label, (after, before, claim, within) in GAINS.items():
            gains = [np.mean(_means(run, after) - _means(run, before)) for run in of_data]
            against: dict[str, Any] = {"claim": claim, "within": within}
            rows.append(mean_row(f"{data}: {label}, mean over layers", gains, unit="nats", **against))
    return Found(
        rows,
        differs="A sentence encoder's LoRA factors; the paper states it of language models and prints no number.",
        model=MODEL,
        data=", ".join(runs),
        seeds=max(map(len, runs.values())),
        pictures=[picture(folder / "spectral-entropy.png", draw, panels=len(runs))],
    )


def _means(run: Steps, name: str) -> np.ndarray:
    """Over the layers, at each step that has a gradient."""
    steps = [step["spectra"] for step in run if step["spectra"]]
    return np.array([np.mean([layer[f"entropy {name}"] for layer in layers]) for layers in steps])


ITEM = Item("spectral-entropy", "Spectral entropy of noisy gradients", measure, ("small", "long"), True, OWNER)
