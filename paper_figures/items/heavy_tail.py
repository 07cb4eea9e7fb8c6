"""The linear model on heavy-tailed classes at full size: last losses and accuracies of the stored runs.

The runs take days: ``python -m paper_figures study heavy-tail`` makes them, resumably, and writes
``results/raw/heavy-tail*.json``.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np

from paper_figures._measured import ABOVE_ZERO, BELOW_ZERO, mean_row
from paper_figures._picture import STYLES, picture
from paper_figures._published import published
from paper_figures._reproduction import RESULTS, Found, Item, Row, Scale
from paper_figures._tuner import LABELS
from paper_figures._verdict import Reason
from paper_figures.items._recipe_runs import draw_band

COLUMNS = {
    "loss, classes of 8": ("group_loss", 8, 1.0, 0.35),
    "accuracy, class of 1024": ("group_accuracy", 1024, 100.0, 5.0),
    "accuracy, classes of 128": ("group_accuracy", 128, 100.0, 5.0),
    "accuracy, classes of 8": ("group_accuracy", 8, 100.0, 2.0),
}
"""By quantity: where it stands in a run, in which group, its factor, and the margin."""
LEADS = {"lead of DP-AdamBC in accuracy, classes of 8": "accuracy, classes of 8"}
OPTIMIZERS = ("gd", "gdm", "adam", "adambc")
SHOWN = (1024, 128, 32, 8)
DIFFERS = "Learning rates from an estimate and a few trials, not the whole grid; bfloat16 or int8 products."
REASONS = (
    Reason(
        "open",
        "rates, stability constants and numbers of steps of the printed runs are not printed.",
    ),
)


class Runs:
    """The stored runs of one setting."""

    def __init__(self, file: str) -> None:
        self._curves = json.loads((RESULTS / "raw" / file).read_text(encoding="utf-8"))["curves"]
        self.seeds = min(sum(self._is(curve, name) for curve in self._curves) for name in OPTIMIZERS)

    def last(self, optimizer: str, quantity: str) -> list[float]:
        """At the end of the runs, by seed."""
        kind, size, factor, _ = COLUMNS[quantity]
        chosen = sorted((c for c in self._curves if self._is(c, optimizer)), key=lambda curve: curve["trial"]["seed"])
        return [factor * curve[kind][-1][curve["class_sizes"].index(size)] for curve in chosen[: self.seeds]]

    @staticmethod
    def _is(curve: dict[str, Any], optimizer: str) -> bool:
        return curve["trial"]["optimizer"] == optimizer

    def curve(self, optimizer: str, kind: str, size: int | None) -> tuple[list[float], np.ndarray]:
        """ε, and the values of all samples or of a group at it, shape (seeds, evaluations), at common steps."""
        chosen = [curve for curve in self._curves if self._is(curve, optimizer)]
        common = sorted(set.intersection(*(set(curve["steps"]) for curve in chosen)))
        values = []
        for curve in chosen:
            at = [curve["steps"].index(step) for step in common]
            if size is None:
                values.append([curve[kind][place] for place in at])
            else:
                group = curve["class_sizes"].index(size)
                values.append([curve[f"group_{kind}"][place][group] for place in at])
        epsilon = dict(zip(chosen[0]["steps"], chosen[0]["epsilon"], strict=True))
        return [epsilon[step] for step in common], np.array(values)

    def found(self, rows: Sequence[Row], file: Path) -> Found:
        """The rows with what all settings share, and the curves of losses and accuracies as a picture."""
        data = "8192 samples, 255 classes, generated"
        name = picture(file, self._draw, panels=1 + len(SHOWN), rows=2)
        return Found(rows, DIFFERS, reasons=REASONS, model="linear", data=data, seeds=self.seeds, pictures=[name])

    def _draw(self, axes: np.ndarray) -> None:
        for row, kind in zip(np.split(axes, 2), ("loss", "accuracy"), strict=True):
            for ax, size in zip(row, (None, *SHOWN), strict=True):
                for optimizer in OPTIMIZERS:
                    epsilon, values = self.curve(optimizer, kind, size)
                    draw_band(ax, epsilon, values, LABELS[optimizer], STYLES[LABELS[optimizer]])
                ax.set(xlabel="ε", title="all samples" if size is None else f"classes of {size}")
            row[0].set_ylabel("training loss in nats" if kind == "loss" else "training accuracy")
            row[0].legend(frameon=False)


def _unit(quantity: str) -> str:
    return "%" if quantity.startswith("accuracy") else ""


def main_setting(scale: Scale, folder: Path) -> Found:
    paper, runs = published("heavy-tail"), Runs("heavy-tail.json")
    rows = [
        mean_row(
            f"{LABELS[optimizer]}: {quantity}",
            runs.last(optimizer, quantity),
            published=paper.number(optimizer, quantity=quantity),
            margin=margin,
            unit=_unit(quantity),
        )
        for quantity, (*_, margin) in COLUMNS.items()
        for optimizer in OPTIMIZERS
        if quantity not in LEADS.values() or optimizer == "adambc"
    ]
    for printed, quantity in LEADS.items():
        rows += [
            mean_row(
                f"{LABELS[optimizer]}: {printed}",
                _gaps(runs, "adambc", optimizer, quantity),
                published=paper.number(optimizer, quantity=printed),
                margin=COLUMNS[quantity][-1],
                unit="points",
            )
            for optimizer in OPTIMIZERS
            if optimizer != "adambc"
        ]
    return runs.found(rows, folder / "heavy-tail.png")


def _gaps(runs: Runs, first: str, second: str, quantity: str) -> list[float]:
    pairs = zip(runs.last(first, quantity), runs.last(second, quantity), strict=True)
    return [a - b for a, b in pairs]


def _best_other(runs: Runs, quantity: str) -> str:
    return min(("gd", "gdm", "adam"), key=lambda name: fmean(runs.last(name, quantity)))


def larger_clipping_norm(scale: Scale, folder: Path) -> Found:
    runs, quantity = Runs("heavy-tail-c10.json"), "loss, classes of 8"
    rows = [mean_row(f"{LABELS[name]}: {quantity}", runs.last(name, quantity)) for name in OPTIMIZERS]
    lead = _gaps(runs, _best_other(runs, quantity), "adambc", quantity)
    rows.append(mean_row("lead of DP-AdamBC in that loss", lead, claim="> 0, as with C = 1", within=ABOVE_ZERO))
    return runs.found(rows, folder / "heavy-tail-c10.png")


def less_noise(scale: Scale, folder: Path) -> Found:
    runs, quantity = Runs("heavy-tail-sigma5.json"), "loss, classes of 8"
    rows = [
        mean_row(f"{LABELS[optimizer]}: {name}", runs.last(optimizer, name), unit=_unit(name))
        for name in (quantity, "accuracy, classes of 8")
        for optimizer in OPTIMIZERS
    ]
    gap, behind = _gaps(runs, "adam", "adambc", quantity), _gaps(runs, "gd", "adam", quantity)
    claim = "less than DP-GD is behind DP-Adam: the difference is < 0"
    differences = [a - b for a, b in zip(gap, behind, strict=True)]
    rows.append(mean_row("DP-Adam behind DP-AdamBC in that loss", gap))
    rows.append(mean_row("that, less DP-GD behind DP-Adam", differences, claim=claim, within=BELOW_ZERO))
    return runs.found(rows, folder / "heavy-tail-sigma5.png")


ITEMS = (
    Item("heavy-tail", "Heavy-tailed classes, C = 1, σ = 10", main_setting, scales=("paper",)),
    Item("heavy-tail-c10", "Heavy-tailed classes, C = 10, σ = 10", larger_clipping_norm, scales=("paper",)),
    Item("heavy-tail-sigma5", "Heavy-tailed classes, C = 1, σ = 5", less_noise, scales=("paper",)),
)
