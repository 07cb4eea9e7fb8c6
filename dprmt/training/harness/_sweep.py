"""Many runs of one recipe: a grid over κ, probes, seeds, through joblib and so on any engine that joblib knows."""

from __future__ import annotations

import hashlib
import itertools
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from joblib import Parallel, delayed

from dprmt._files import write_whole
from dprmt._validation import ParameterError
from dprmt.training.harness._privacy_card import write_sweep_card
from dprmt.training.harness._run_folder import CONFIG, SUMMARY, is_config_of, read_summary
from dprmt.training.harness._train import train
from dprmt.training.recipes import Recipe

_CHANGES = "changes.json"


@dataclass(frozen=True)
class SweepRun:
    """One run of a sweep.

    Attributes
    ----------
    changes : dict
        Changed values of the recipe, by dotted name.
    folder : Path
        Run folder.
    summary : dict
        Its ``summary.json``: ε, steps, scores.
    """

    changes: dict[str, Any]
    folder: Path
    summary: dict[str, Any]


def sweep(
    recipe: Recipe,
    grid: Mapping[str, Sequence[Any]],
    out: str | os.PathLike[str],
    *,
    jobs: int | None = None,
    noise_seed: int | None = None,
) -> list[SweepRun]:
    """Train a recipe once for every combination of values.

    Finished runs are not repeated, and interrupted ones are resumed: call it again after any stop, also with more
    values.

    Parameters
    ----------
    recipe : Recipe
        Recipe to start from.
    grid : mapping of str to sequence
        Values by dotted name, such as ``{"denoising.kappa": [1.01, 1.05], "training.seed": range(5)}``.
    out : path
        Folder with one run folder per combination, and at the end the privacy report of all runs in it.
    jobs : int, optional
        Number of parallel jobs, as joblib's ``n_jobs``. Under ``joblib.parallel_config(backend="dask")``, or Ray's,
        the runs use that cluster. All its machines must then share ``out``, and workers have one thread each, because
        initial values come from torch's global generator.
    noise_seed : int, optional
        As for :func:`dprmt.training.harness.train`, the same for all runs.

    Returns
    -------
    list of SweepRun
        Runs in the order of the grid, the last name varying fastest.

    Raises
    ------
    ParameterError
        If a combination is no valid recipe, or ``out`` holds runs of another recipe; then nothing is run. If a run
        cannot be started, as :func:`dprmt.training.harness.train`.
    KeyboardInterrupt
        If a signal stopped a run. Call it again to continue.

    Formal guarantees
    -----------------
    Every run has a separate ε. All runs together, and a choice among them by their releases, have the larger ε of the
    report in ``out``, see :func:`read_sweep_card`. With ``noise_seed`` runs share their noise, which an attacker who
    sees two of them can subtract, so they have no ε together and no report.

    Examples
    --------
    >>> import tempfile
    >>> from dprmt.training.recipes import load_recipe
    >>> few = {"data.limit": 30, "training.batch_size": 10, "training.steps": 2, "model.tokenizer": "bytes"}
    >>> recipe = load_recipe("qwen3-tiny-docstrings").with_changes(few)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     runs = sweep(recipe, {"privacy.target_epsilon": [1.0, 3.0]}, folder)
    >>> [(run.changes["privacy.target_epsilon"], round(run.summary["epsilon"], 1)) for run in runs]
    [(1.0, 1.0), (3.0, 3.0)]
    """
    combinations = [dict(zip(grid, values, strict=True)) for values in itertools.product(*grid.values())]
    if not combinations:
        raise ParameterError("grid", dict(grid), "at least one value for every name")
    recipes = [recipe.with_changes(changes) for changes in combinations]
    folders = [Path(out) / _name(changes) for changes in combinations]
    for folder, changed in zip(folders, recipes, strict=True):
        if (folder / CONFIG).exists() and not is_config_of((folder / CONFIG).read_bytes(), changed.to_toml()):
            raise ParameterError("out", str(out), f"the folder of a sweep of the same recipe (see {folder / CONFIG})")
    Path(out).mkdir(parents=True, exist_ok=True)
    runs = zip(recipes, folders, combinations, strict=True)
    summaries = Parallel(n_jobs=jobs)(delayed(_one_run)(*run, noise_seed) for run in runs)
    write_sweep_card(Path(out))
    return [SweepRun(*run) for run in zip(combinations, folders, summaries, strict=True)]


def _name(changes: Mapping[str, Any]) -> str:
    # Readable, and different for different changes.
    text = json.dumps(changes, sort_keys=True, default=str)
    words = "_".join(f"{name.rsplit('.', 1)[-1]}={value}" for name, value in changes.items())
    safe = "".join(letter if letter.isalnum() or letter in "=._-+" else "-" for letter in words)[:80]
    return f"{safe}_{hashlib.blake2b(text.encode(), digest_size=4).hexdigest()}"


def _one_run(recipe: Recipe, folder: Path, changes: dict[str, Any], noise_seed: int | None) -> dict[str, Any]:
    if not (folder / SUMMARY).exists():
        try:
            result = train(recipe, folder, resume=(folder / CONFIG).exists(), noise_seed=noise_seed)
        except ParameterError as error:
            raise ParameterError(error.name, str(error.value), error.allowed, error.fix) from None
        if not result.finished:
            raise KeyboardInterrupt
    if not (folder / _CHANGES).exists():
        write_whole(folder / _CHANGES, json.dumps(changes, default=str) + "\n")
    return read_summary(folder)
