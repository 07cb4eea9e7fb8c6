"""The linear model on heavy-tailed classes at full size: last losses and accuracies of the stored runs.

The runs take days: ``heavy_tail_train.py`` makes them, resumably, and writes ``results/heavy_tail*.json``.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from statistics import mean
from typing import Any

import numpy as np

from paper_figures._picture import STYLES, picture
from paper_figures._published import published
from paper_figures._reproduction import RESULTS, Found, Item, Row, Scale
from paper_figures.items._recipe_runs import draw_band
from paper_figures.items._tuned_runs import LABELS

COLUMNS = {
    "loss, classes of 8": ("group_loss", 8, 1.0, 0.35),
    "accuracy, class of 1024": ("group_accuracy", 1024, 100.0, 5.0),
    "accuracy, classes of 128": ("group_accuracy", 128, 100.0, 5.0),
    "accuracy, classes of 8": ("group_accuracy", 8, 100.0, 2.0),
}
"""By printed quantity: where it stands in a run, in which group, its factor, and what counts as agreement."""
OPTIMIZERS = ("gd", "gdm", "adam", "adambc")
SHOWN = (1024, 128, 32, 8)
DIFFERS = "Learning rates from an estimate and a few trials, not the whole grid; bfloat16 or int8 products."
WHY = (
    "the printed losses and accuracies are those of other step lengths: DP-GD's of a shorter, DP-AdamBC's of a longer"
    " one than our best rates give, as the document on optimizers under noise shows."
)


class Runs:
    """The stored runs of one setting."""

    def __init__(self, file: str) -> None:
        self._curves = json.loads((RESULTS / file).read_text(encoding="utf-8"))["curves"]
        self.seeds = min(sum(self._is(curve, name) for curve in self._curves) for name in OPTIMIZERS)

    def last(self, optimizer: str, quantity: str) -> float:
        """Mean over the seeds, at the end of the run."""
        kind, size, factor, _ = COLUMNS[quantity]
        chosen = [curve for curve in self._curves if self._is(curve, optimizer)]
        return mean(factor * curve[kind][-1][curve["class_sizes"].index(size)] for curve in chosen)

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
        return Found(rows, DIFFERS, WHY, model="linear", data=data, seeds=self.seeds, pictures=[name])

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
    paper, runs = published("heavy-tail"), Runs("heavy_tail.json")
    rows = [
        Row(
            f"{optimizer}: {quantity}",
            runs.last(optimizer, quantity),
            paper.number(optimizer, quantity=quantity),
            COLUMNS[quantity][-1],
            _unit(quantity),
        )
        for quantity in COLUMNS
        for optimizer in OPTIMIZERS
    ]
    return runs.found(rows, folder / "heavy-tail.png")


def larger_clipping_norm(scale: Scale, folder: Path) -> Found:
    runs = Runs("heavy_tail_C10.json")
    losses = {optimizer: runs.last(optimizer, "loss, classes of 8") for optimizer in OPTIMIZERS}
    rows = [Row(f"{optimizer}: loss, classes of 8", loss) for optimizer, loss in losses.items()]
    lead = min(losses[name] for name in ("gd", "gdm", "adam")) - losses["adambc"]
    rows.append(Row("lead of DP-AdamBC in that loss", lead, claim="> 0, as with C = 1", holds=lead > 0))
    return runs.found(rows, folder / "heavy-tail-c10.png")


def less_noise(scale: Scale, folder: Path) -> Found:
    runs = Runs("heavy_tail_sigma5.json")
    rows = [
        Row(f"{optimizer}: {quantity}", runs.last(optimizer, quantity), unit=_unit(quantity))
        for quantity in ("loss, classes of 8", "accuracy, classes of 8")
        for optimizer in OPTIMIZERS
    ]
    gap = runs.last("adam", "loss, classes of 8") - runs.last("adambc", "loss, classes of 8")
    behind = runs.last("gd", "loss, classes of 8") - runs.last("adam", "loss, classes of 8")
    rows.append(
        Row("DP-Adam behind DP-AdamBC in that loss", gap, claim="less than DP-GD is behind DP-Adam", holds=gap < behind)
    )
    return runs.found(rows, folder / "heavy-tail-sigma5.png")


ITEMS = (
    Item("heavy-tail", "Heavy-tailed classes, C = 1, σ = 10", main_setting, scales=("paper",)),
    Item("heavy-tail-c10", "Heavy-tailed classes, C = 10, σ = 10", larger_clipping_norm, scales=("paper",)),
    Item("heavy-tail-sigma5", "Heavy-tailed classes, C = 1, σ = 5", less_noise, scales=("paper",)),
)
