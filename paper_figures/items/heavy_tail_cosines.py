"""Cosines of per-sample gradients within and across classes, while a linear model trains by DP-AdamBC (Figure 1)."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from paper_figures._measured import ABOVE_ZERO, mean_row
from paper_figures._picture import picture
from paper_figures._reproduction import Found, Item, Scale

STEPS = (0, 30, 100)


def measure(scale: Scale, folder: Path) -> Found:
    from paper_figures._plots import plot_gradient_cosines
    from paper_figures.heavy_tail import Trial, gradient_cosines, heavy_tail_data

    trial = Trial("adambc", 0.01, noise_multiplier=1.25, stability=0.1, groups=5, samples=128)
    data = heavy_tail_data(trial.groups, trial.samples, seed=trial.seed)
    maps = [gradient_cosines(weight, data.inputs, data.labels) for weight in _weights(trial, data)]
    means = [_of_classes(cosines.numpy(), data.labels.numpy()) for cosines in maps]

    def draw(axes: np.ndarray) -> None:
        for ax, steps, cosines in zip(axes, STEPS, maps, strict=True):
            plot_gradient_cosines(cosines, data.labels, ax=ax).set_title(f"after {steps} steps")

    rows = []
    for steps, (within, across) in zip(STEPS, means, strict=True):
        rows.append(mean_row(f"mean cosine within a class, over classes, {steps} steps", within))
        rows.append(mean_row(f"mean cosine with samples of others, over classes, {steps} steps", across))
        label = f"within less across, paired by class, {steps} steps"
        rows.append(mean_row(label, within - across, claim="> 0", within=ABOVE_ZERO))
    return Found(
        rows,
        differs="A smaller instance, all of its samples instead of 520.",
        model="linear",
        data=f"generated, {len(data.labels)} samples in {2**trial.groups - 1} classes",
        pictures=[picture(folder / "heavy-tail-cosines.png", draw, panels=len(STEPS))],
    )


def _of_classes(cosines: np.ndarray, labels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Means of each class: between its samples, and of its samples with all others."""
    pairs = ~np.eye(len(labels), dtype=bool)
    found = [
        (cosines[of][:, of][pairs[of][:, of]].mean(), cosines[of][:, ~of].mean())
        for of in (labels == label for label in np.unique(labels))
    ]
    within, across = np.array(found).T
    return within, across


def _weights(trial: Any, data: Any) -> Any:
    from dprmt.training.harness import load_parameters
    from paper_figures.heavy_tail import run_trial

    with tempfile.TemporaryDirectory() as scratch:
        for steps in STEPS:
            run_trial(trial, scratch, steps, data=data, device="cpu")
            yield load_parameters(Path(scratch) / trial.name)["weight"]


ITEM = Item("heavy-tail-cosines", "Cosines of per-sample gradients", measure)
