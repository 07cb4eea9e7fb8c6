"""Steps to 90 and 95 % of a reference accuracy (version 1, Tables 2 and 3), from the runs of `speedup`."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from paper_figures._published import published
from paper_figures._reproduction import Found, Item, Row, Scale
from paper_figures.items.speedup import runs_at

PAPER = published("steps-to-reference")
SHARES = (0.9, 0.95)


def measure(scale: Scale, folder: Path) -> Found:
    runs = runs_at(scale, folder)
    baseline, *methods = runs.variants
    curves = {name: runs.mean_curve(name) for name in (baseline, *methods)}
    reference = max(float(values[-1]) for _, values in curves.values())
    steps = {(name, share): _first(*curves[name], share * reference) for name in curves for share in SHARES}
    rows = [Row("reference: the best last accuracy of all methods", reference, unit="%")]
    rows += [
        Row(f"{name}: steps to {100 * share:g} % of it", steps[name, share]) for name in curves for share in SHARES
    ]
    for method in methods:
        for share in SHARES:
            ahead = steps[method, share] < steps[baseline, share]
            saved = 100 * (steps[baseline, share] / steps[method, share] - 1)
            label = f"{method}: speedup over {baseline} at {100 * share:g} %"
            rows.append(Row(label, saved, unit="%", claim="> 0", holds=bool(ahead)))
    task = PAPER.rows[0]
    return Found(
        rows,
        differs=f"Other model and data, see `speedup`; there the paper has, on {task['task']} with {task['model']},"
        f" {task['denoised_steps_90']} against {task['baseline_steps_90']} steps to 90 %. A method that does not get"
        " there has no number.",
        why="as in `speedup`, model and scale: the denoised runs end lower here, so that they cross later or never.",
        model="all-MiniLM-L6-v2 with LoRA",
        data=runs.length,
        seeds=runs.seeds,
    )


def _first(steps: np.ndarray, values: np.ndarray, wanted: float) -> float:
    # The first evaluation at which the mean accuracy is there.
    reached = steps[values >= wanted]
    return float(reached[0]) if len(reached) else float("nan")


ITEM = Item(
    "steps-to-reference", "Steps to a share of a reference accuracy", measure, ("small", "long"), form_only=True
)
