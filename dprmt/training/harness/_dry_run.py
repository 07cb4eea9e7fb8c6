"""Preview of a run: shapes, trainable parameters, noise, ε per step. It reads nothing private."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from dprmt._validation import ParameterError
from dprmt.training.harness._costs import with_norms
from dprmt.training.harness._norms_said import epsilon_of_exact_norms, layer_norms, norms_sentence
from dprmt.training.harness._private_score import wanted_releases
from dprmt.training.harness._recipe_task import load, prepare_recipe, usable_device
from dprmt.training.harness._run_folder import RunFolder, read_run
from dprmt.training.private_run._clip_only import named_relation
from dprmt.training.private_run._ledger import SpentEpsilon, describe_mechanism
from dprmt.training.private_run._randomness import fresh_randomness
from dprmt.training.recipes import Recipe

_CURVE = 5  # points of the ε curve that are reported


@dataclass(frozen=True)
class DryRun:
    """Preview of a run.

    Attributes
    ----------
    mechanism : dict
        One step, as the accountant receives it.
    noise_std : float
        Standard deviation σC/L of the noise in one entry of the optimizer's gradient.
    epsilon_after : dict of int to float
        Upper bounds of ε after some numbers of steps, and after the last one, with a released score.
    samples, sample_rate
        Size of the training set, and the inclusion probability of a sample.
    trainable : dict of str to tuple of int
        Shapes of the trainable parameters.
    layers : list of dict
        Norm method of each layer.
    norms : str
        The same in a sentence, which mentions if all norms are exact although an estimate was requested.
    epsilon_of_exact_norms : float or None
        The ε of all steps with the same noise and exact norms; None with ``privacy.clip_only``.
    neighbours : str or None
        Neighbouring relation of every ε: "zero-out"; None with ``privacy.clip_only``.
    """

    mechanism: dict[str, Any]
    noise_std: float
    epsilon_after: dict[int, float]
    samples: int
    sample_rate: float
    trainable: dict[str, tuple[int, ...]]
    layers: list[dict[str, Any]]
    norms: str
    epsilon_of_exact_norms: float | None
    neighbours: str | None


def dry_run(
    recipe: Recipe,
    *,
    out: str | os.PathLike[str] | None = None,
    resume: bool = False,
    noise_seed: int | None = None,
    device: str | None = None,
) -> DryRun:
    """Set up a run on the CPU and preview it.

    Parameters
    ----------
    recipe : Recipe
        Recipe to preview.
    out, resume, noise_seed, device
        Options of :func:`dprmt.training.harness.train`, which are checked in the same way. A folder is created and
        removed again; without ``out`` no folder is used.

    Returns
    -------
    DryRun
        The output of ``dprmt train --dry-run``.

    Raises
    ------
    ParameterError
        If the recipe or an option cannot be used, as for :func:`dprmt.training.harness.train`.

    Formal guarantees
    -----------------
    Nothing is trained and no sample's gradient is computed. The result follows from recipe, model, number of training
    items and names of the labels, which are public. With ``norms.kind = "auto"`` it also depends on the time of steps
    on synthetic texts. It costs no privacy.

    Examples
    --------
    >>> from dprmt.training.recipes import load_recipe
    >>> few = {"data.limit": 30, "training.batch_size": 10, "training.steps": 2, "model.tokenizer": "bytes"}
    >>> recipe = load_recipe("qwen3-tiny-docstrings").with_changes(few)
    >>> planned = dry_run(recipe)
    >>> planned.samples, round(planned.sample_rate, 3), round(planned.noise_std, 3)
    (30, 0.333, 0.072)
    >>> {steps: round(epsilon, 1) for steps, epsilon in planned.epsilon_after.items()}
    {1: 5.0, 2: 6.7}
    """
    place, former = usable_device(device), None
    fresh_randomness(noise_seed, 1, recipe.privacy.secure)
    if out is not None:
        RunFolder(out, resume=resume, config=recipe.to_toml()).close()
        former = read_run(Path(out)).get("norms")
    elif resume:
        raise ParameterError("resume", True, "False without a folder")
    loaded, data = load(recipe)
    recipe = with_norms(recipe, loaded, data, place, former=former)
    prepared = prepare_recipe(recipe, loaded, data, torch.device("cpu"), fresh_randomness(None, 1))
    steps = recipe.training.steps
    marks = sorted({max(1, steps * part // _CURVE) for part in range(1, _CURVE + 1)} | {1})
    mechanism = prepared.mechanism
    spent, releases = SpentEpsilon(mechanism, recipe.privacy.delta), wanted_releases(recipe.settings)
    epsilon_after = {mark: spent.after(mark, exactly=True) for mark in marks}
    if releases:
        epsilon_after[steps] = SpentEpsilon(mechanism, recipe.privacy.delta, releases=releases).after(steps)
    return DryRun(
        mechanism=describe_mechanism(mechanism),
        noise_std=mechanism.noise_multiplier * recipe.privacy.clipping_norm / recipe.training.batch_size,
        epsilon_after=epsilon_after,
        samples=prepared.task.size,
        sample_rate=mechanism.sample_rate,
        trainable={name: tuple(value.shape) for name, value in prepared.parameters.items()},
        layers=[layer_norms(layer) for layer in prepared.record.layers],
        norms=norms_sentence(recipe.privacy.norms.kind, prepared.record, prepared.units),
        epsilon_of_exact_norms=epsilon_of_exact_norms(mechanism, steps, recipe.privacy.delta, steps, releases),
        neighbours=named_relation(mechanism),
    )
