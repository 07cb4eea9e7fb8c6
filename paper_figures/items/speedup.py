"""Accuracy with and without denoising at equal ε, in the form of Table 1, and steps to a reference (version 1).

At small scale a few short steps of the recipe that needs no download, at long scale all of its steps. Stored with them
are closed studies whose code is in the history, last in commit da72f65: runs with the head left alone and at separate
rates, which explain why the denoiser is behind there, and runs on SST-2 at rates tuned for each method.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from dprmt.training.recipes import load_recipe
from paper_figures._measured import ABOVE_ZERO, mean_row
from paper_figures._picture import picture
from paper_figures._pieces import Pieces
from paper_figures._published import published
from paper_figures._reproduction import RESULTS, Found, Item, Row, Scale
from paper_figures._verdict import Reason
from paper_figures.items._recipe_runs import Changes, PairedRuns, trained
from paper_figures.shrinkers import register_blend

VARIANTS: dict[str, Changes] = {
    "DP-LoRA": {"denoising.method": "none"},
    "denoised": {"denoising.method": "paper", "denoising.exclude": ()},
    "blended": {"denoising.method": "blend", "denoising.exclude": ()},
}
STYLE = {"DP-LoRA": "noisy", "denoised": "denoised", "blended": "blended"}
SHORT: Changes = {"training.steps": 6, "training.batch_size": 64, "evaluation.every": 2, "evaluation.limit": 100}
LENGTHS: dict[Scale, tuple[Changes, int]] = {"small": (SHORT, 2), "long": ({"evaluation.every": 2}, 5)}
"""Changes of the recipe, and seeds."""
MODEL = "all-MiniLM-L6-v2 with LoRA"
CONTROLS = {
    "paper": "denoised",
    "longer steps": "DP-LoRA with the denoised steps' length",
    "null": "DP-LoRA with other noise and batches",
}
STUDIES = {"minilm-sst2": "batches of 256", "minilm-sst2-large": "batches of 1024"}
SHARES = (0.9, 0.95)


def _runs(scale: Scale, folder: Path) -> PairedRuns:
    register_blend()
    changes, seeds = LENGTHS[scale]
    return trained(
        Pieces(folder, "speedup", scale), load_recipe("minilm-docstrings").with_changes(changes), VARIANTS, seeds
    )


def _studied(file: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((RESULTS / "raw" / file).read_text(encoding="utf-8"))
    return found


def head_and_rate(scale: Scale) -> tuple[list[Row], list[Reason]]:
    """Whether the head or the rate is why the denoiser is behind; at small scale nothing is tested."""
    if scale == "small":
        text = "one learning rate serves all methods here, the classifier's head is denoised too, and model and data"
        return [], [Reason("open", f"{text} are others than the paper's; which of these decides is not tested.")]
    found = _studied("speedup-head-and-rate.json")
    return [Row(**row) for row in found["rows"]], [Reason(**reason) for reason in found["reasons"]]


def measure(scale: Scale, folder: Path) -> Found:
    runs = _runs(scale, folder)
    tested, reasons = head_and_rate(scale)
    baseline, *methods = runs.variants
    rows = [mean_row(f"{baseline}: last accuracy", runs.last(baseline), unit="%")]
    for method in methods:
        label = f"{method} against {baseline}: last accuracy, paired"
        gaps = runs.difference(method, baseline)
        rows.append(mean_row(label, gaps, unit="points", claim="ahead at equal ε", within=ABOVE_ZERO))
    return Found(
        rows + tested + sst2_rows(),
        differs="A sentence encoder on Python's docstrings instead of RoBERTa on GLUE; every matrix is denoised, the"
        " classifier's head included where nothing else is said. Runs with the head left alone, and at other rates than"
        " the recipe's, multiply the upper layers' frozen matrices in 16 bits; the others are of the recipe as it"
        " stands. SST-2 is read by the same encoder, whose last matrix"
        " alone is adapted in 20 steps on 1,024 and on 8,192 rows, at ε = 6.7 and rates tuned for each method.",
        reasons=reasons,
        model=MODEL,
        data=runs.length,
        seeds=runs.seeds,
        pictures=[picture(folder / "speedup.png", lambda ax: runs.draw(ax, STYLE))],
        earlier_seconds=runs.earlier_seconds,
    )


def sst2_rows() -> list[Row]:
    """The study's last accuracies on SST-2 beside the last ones of RoBERTa-base; models too far apart to compare."""
    table, studied = published("speedup"), _studied("denoising.json")
    adam, denoised = (
        table.number(column, task="SST-2", model="RoBERTa-base", step=400) for column in ("baseline", "denoised")
    )
    rows = []
    for study, batches in STUDIES.items():
        found = {role: 100 * np.array(runs["final_accuracy"]) for role, runs in studied[study]["rows"].items()}
        for role, name, printed in (("none", "DP-LoRA", adam), ("paper", "denoised", denoised)):
            label = f"SST-2, {batches}, {name}: last accuracy"
            rows.append(mean_row(label, found[role], published=printed, unit="%"))
        for role, words in CONTROLS.items():
            label = f"SST-2, {batches}, {words} against DP-LoRA: last accuracy, paired"
            theirs = denoised - adam if role == "paper" else None
            rows.append(mean_row(label, found[role] - found["none"], published=theirs, unit="points"))
    return rows


def steps_to_reference(scale: Scale, folder: Path) -> Found:
    """Steps to 90 and 95 % of a reference accuracy (version 1, Tables 2 and 3)."""
    runs = _runs(scale, folder)
    baseline, *methods = runs.variants
    reference = max(float(runs.last(name).mean()) for name in runs.variants)
    never = float(runs.steps[-1]) + 1
    steps = {(n, share): first_steps(runs, n, share * reference, never) for n in runs.variants for share in SHARES}
    rows = [Row("reference: the best last accuracy of all methods", reference, unit="%")]
    for (name, share), found in steps.items():
        rows.append(mean_row(f"{name}: steps to {100 * share:g} % of it, {never:g} where it is never reached", found))
    for method in methods:
        for share in SHARES:
            label = f"{method}: steps fewer than {baseline} to {100 * share:g} %"
            fewer = steps[baseline, share] - steps[method, share]
            rows.append(mean_row(label, fewer, claim="> 0", within=ABOVE_ZERO))
    task = published("steps-to-reference").rows[0]
    reasons = {
        reason.kind: replace(reason, text="as in `speedup`, whose runs these are.")
        for reason in head_and_rate(scale)[1]
    }
    return Found(
        rows,
        differs=f"Other model and data, see `speedup`; there the paper has, on {task['task']} with {task['model']},"
        f" {task['denoised_steps_90']} against {task['baseline_steps_90']} steps to 90 %.",
        reasons=list(reasons.values()),
        model=MODEL,
        data=runs.length,
        seeds=runs.seeds,
    )


def first_steps(runs: PairedRuns, name: str, wanted: float, never: float) -> np.ndarray:
    """The first evaluation of each seed at which the accuracy is there."""
    steps = np.where(runs.accuracy[name] >= wanted, np.array(runs.steps, dtype=float), never)
    found: np.ndarray = steps.min(1)
    return found


SCALES: tuple[Scale, ...] = ("small", "long")
ITEM = Item("speedup", "Accuracy with and without denoising", measure, SCALES, form_only=True)
ITEMS = (
    ITEM,
    Item("steps-to-reference", "Steps to a share of a reference accuracy", steps_to_reference, SCALES, True, ITEM),
)
