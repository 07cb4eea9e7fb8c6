"""Several ways to train one recipe, over seeds: their accuracy curves."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from joblib import Parallel, delayed

from dprmt._validation import ParameterError
from dprmt.training.harness import read_metrics, sweep
from dprmt.training.recipes import Recipe
from studies._speedup import AccuracyCurve


def compare(
    recipe: Recipe,
    variants: Mapping[str, Mapping[str, Any]],
    seeds: Sequence[int],
    folder: str | os.PathLike[str],
    *,
    jobs: int = 1,
    noise: Mapping[str, int] | None = None,
) -> dict[str, AccuracyCurve]:
    """Train every variant once per seed, and read the accuracies on the validation set.

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

    Returns
    -------
    dict of AccuracyCurve
        By variant.

    Raises
    ------
    ParameterError
        If the recipe evaluates at fewer than two steps or seeds repeat.

    Formal guarantees
    -----------------
    None: seeds are known, so the noise is. For studies on public data.

    Examples
    --------
    >>> from dprmt.training.recipes import load_recipe
    >>> variants = {"baseline": {"denoising.method": "none"}, "denoised": {"denoising.method": "paper"}}
    >>> curves = compare(load_recipe("minilm-docstrings"), variants, range(5), "runs")  # doctest: +SKIP
    """
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
    return {name: accuracy_curve([done[seed, name] for seed in seeds]) for name in variants}


def accuracy_curve(folders: Sequence[str | os.PathLike[str]]) -> AccuracyCurve:
    """Accuracy of several runs of the same length, from their run folders.

    Parameters
    ----------
    folders : sequence of path
        Run folders.

    Returns
    -------
    AccuracyCurve
        With the largest ε of the runs at each step.

    Raises
    ------
    ParameterError
        If the runs were evaluated at different steps.

    Examples
    --------
    >>> accuracy_curve(["runs/seed0", "runs/seed1"]).mean  # doctest: +SKIP
    """
    runs = [[entry for entry in read_metrics(folder) if "evaluation" in entry] for folder in folders]
    steps = [[entry["step"] for entry in run] for run in runs]
    if any(own != steps[0] for own in steps):
        raise ParameterError("folders", steps, "runs that were evaluated at the same steps")
    epsilon = [max(entries) for entries in zip(*([entry["epsilon"] for entry in run] for run in runs), strict=True)]
    return AccuracyCurve(steps[0], epsilon, [[entry["evaluation"]["accuracy"] for entry in run] for run in runs])


def _one(recipe: Recipe, changes: dict[str, Any], seed: int, folder: Path, noise: int) -> Path:
    (run,) = sweep(recipe.with_changes(changes), {"training.seed": [seed]}, folder, jobs=1, noise_seed=noise)
    return run.folder
