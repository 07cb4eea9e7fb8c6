"""What a recipe would do and cost, before it runs: shapes, noise and ε, and measured steps of every norm method.

Nothing private is read.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from dprmt._validation import ParameterError
from dprmt.training.clipping import StepCosts
from dprmt.training.data import TaskData
from dprmt.training.harness._prepare import clipping_plan, one_step, sampling
from dprmt.training.harness._privacy_cost import norms_sentence, wanted_releases
from dprmt.training.harness._recipe_task import RecipeTask, load, made_up_losses, prepare_recipe, usable_device
from dprmt.training.harness._run_folder import RunFolder, read_run
from dprmt.training.models import LoadedModel
from dprmt.training.norms import ProbeGenerator
from dprmt.training.private_run._ledger import SpentEpsilon, describe_mechanism, named_relation, whole_epochs
from dprmt.training.private_run._randomness import fresh_randomness
from dprmt.training.recipes import NormsRecipe, Recipe


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
    marks = sorted({1, *(max(1, steps * part // 5) for part in range(1, 6))})
    mechanism = prepared.mechanism
    delta, releases = recipe.privacy.delta, wanted_releases(recipe.settings)
    spent = {mark: SpentEpsilon(mechanism, delta, releases=releases if mark == steps else ()) for mark in marks}
    return DryRun(
        mechanism=describe_mechanism(mechanism),
        noise_std=mechanism.noise_multiplier * recipe.privacy.clipping_norm / recipe.training.batch_size,
        epsilon_after={mark: bound.after(mark, exactly=True) for mark, bound in spent.items()},
        samples=prepared.task.size,
        sample_rate=mechanism.sample_rate,
        trainable={name: tuple(value.shape) for name, value in prepared.parameters.items()},
        layers=[
            {"layer": layer.layer, **({"kind": "unknown"} if layer.norms is None else layer.norms.as_dict())}
            for layer in prepared.plan.record.layers
        ],
        norms=norms_sentence(recipe.privacy.norms.kind, prepared.plan),
        neighbours=named_relation(mechanism),
    )


def recipe_costs(recipe: Recipe, *, device: str | torch.device | None = None) -> StepCosts:
    """Measure time, memory and ε of a recipe's steps by every norm method.

    A few steps of each method run on one micro-batch of synthetic texts of ``max_tokens`` tokens. Nothing is trained
    and nothing counts towards ε.

    Parameters
    ----------
    recipe : Recipe
        Recipe to measure. Every ε uses its σ, or the σ calibrated for its norm method (for exact norms if that is
        ``"auto"``).
    device : str, optional
        Device to measure on; by default a GPU if there is one.

    Returns
    -------
    StepCosts
        Costs of a step of one micro-batch.

    Raises
    ------
    ParameterError
        If the recipe or the device cannot be used, or the recipe has units of several rows or trains in subspaces.

    Formal guarantees
    -----------------
    No text of the data is read: only their number, and the names of labels, which are public.

    Examples
    --------
    >>> from dprmt.training.recipes import load_recipe
    >>> few = {"data.limit": 30, "training.batch_size": 10, "training.steps": 2, "model.tokenizer": "bytes"}
    >>> few |= {"data.max_tokens": 16, "training.micro_batch_size": 2}
    >>> costs = recipe_costs(load_recipe("qwen3-tiny-docstrings").with_changes(few), device="cpu")
    >>> [way.way for way in costs.ways]
    ['exact', 'ghost', 'hutchinson', 'hutch++']
    """
    return _measured(recipe, *load(recipe), usable_device(device))


def with_norms(
    recipe: Recipe,
    loaded: LoadedModel,
    data: TaskData,
    device: torch.device,
    *,
    processes: int = 1,
    former: str | None = None,
) -> Recipe:
    """Return the recipe with the method that ``"auto"`` stands for: the ``former`` one of a resumed run, or the
    recommended.

    Where steps are not measured (units, subspaces, several processes, which could disagree) it is ``"ghost"``.
    """
    if recipe.privacy.norms.kind != "auto":
        return recipe
    measures = processes == 1 and recipe.data.unit is None and recipe.optimizer.name != "grape"
    kind = former or (_measured(recipe, loaded, data, device).recommended.way if measures else "ghost")
    return replace(recipe, privacy=replace(recipe.privacy, norms=NormsRecipe(kind)))


def _measured(recipe: Recipe, loaded: LoadedModel, data: TaskData, device: torch.device) -> StepCosts:
    model, settings = loaded.model.to(device).train(), recipe.settings
    task = RecipeTask(recipe, loaded, data, device)
    plan = clipping_plan(model, task, settings, ProbeGenerator(), 1, recipe.data.max_tokens)
    drawn = sampling(settings, task.size)
    samples = min(recipe.training.micro_batch_size, recipe.training.batch_size)
    return plan.costs(
        lambda: made_up_losses(loaded, data, samples, recipe.data.max_tokens),
        noise_multiplier=one_step(settings, plan.record, drawn).noise_multiplier or 1.0,
        sampling=drawn,
        steps=whole_epochs(recipe.training.steps, drawn.steps_per_epoch),
        delta=recipe.privacy.delta,
    )
