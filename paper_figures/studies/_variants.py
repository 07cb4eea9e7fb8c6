"""Several ways to train one recipe, over seeds: their curves of a score."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from joblib import Parallel, delayed

from dprmt._validation import ParameterError
from dprmt.training.evaluation import text_metrics
from dprmt.training.harness import read_metrics, sweep
from dprmt.training.recipes import Recipe
from paper_figures.studies._metric import ACCURACY, Metric, metric_of
from paper_figures.studies._speedup import MetricCurve


def compare(
    recipe: Recipe,
    variants: Mapping[str, Mapping[str, Any]],
    seeds: Sequence[int],
    folder: str | os.PathLike[str],
    *,
    jobs: int = 1,
    noise: Mapping[str, int] | None = None,
    metric: str | None = None,
) -> dict[str, MetricCurve]:
    """Train every variant once per seed, and read a score on the validation set.

    Within a seed all variants have the same initial weights, and the same noise and Poisson coins as far as they use
    them in the same way. Runs that are finished are not repeated: call it again after any stop.

    Parameters
    ----------
    recipe : Recipe
        With ``evaluation.every``.
    variants : mapping of str to mapping
        Changes of the recipe by the name of the variant.
    seeds : sequence of int
        >= 0, all different.
    folder : path
        Where the run folders go.
    jobs : int
        Runs side by side.
    noise : mapping of str to int, optional
        By variant, what is added to the seed for its noise and coins: the same variant under another name and with
        other noise says how far apart chance alone puts two.
    metric : str, optional
        The score, out of those that the recipe's evaluation gives; the first of them by default.

    Returns
    -------
    dict of MetricCurve
        By variant.

    Raises
    ------
    ParameterError
        Before anything is trained: if the recipe evaluates at fewer than two steps, seeds repeat, or the score is not
        one that its evaluation gives, or cannot be computed here.

    Formal guarantees
    -----------------
    None: seeds are known, so the noise is. For studies on public data.

    Examples
    --------
    >>> from dprmt.training.recipes import load_recipe
    >>> variants = {"baseline": {"denoising.method": "none"}, "denoised": {"denoising.method": "paper"}}
    >>> curves = compare(load_recipe("minilm-docstrings"), variants, range(5), "runs")  # doctest: +SKIP
    """
    chosen = metric_of(recipe, metric)
    _check_computable(chosen, recipe)
    if recipe.evaluation.every is None or 2 * recipe.evaluation.every > recipe.training.steps:
        raise ParameterError("evaluation.every", recipe.evaluation.every, f"at most {recipe.training.steps // 2}")
    if len(set(seeds)) < len(seeds) or not len(seeds):
        raise ParameterError("seeds", list(seeds), "integers that are all different")
    tasks = [(seed, name) for seed in seeds for name in variants]
    folders = Parallel(n_jobs=jobs)(
        delayed(_one)(recipe, dict(variants[name]), seed, Path(folder) / name, seed + (noise or {}).get(name, 0))
        for seed, name in tasks
    )
    done = dict(zip(tasks, folders, strict=True))
    return {name: metric_curve([done[seed, name] for seed in seeds], chosen) for name in variants}


def metric_curve(folders: Sequence[str | os.PathLike[str]], metric: Metric = ACCURACY) -> MetricCurve:
    """A score of several runs of the same length, from their run folders.

    Parameters
    ----------
    folders : sequence of path
        Run folders.
    metric : Metric
        Which score.

    Returns
    -------
    MetricCurve
        With the largest ε of the runs at each step, infinite for runs without noise; a score that was not finite is
        NaN.

    Raises
    ------
    ParameterError
        If the runs were evaluated at different steps or do not have the score.

    Examples
    --------
    >>> metric_curve(["runs/seed0", "runs/seed1"]).mean  # doctest: +SKIP
    """
    runs = [[entry for entry in read_metrics(folder) if "evaluation" in entry] for folder in folders]
    steps = [[entry["step"] for entry in run] for run in runs]
    if any(own != steps[0] for own in steps):
        raise ParameterError("folders", steps, "runs that were evaluated at the same steps")
    given = sorted({name for run in runs for entry in run for name in entry["evaluation"]})
    if any(metric.name not in entry["evaluation"] for run in runs for entry in run):
        raise ParameterError("metric", metric.name, f"one that the runs have, out of {', '.join(given)}")
    bounds = [[math.inf if entry["epsilon"] is None else entry["epsilon"] for entry in run] for run in runs]
    values = [[entry["evaluation"][metric.name] for entry in run] for run in runs]
    numbers = np.array(values, dtype=float)  # null, which was not finite, becomes NaN
    return MetricCurve(steps[0], [max(entries) for entries in zip(*bounds, strict=True)], numbers, metric)


def _check_computable(metric: Metric, recipe: Recipe) -> None:
    if recipe.model.task == "generation":
        text = "one text of a few words"
        _, skipped = text_metrics([text], [[text]], [metric.name])
        for reason in skipped.values():
            raise ParameterError("metric", metric.name, f"one that can be computed here ({reason})")


def _one(recipe: Recipe, changes: dict[str, Any], seed: int, folder: Path, noise: int) -> Path:
    (run,) = sweep(recipe.with_changes(changes), {"training.seed": [seed]}, folder, jobs=1, noise_seed=noise)
    return run.folder
