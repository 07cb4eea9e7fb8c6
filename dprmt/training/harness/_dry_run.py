"""What a run would do: shapes, trainable parameters, noise, ε per step. Nothing private is touched."""

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
    """A run that was not started.

    Attributes
    ----------
    mechanism : dict
        One step, as the accountant is told.
    noise_std : float
        σC/L, of one entry of the gradient that the optimizer gets.
    epsilon_after : dict of int to float
        Upper bounds of ε after some numbers of steps, the last one included, which a released score comes with.
    samples, sample_rate
        Size of the training set, and the probability of a sample to be in a batch.
    trainable : dict of str to tuple of int
        Shapes of the trainable parameters.
    layers : list of dict
        How each layer's norm is obtained.
    norms : str
        The same in a sentence, which says so where all are exact though an estimate was asked for.
    epsilon_of_exact_norms : float or None
        What all steps would cost with the same noise and exact norms; None with ``privacy.clip_only``.
    neighbours : str or None
        Against which every ε is: "zero-out"; None with ``privacy.clip_only``.
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
    """Set a run up, on the CPU, and say what it would do.

    Parameters
    ----------
    recipe : Recipe
        What would be trained.
    out, resume, noise_seed, device
        Options of :func:`dprmt.training.harness.train`, which are checked as it does. A folder is made, and taken away
        again; without ``out`` none is looked at.

    Returns
    -------
    DryRun
        What ``dprmt train --dry-run`` prints.

    Raises
    ------
    ParameterError
        If the recipe or an option cannot be used, as :func:`dprmt.training.harness.train` does.

    Formal guarantees
    -----------------
    Nothing is trained and no gradient of a sample computed: what comes out follows from the recipe, the model, and the
    number of training items and the names of the labels, which are taken to be public; of ``norms.kind = "auto"`` also
    from the time of steps on synthetic texts, on the device. It costs no privacy.

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
