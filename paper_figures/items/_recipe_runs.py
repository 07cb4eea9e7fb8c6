"""Runs of recipes as pieces of an item: scores at every evaluation, by metric."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from dprmt._validation import ParameterError
from dprmt.training.recipes import Recipe
from paper_figures._pieces import Pieces


def train_once(recipe: Recipe, seed: int) -> dict[str, Any]:
    """``steps``, ``epsilon`` and ``scores`` by metric of one run, whose noise has a known seed."""
    from dprmt.training.harness import read_metrics, train

    with tempfile.TemporaryDirectory() as folder:
        train(recipe.with_changes({"training.seed": seed}), Path(folder, "run"), noise_seed=seed)
        lines = read_metrics(Path(folder, "run"))
    if not lines or lines[-1]["step"] < recipe.training.steps:
        raise KeyboardInterrupt("the run was stopped: no piece of the item")
    entries = [entry for entry in lines if "evaluation" in entry]
    names = [name for name, value in entries[0]["evaluation"].items() if isinstance(value, int | float)]
    return {
        "steps": [entry["step"] for entry in entries],
        "epsilon": [entry["epsilon"] for entry in entries],
        "scores": {name: [entry["evaluation"][name] for entry in entries] for name in names},
    }


def run_variants(
    pieces: Pieces, recipe: Recipe, variants: Mapping[str, Mapping[str, Any]], seeds: Sequence[int]
) -> dict[str, list[dict[str, Any]]]:
    """The runs of every variant, by seed; recipes are checked before the first one trains."""
    changed = {name: recipe.with_changes(dict(changes)) for name, changes in variants.items()}
    tasks: dict[str, Callable[[], Any]] = {
        f"{name}, seed {seed}": partial(train_once, changed[name], seed) for seed in seeds for name in variants
    }
    found = pieces.measure(tasks)
    return {name: [found[f"{name}, seed {seed}"] for seed in seeds] for name in variants}


def scores(runs: Sequence[Mapping[str, Any]], metric: str) -> np.ndarray:
    """The metric, shape (runs, evaluations); a value that was not finite is NaN."""
    if metric not in runs[0]["scores"]:
        raise ParameterError("metric", metric, f"one of {', '.join(runs[0]['scores'])}")
    return np.array([run["scores"][metric] for run in runs], dtype=float)


def paired(runs: np.ndarray, others: np.ndarray) -> tuple[float, float]:
    """Mean and standard error of the differences at the end, paired by seed; the error is NaN for one seed."""
    gaps = runs[:, -1] - others[:, -1]
    error = gaps.std(ddof=1) / np.sqrt(len(gaps)) if len(gaps) > 1 else np.nan
    return float(gaps.mean()), float(error)


def draw_band(ax: Any, steps: Sequence[float], values: np.ndarray, label: str, style: Mapping[str, Any]) -> None:
    """Mean over the seeds with a band of one standard deviation."""
    mean = values.mean(0)
    ax.plot(steps, mean, label=label, **style)
    if len(values) > 1:
        spread = values.std(0, ddof=1)
        ax.fill_between(steps, mean - spread, mean + spread, color=style["color"], alpha=0.15, linewidth=0)
