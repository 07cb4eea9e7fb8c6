"""Runs of recipes as pieces of an item: scores at every evaluation, by metric, and variants paired by seed."""

from __future__ import annotations

import tempfile
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np

from dprmt._files import read_lines
from dprmt._validation import ParameterError
from dprmt.training.recipes import Recipe, recipe_from_dict
from paper_figures._picture import STYLES, draw_band
from paper_figures._pieces import Pieces

Changes = dict[str, Any]
SHORTER: Changes = {"training.steps": 20, "training.batch_size": 128, "evaluation.every": 5, "evaluation.limit": 200}


def train_once(recipe: Recipe, seed: int) -> dict[str, Any]:
    """``steps``, ``epsilon`` and ``scores`` by metric of one run, whose noise has a known seed."""
    from dprmt.training.harness import train

    with tempfile.TemporaryDirectory() as folder:
        train(recipe.with_changes({"training.seed": seed}), Path(folder, "run"), noise_seed=seed)
        return _scored(Path(folder, "run"), recipe.training.steps)


def train_on(recipe: Recipe, seed: int, folder: Path, first: int | None = None) -> dict[str, Any]:
    """The same of a run of many minutes: it lies in ``folder``, and goes on where a cut at any instant left it.

    Whatever the cuts, the numbers are those of the run in one. For that σ is given instead of a target ε, to which
    steps that a cut threw away would be charged, and a step's ε is that of as many steps. ``first``: so many steps
    alone, with the noise of them all.
    """
    from dprmt.training.harness import train

    begun = (folder / "config.toml").exists()
    steps = recipe.training.steps if first is None else first
    changes = {"training.seed": seed, "training.steps": steps, "training.checkpoint_every": 1}
    train(with_noise(recipe).with_changes(changes), folder, resume=begun, noise_seed=seed)
    found = _scored(folder, steps)
    charged = {line["charged"]: line["epsilon"] for line in read_lines(folder / "privacy.jsonl")}
    return found | {"epsilon": [charged[step] for step in found["steps"]]}


def with_noise(recipe: Recipe) -> Recipe:
    """The recipe with the σ that keeps its target ε over its steps, in the target's place."""
    if recipe.privacy.target_epsilon is None:
        return recipe
    return recipe.with_changes({"privacy.target_epsilon": None, "privacy.noise_multiplier": _noise(recipe.to_toml())})


@cache
def _noise(recipe: str) -> float:
    # A recipe is no key itself; seeds share one.
    from dprmt.training.harness import dry_run

    return float(dry_run(recipe_from_dict(tomllib.loads(recipe))).mechanism["noise_multiplier"])


def _scored(folder: Path, steps: int) -> dict[str, Any]:
    from dprmt.training.harness import read_metrics

    lines = read_metrics(folder)
    done = lines[-1]["step"] if lines else 0
    if done < steps:
        raise KeyboardInterrupt(f"the run was stopped after {done} of {steps} steps: no piece of the item")
    entries = [entry for entry in lines if "evaluation" in entry]
    names = [name for name, value in entries[0]["evaluation"].items() if isinstance(value, int | float)]
    return {
        "steps": [entry["step"] for entry in entries],
        "epsilon": [entry["epsilon"] for entry in entries],
        "scores": {name: [entry["evaluation"][name] for entry in entries] for name in names},
    }


def run_variants(
    pieces: Pieces,
    recipe: Recipe,
    variants: Mapping[str, Mapping[str, Any]],
    seeds: Sequence[int],
    *,
    by_steps: bool = False,
    first: int | None = None,
) -> dict[str, list[dict[str, Any]]]:
    """The runs of every variant, by seed; recipes are checked before the first one trains.

    ``by_steps``: a run that is cut goes on at its last step, see :func:`train_on` and its ``first``, instead of at its
    first one.
    """
    changed = {name: recipe.with_changes(dict(changes)) for name, changes in variants.items()}
    tasks: dict[str, Callable[[], Any]] = {}
    for seed in seeds:
        for name in variants:
            label = f"{name}, seed {seed}"
            run = partial(train_on, folder=pieces.folder(label), first=first) if by_steps else train_once
            tasks[label] = partial(run, changed[name], seed)
    found = pieces.measure(tasks)
    return {name: [found[f"{name}, seed {seed}"] for seed in seeds] for name in variants}


def scores(runs: Sequence[Mapping[str, Any]], metric: str) -> np.ndarray:
    """The metric, shape (runs, evaluations); a value that was not finite is NaN."""
    if metric not in runs[0]["scores"]:
        raise ParameterError("metric", metric, f"one of {', '.join(runs[0]['scores'])}")
    return np.array([run["scores"][metric] for run in runs], dtype=float)


@dataclass(frozen=True)
class PairedRuns:
    """Accuracies in percent by variant, each of shape (seeds, evaluations), at equal ε over the same seeds."""

    recipe: str
    steps: Sequence[float]
    accuracy: Mapping[str, np.ndarray]
    earlier_seconds: float

    @property
    def variants(self) -> list[str]:
        return list(self.accuracy)

    @property
    def seeds(self) -> int:
        return min(map(len, self.accuracy.values()))

    @property
    def length(self) -> str:
        return f"{self.recipe}, {self.steps[-1]:g} steps"

    def last(self, variant: str) -> np.ndarray:
        """At the end of each seed's run."""
        return self.accuracy[variant][:, -1]

    def difference(self, variant: str, baseline: str) -> np.ndarray:
        """At the end, in points, paired by seed."""
        return self.last(variant) - self.last(baseline)

    def draw(self, ax: Any, styles: Mapping[str, str]) -> None:
        """Mean and spread over the steps, by variant."""
        for name, values in self.accuracy.items():
            draw_band(ax, self.steps, values, name, STYLES[styles[name]])
        ax.set(xlabel="step", ylabel="accuracy, %")
        ax.legend(frameon=False)


def trained(pieces: Pieces, recipe: Recipe, variants: Mapping[str, Changes], seeds: int) -> PairedRuns:
    """Train what the pieces lack."""
    runs = run_variants(pieces, recipe, variants, range(seeds))
    accuracy = {name: 100 * scores(found, "accuracy") for name, found in runs.items()}
    return PairedRuns(recipe.name, next(iter(runs.values()))[0]["steps"], accuracy, pieces.earlier_seconds)
