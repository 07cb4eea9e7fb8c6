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
from paper_figures._picture import STYLES, draw_band
from paper_figures._pieces import Pieces

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

    def curve(self, name: str, group: int | None = None) -> tuple[list[float], np.ndarray]:
        """ε, and the values at it, shape (seeds, records)."""
        values = np.array([run[name] for run in self.runs], dtype=float)
        return self.runs[0]["epsilon"], values if group is None else values[..., group]


def tuned(
    pieces: Pieces,
    train: Train,
    rates: Mapping[str, Sequence[float]],
    seeds: Sequence[int],
    where: str = "",
    tuning_seed: int | None = None,
) -> dict[str, Tuned]:
    """The lowest final loss on one seed chooses the rate, as in the papers: the first, or one that is not reported.

    The choice reads private losses, and no accountant has counted it, here or in the papers.

    Raises
    ------
    ParameterError
        If all runs of an optimizer diverged.
    """
    first = seeds[0] if tuning_seed is None else tuning_seed
    tried = _measured(pieces, train, where, {name: [(rate, first) for rate in grid] for name, grid in rates.items()})
    losses = {name: {rate: _final(run) for (rate, _), run in runs.items()} for name, runs in tried.items()}
    best = {name: min(found, key=found.__getitem__) for name, found in losses.items()}
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


def _final(run: Mapping[str, Any]) -> float:
    last = run["loss"][-1]
    return math.inf if last is None or not math.isfinite(last) else float(last)


def _name(where: str, optimizer: str, rate: float, seed: int) -> str:
    return f"{where}{optimizer}, lr = {rate:g}, seed {seed}"


def _task(train: Train, optimizer: str, rate: float, seed: int) -> Callable[[], dict[str, Any]]:
    def run() -> dict[str, Any]:
        with tempfile.TemporaryDirectory() as folder:
            records = train(optimizer, rate, seed, Path(folder) / "run")
        return {name: [getattr(record, name) for record in records] for name in records[0]._fields}

    return run


def half_power_grid(low: float, high: float) -> list[float]:
    """The numbers 1·10^k and 5·10^k in [low, high]: the grid of learning rates of the paper on DP-AdamBC (section 3).

    Examples
    --------
    >>> half_power_grid(0.1, 10)
    [0.1, 0.5, 1.0, 5.0, 10.0]
    """
    powers = range(math.floor(math.log10(low)) - 1, math.ceil(math.log10(high)) + 1)
    return [rate for power in powers for digit in (1, 5) if low <= (rate := float(f"{digit}e{power}")) <= high]


def draw_groups(
    axes: Sequence[Any] | np.ndarray,
    runs: Mapping[str, Tuned],
    metric: str,
    groups: Mapping[int, str],
    *,
    whole: bool = True,
) -> None:
    """One panel for all samples, unless not ``whole``, and one a group: the metric against ε."""
    panels: list[tuple[int | None, str]] = [*([(None, "all samples")] if whole else []), *groups.items()]
    for ax, (group, title) in zip(axes, panels, strict=True):
        for optimizer, found in runs.items():
            epsilon, values = found.curve(metric if group is None else f"group_{metric}", group)
            draw_band(ax, epsilon, values, LABELS[optimizer], STYLES[LABELS[optimizer]])
        ax.set(xlabel="ε", title=title)
        if metric == "accuracy":
            ax.set_ylim(0.0, max(0.02, ax.get_ylim()[1]))
    axes[0].set_ylabel(f"training {metric}" + (" in nats" if metric == "loss" else ""))
    if whole:
        axes[0].legend(frameon=False)
