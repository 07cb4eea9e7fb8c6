"""Optimizers on a task with frequency groups: rates chosen on the first seed, then all seeds; every run is a piece."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from paper_figures._picture import STYLES
from paper_figures._pieces import Pieces

LABELS = {"gd": "DP-GD", "gdm": "DP-GDM", "adam": "DP-Adam", "adambc": "DP-AdamBC"}
Train = Callable[[str, float, int, Path], Sequence[Any]]
"""From optimizer, learning rate, seed and a folder to the `studies.GroupRecord` of a run."""


@dataclass(frozen=True)
class Tuned:
    """One optimizer at its best rate: its records by seed, as stored."""

    rate: float
    runs: list[dict[str, Any]]

    def last(self, name: str, group: int | None = None) -> float:
        """Mean over the seeds at the end, of ``loss``, ``accuracy``, ``group_loss`` or ``group_accuracy``."""
        ends = [run[name][-1] if group is None else run[name][-1][group] for run in self.runs]
        return float(np.mean([np.nan if value is None else value for value in ends]))

    def curve(self, name: str, group: int | None = None) -> tuple[list[float], np.ndarray]:
        """ε, and the mean over the seeds at it."""
        values = np.array([run[name] for run in self.runs], dtype=float).mean(0)
        return self.runs[0]["epsilon"], values if group is None else values[:, group]


def tuned(
    pieces: Pieces, train: Train, rates: Mapping[str, Sequence[float]], seeds: Sequence[int], where: str = ""
) -> dict[str, Tuned]:
    """The lowest final loss on the first seed chooses the rate."""
    tried = pieces.measure(
        {
            _name(where, optimizer, rate, seeds[0]): _task(train, optimizer, rate, seeds[0])
            for optimizer, grid in rates.items()
            for rate in grid
        }
    )
    best = {
        optimizer: min(grid, key=lambda rate: _final(tried[_name(where, optimizer, rate, seeds[0])]))
        for optimizer, grid in rates.items()
    }
    found = pieces.measure(
        {
            _name(where, optimizer, rate, seed): _task(train, optimizer, rate, seed)
            for optimizer, rate in best.items()
            for seed in seeds
        }
    )
    return {
        optimizer: Tuned(rate, [found[_name(where, optimizer, rate, seed)] for seed in seeds])
        for optimizer, rate in best.items()
    }


def draw_groups(axes: Any, runs: Mapping[str, Tuned], metric: str, groups: Mapping[int, str]) -> None:
    """One panel for all samples and one a group: the metric against ε."""
    panels: list[tuple[int | None, str]] = [(None, "all"), *groups.items()]
    for ax, (group, title) in zip(axes, panels, strict=True):
        for optimizer, found in runs.items():
            name = metric if group is None else f"group_{metric}"
            ax.plot(*found.curve(name, group), label=LABELS[optimizer], **STYLES[LABELS[optimizer]])
        ax.set(xlabel="ε", title=title)
        if metric == "accuracy":
            ax.set_ylim(0.0, max(0.02, ax.get_ylim()[1]))
    axes[0].set_ylabel(f"training {metric}" + (" in nats" if metric == "loss" else ""))
    axes[0].legend(frameon=False)


def _final(run: Mapping[str, Any]) -> float:
    last = run["loss"][-1]
    return float("inf") if last is None or not math.isfinite(last) else float(last)


def _name(where: str, optimizer: str, rate: float, seed: int) -> str:
    return f"{where}{optimizer}, lr = {rate:g}, seed {seed}"


def _task(train: Train, optimizer: str, rate: float, seed: int) -> Callable[[], dict[str, Any]]:
    def run() -> dict[str, Any]:
        with tempfile.TemporaryDirectory() as folder:
            records = train(optimizer, rate, seed, Path(folder) / "run")
        return {name: [getattr(record, name) for record in records] for name in records[0]._fields}

    return run
