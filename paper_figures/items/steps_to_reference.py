"""Steps to 90 and 95 % of a reference accuracy (version 1, Tables 2 and 3), from the runs of `speedup`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from paper_figures._measured import ABOVE_ZERO, mean_row
from paper_figures._published import published
from paper_figures._reproduction import Found, Item, Row, Scale
from paper_figures._verdict import Reason
from paper_figures.items._paired_runs import PairedRuns
from paper_figures.items.speedup import head_and_rate, runs_at

PAPER = published("steps-to-reference")
SHARES = (0.9, 0.95)


def measure(scale: Scale, folder: Path) -> Found:
    runs = runs_at(scale, folder)
    baseline, *methods = runs.variants
    reference = max(float(runs.last(name).mean()) for name in runs.variants)
    steps = {(name, share): first_steps(runs, name, share * reference) for name in runs.variants for share in SHARES}
    never = float(runs.steps[-1]) + 1
    rows = [Row("reference: the best last accuracy of all methods", reference, unit="%")]
    for (name, share), found in steps.items():
        label = f"{name}: steps to {100 * share:g} % of it, {never:g} where it is never reached"
        rows.append(mean_row(label, np.where(np.isfinite(found), found, never)))
    for method in methods:
        for share in SHARES:
            slow, fast = (np.minimum(steps[name, share], never) for name in (baseline, method))
            label = f"{method}: steps fewer than {baseline} to {100 * share:g} %"
            rows.append(mean_row(label, slow - fast, claim="> 0", within=ABOVE_ZERO))
    task = PAPER.rows[0]
    return Found(
        rows,
        differs=f"Other model and data, see `speedup`; there the paper has, on {task['task']} with {task['model']},"
        f" {task['denoised_steps_90']} against {task['baseline_steps_90']} steps to 90 %.",
        reasons=[
            replace(reason, text="as in `speedup`, whose runs these are.")
            for reason in _one_of_a_kind(head_and_rate(scale)[1])
        ],
        model="all-MiniLM-L6-v2 with LoRA",
        data=runs.length,
        seeds=runs.seeds,
    )


def _one_of_a_kind(reasons: Sequence[Reason]) -> list[Reason]:
    return list({reason.kind: reason for reason in reasons}.values())


def first_steps(runs: PairedRuns, name: str, wanted: float) -> np.ndarray:
    """The first evaluation of each seed at which the accuracy is there; infinite where none is."""
    reached = runs.accuracy[name] >= wanted
    at = np.where(reached, np.array(runs.steps, dtype=float), np.inf)
    found: np.ndarray = at.min(1)
    return found


ITEM = Item(
    "steps-to-reference", "Steps to a share of a reference accuracy", measure, ("small", "long"), form_only=True
)
