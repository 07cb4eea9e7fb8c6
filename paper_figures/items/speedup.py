"""Accuracy with and without denoising at equal ε, in the form of Table 1, on the recipe that needs no download.

At small scale a few short steps. The long runs are those of ``python -m paper_figures study denoising-speedup``, which
takes any recipe and lies in ``results/raw``. Stored beside them is what runs with the head left alone and at rates of
their own say of why the denoiser is behind there; the code that made these is in the history, last in commit da72f65.
Of SST-2 the study of denoising has runs, at rates tuned for each method,
in ``results/raw/denoising.json``; they stand beside the paper's rows of SST-2.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from dprmt.training.recipes import load_recipe
from paper_figures._measured import ABOVE_ZERO, mean_row
from paper_figures._picture import picture
from paper_figures._pieces import Pieces
from paper_figures._published import published
from paper_figures._reproduction import RESULTS, Found, Item, Row, Scale
from paper_figures._verdict import Reason
from paper_figures.items._paired_runs import Changes, PairedRuns, stored, trained
from paper_figures.shrinkers import register_blend

VARIANTS: dict[str, Changes] = {
    "DP-LoRA": {"denoising.method": "none"},
    "denoised": {"denoising.method": "paper", "denoising.exclude": ()},
    "blended": {"denoising.method": "blend", "denoising.exclude": ()},
}
STYLE = {"DP-LoRA": "noisy", "denoised": "denoised", "blended": "blended"}
SHORT: Changes = {"training.steps": 6, "training.batch_size": 64, "evaluation.every": 2, "evaluation.limit": 100}
SEEDS = 2


CONTROLS = {
    "paper": "denoised",
    "longer steps": "DP-LoRA with the denoised steps' length",
    "null": "DP-LoRA with other noise and batches",
}
STUDIES = {"minilm-sst2": "batches of 256", "minilm-sst2-large": "batches of 1024"}


def runs_at(scale: Scale, folder: Path) -> PairedRuns:
    """Trained at small scale."""
    if scale == "long":
        return stored("denoising-speedup.json")
    register_blend()
    recipe = load_recipe("minilm-docstrings").with_changes(SHORT)
    return trained(Pieces(folder, "speedup", scale), recipe, VARIANTS, SEEDS)


def head_and_rate(scale: Scale) -> tuple[list[Row], list[Reason]]:
    """Whether the head or the rate is why the denoiser is behind; at small scale nothing is tested."""
    if scale == "small":
        text = "one learning rate serves all methods here, the classifier's head is denoised too, and model and data"
        return [], [Reason("open", f"{text} are others than the paper's; which of these decides is not tested.")]
    content = json.loads((RESULTS / "raw" / "speedup-head-and-rate.json").read_text(encoding="utf-8"))
    rows, reasons = content["rows"], content["reasons"]
    return [Row(**row) for row in rows], [Reason(**reason) for reason in reasons]


def measure(scale: Scale, folder: Path) -> Found:
    runs = runs_at(scale, folder)
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
        model="all-MiniLM-L6-v2 with LoRA",
        data=runs.length,
        seeds=runs.seeds,
        pictures=[picture(folder / "speedup.png", lambda ax: runs.draw(ax, STYLE))],
        earlier_seconds=runs.earlier_seconds,
    )


def sst2_rows() -> list[Row]:
    """The study's last accuracies on SST-2 beside the last ones of RoBERTa-base; models too far apart to compare."""
    table = published("speedup")
    adam, denoised = (
        table.number(column, task="SST-2", model="RoBERTa-base", step=400) for column in ("baseline", "denoised")
    )
    studied = json.loads((RESULTS / "raw" / "denoising.json").read_text(encoding="utf-8"))
    rows = []
    for study, batches in STUDIES.items():
        found = {role: 100 * np.array(runs["final_accuracy"]) for role, runs in studied[study]["rows"].items()}
        rows.append(mean_row(f"SST-2, {batches}, DP-LoRA: last accuracy", found["none"], published=adam, unit="%"))
        rows.append(
            mean_row(f"SST-2, {batches}, denoised: last accuracy", found["paper"], published=denoised, unit="%")
        )
        for role, words in CONTROLS.items():
            label = f"SST-2, {batches}, {words} against DP-LoRA: last accuracy, paired"
            theirs = denoised - adam if role == "paper" else None
            rows.append(mean_row(label, found[role] - found["none"], published=theirs, unit="points"))
    return rows


ITEM = Item("speedup", "Accuracy with and without denoising", measure, ("small", "long"), form_only=True)
