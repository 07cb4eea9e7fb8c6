"""Sorted singular values of a gradient below and above the detection threshold, clean, noisy and denoised (Figure 3).

The gradients are those of `improvement`: at the noise of the run, and at noise so small that the strongest direction is
seen. Beside them what theory says of the largest singular value and of its vectors, with simulated draws.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from dprmt.plots import plot_overlaps, plot_singular_values, plot_spike_map
from dprmt.plots._style import legend_below
from dprmt.spectra import detection_threshold
from paper_figures._measured import mean_row
from paper_figures._picture import picture
from paper_figures._reproduction import Found, Item, Row, Scale
from paper_figures._verdict import Reason
from paper_figures.items.improvement import ITEM as OWNER
from paper_figures.items.improvement import MODEL, Steps, probed, where_files_are

SHAPE, SIGMA, DRAWS = (64, 768), 1.0, 20
STRENGTHS = (0.5, 0.8, 1.0, 1.2, 1.5, 2.0, 2.5, 3.0)
"""Signals of the simulated draws, in units of the threshold."""
MARGIN = 4.0
LOUD = "2.5 thresholds"


@where_files_are
def measure(scale: Scale, folder: Path) -> Found:
    runs, _ = probed(folder, scale)
    rng = np.random.default_rng(0)
    signals = detection_threshold(SHAPE, SIGMA) * np.array(STRENGTHS)
    observed, left, right = _simulated(signals, rng).T
    shown = runs["docstrings"][0][-1]["shown"]
    shape = tuple(shown["shape"])

    def draw(axes: np.ndarray) -> None:
        plot_spike_map(SHAPE, SIGMA, simulated=(signals, observed), ax=axes[2])
        plot_overlaps(SHAPE, SIGMA, simulated=(signals, left, right), ax=axes[3])
        values = {name: np.array(shown[name]) for name in ("clean", "noisy", "heard", "denoised")}
        plot_singular_values(values["noisy"], shape, shown["sigma"], clean=values["clean"], ax=axes[0])
        axes[0].set_title("(a) at the noise of the run")
        clean, denoised = values["clean"], values["denoised"]
        plot_singular_values(values["heard"], shape, shown["quiet"], clean=clean, denoised=denoised, ax=axes[1])
        axes[1].set_title(f"(b) at noise for a signal of {LOUD}")
        for ax in axes:
            legend_below(ax, columns=1)  # some labels are wider than half a panel

    return Found(
        [row for data, of_data in runs.items() for row in _rows(data, of_data)],
        differs="Gradients of a sentence encoder's LoRA factors, all of them; the paper shows a RoBERTa layer and"
        " prints no number.",
        reasons=[
            Reason(
                "open",
                "theory is of large matrices: in one of 16 rows the largest singular value of noise lies below the edge"
                " on average.",
            )
        ],
        model=MODEL,
        data=", ".join(runs),
        seeds=max(map(len, runs.values())),
        pictures=[picture(folder / "singular-values.png", draw, panels=2, rows=2)],
    )


def _rows(data: str, runs: list[Steps]) -> list[Row]:
    seen = [[layer for step in run for layer in step["spectra"]] for run in runs]
    claim, within = f"within {MARGIN:g} %", (-MARGIN, MARGIN)
    found = []
    for denoised, which in ((True, "adapters"), (False, "the classifier's head")):
        strongest = [max(layer["signal"] for layer in layers if layer["denoised"] == denoised) for layers in seen]
        found.append(mean_row(f"{data}: strongest clean signal of a run over the threshold, {which}", strongest))
    for key, where in (("top", "at the noise of the run"), ("top heard", f"at noise for {LOUD}")):
        errors = [100 * (np.mean([layer[key] for layer in layers]) - 1) for layers in seen]
        label = f"{data}: largest singular value over its prediction, less 1, mean over layers, {where}"
        found.append(mean_row(label, errors, unit="%", claim=claim, within=within))
    return found


def _simulated(signals: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Means over draws, one row a signal: largest noisy singular value, squared overlaps on the left and right."""
    return np.array([np.mean([_spike(signal, rng) for _ in range(DRAWS)], axis=0) for signal in signals])


def _spike(signal: float, rng: np.random.Generator) -> tuple[float, float, float]:
    left, right = (vector / np.linalg.norm(vector) for vector in (rng.standard_normal(side) for side in SHAPE))
    u, s, vt = np.linalg.svd(signal * np.outer(left, right) + SIGMA * rng.standard_normal(SHAPE), full_matrices=False)
    return float(s[0]), float(u[:, 0] @ left) ** 2, float(vt[0] @ right) ** 2


ITEM = Item("singular-values", "Singular values before and after the noise", measure, ("small", "long"), True, OWNER)
