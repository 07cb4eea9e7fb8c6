"""The one tuner of learning rates: optimizers on a task, each at its best rate on all seeds; every run is a piece."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from dprmt._validation import ParameterError
from paper_figures._picture import STYLES
from paper_figures._pieces import Pieces
from paper_figures._rates import lowest

LABELS = {"gd": "DP-GD", "gdm": "DP-GDM", "adam": "DP-Adam", "adambc": "DP-AdamBC"}
Train = Callable[[str, float, int, Path], Sequence[Any]]
"""From optimizer, learning rate, seed and a folder to the `studies.GroupRecord` of a run."""


@dataclass(frozen=True)
class Tuned:
    """One optimizer at its best rate: its records by seed, as stored. Not private, except for ε."""

    rate: float
    runs: list[dict[str, Any]]
    tried: Mapping[float, float]
    """Loss at the end by rate, on the seed of the choice; infinite if the run diverged."""

    @property
    def at_edge(self) -> bool:
        """Whether the chosen rate is the lowest or highest of several: the best one may lie beyond."""
        return len(self.tried) > 1 and self.rate in (min(self.tried), max(self.tried))

    def ends(self, name: str, group: int | None = None) -> np.ndarray:
        """The last ``loss``, ``accuracy``, ``group_loss`` or ``group_accuracy`` by seed; NaN if it was not finite."""
        ends = [run[name][-1] if group is None else run[name][-1][group] for run in self.runs]
        return np.array([np.nan if value is None else value for value in ends], dtype=float)

    def last(self, name: str, group: int | None = None) -> float:
        """Its mean over the seeds."""
        return float(self.ends(name, group).mean())

    def spread(self, name: str, group: int | None = None) -> float:
        """Its standard deviation over the seeds; NaN for one."""
        return float(self.ends(name, group).std(ddof=1)) if len(self.runs) > 1 else math.nan

    def curve(self, name: str, group: int | None = None) -> tuple[list[float], np.ndarray]:
        """ε, and the mean over the seeds at it."""
        values = np.array([run[name] for run in self.runs], dtype=float).mean(0)
        return self.runs[0]["epsilon"], values if group is None else values[:, group]


def tuned(
    pieces: Pieces,
    train: Train,
    rates: Mapping[str, Sequence[float]],
    seeds: Sequence[int],
    where: str = "",
    tuning_seed: int | None = None,
) -> dict[str, Tuned]:
    """The lowest final loss on one seed chooses the rate, as in the papers: the first, or one that is not reported.

    Raises
    ------
    ParameterError
        If there is no seed, or all runs of an optimizer diverged.
    """
    if not len(seeds):
        raise ParameterError("seeds", [], "at least one")
    first = seeds[0] if tuning_seed is None else tuning_seed
    tried = _measured(pieces, train, where, {name: [(rate, first) for rate in grid] for name, grid in rates.items()})
    losses = {name: {rate: _final(run) for (rate, _), run in runs.items()} for name, runs in tried.items()}
    best = {name: lowest(found) for name, found in losses.items()}
    for name, rate in best.items():
        if not math.isfinite(losses[name][rate]):
            raise ParameterError(f"rates[{name!r}]", list(rates[name]), "such that at least one run does not diverge")
    found = _measured(pieces, train, where, {name: [(rate, seed) for seed in seeds] for name, rate in best.items()})
    return {name: Tuned(rate, list(found[name].values()), losses[name]) for name, rate in best.items()}


def _measured(
    pieces: Pieces, train: Train, where: str, wanted: Mapping[str, Sequence[tuple[float, int]]]
) -> dict[str, dict[tuple[float, int], dict[str, Any]]]:
    # By optimizer, and by rate and seed.
    keys = [(name, *run) for name, runs in wanted.items() for run in runs]
    values = pieces.measure({_name(where, *key): _task(train, *key) for key in keys})
    return {name: {run: values[_name(where, name, *run)] for run in runs} for name, runs in wanted.items()}


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
