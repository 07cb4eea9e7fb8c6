"""The linear model on heavy-tailed classes at full size: last losses and accuracies of the stored runs.

The runs take days: ``heavy_tail_train.py`` makes them, resumably, and writes ``results/heavy_tail.json``.
"""

from __future__ import annotations

import json
from pathlib import Path
from statistics import mean

from paper_figures._published import published
from paper_figures._reproduction import RESULTS, Found, Item, Row, Scale

PAPER = published("heavy-tail")
RUNS = RESULTS / "heavy_tail.json"
COLUMNS = {
    "loss, classes of 8": ("group_loss", 8, 1.0, 0.35),
    "accuracy, class of 1024": ("group_accuracy", 1024, 100.0, 5.0),
    "accuracy, classes of 128": ("group_accuracy", 128, 100.0, 5.0),
    "accuracy, classes of 8": ("group_accuracy", 8, 100.0, 2.0),
}
"""By printed quantity: where it stands in a run, in which group, its factor, and what counts as agreement."""


def measure(scale: Scale, folder: Path) -> Found:
    runs = json.loads(RUNS.read_text(encoding="utf-8"))["curves"]
    optimizers = sorted({run["trial"]["optimizer"] for run in runs}, key=["gd", "gdm", "adam", "adambc"].index)
    rows = []
    for quantity, (kind, size, factor, tolerance) in COLUMNS.items():
        for optimizer in optimizers:
            chosen = [run for run in runs if run["trial"]["optimizer"] == optimizer]
            ours = mean(factor * run[kind][-1][run["class_sizes"].index(size)] for run in chosen)
            printed = PAPER.number(optimizer, quantity=quantity)
            rows.append(Row(f"{optimizer}: {quantity}", ours, printed, tolerance, "" if factor == 1 else "%"))
    return Found(
        rows,
        differs="Learning rates from an estimate and a few trials, not the whole grid; bfloat16 or int8 products.",
        model="linear",
        data="8192 samples, 255 classes, generated",
        seeds=len(runs) // len(optimizers),
    )


ITEM = Item("heavy-tail", "Heavy-tailed classes, C = 1, σ = 10", measure, scales=("paper",))
