"""Measured cost of a recipe's steps by every norm method, and the method that ``norms.kind = "auto"`` takes."""

from __future__ import annotations

from dataclasses import replace

import torch

from dprmt._validation import ParameterError
from dprmt.training.clipping import StepCosts, plan_private
from dprmt.training.data import TaskData, per_sample_losses
from dprmt.training.harness._prepare import find_noise_multiplier, sampling
from dprmt.training.harness._recipe_task import load, made_up_batch, recipe_task, usable_device
from dprmt.training.models import LoadedModel
from dprmt.training.private_run._ledger import whole_epochs
from dprmt.training.recipes import OPTIMIZERS, NormsRecipe, Recipe

_UNNOISED = 1.0  # noise multiplier whose ε is compared where a recipe adds no noise


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
    place = usable_device(device)
    if OPTIMIZERS[recipe.optimizer.name].in_subspaces:
        allowed = "one that moves whole weights: steps in subspaces are not measured"
        raise ParameterError("optimizer.name", recipe.optimizer.name, allowed)
    if recipe.data.unit is not None:
        fix = "plan the recipe without data.unit"
        raise ParameterError("data.unit", recipe.data.unit, "left out: steps of units are not measured", fix)
    return _measured(recipe, *load(recipe), place)


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
    measures = processes == 1 and recipe.data.unit is None and not OPTIMIZERS[recipe.optimizer.name].in_subspaces
    kind = former or (_measured(recipe, loaded, data, device).recommended.way if measures else "ghost")
    return replace(recipe, privacy=replace(recipe.privacy, norms=NormsRecipe(kind)))


def _measured(recipe: Recipe, loaded: LoadedModel, data: TaskData, device: torch.device) -> StepCosts:
    model, privacy, settings = loaded.model.to(device).train(), recipe.privacy, recipe.settings
    plan = plan_private(
        model,
        norms=privacy.norms,
        clipping_norm=privacy.clipping_norm,
        expected_batch_size=recipe.training.batch_size,
        tokens=recipe.data.max_tokens,
    )
    drawn = sampling(settings, recipe_task(recipe, loaded, data, device).size)
    samples = min(recipe.training.micro_batch_size, recipe.training.batch_size)
    batch = made_up_batch(loaded, data, samples, recipe.data.max_tokens)
    batch = {name: value.to(device) for name, value in batch.items()}
    return plan.costs(
        lambda: per_sample_losses(model, batch),
        noise_multiplier=_UNNOISED if privacy.clip_only else find_noise_multiplier(settings, plan.record, drawn),
        sampling=drawn,
        steps=whole_epochs(recipe.training.steps, drawn.steps_per_epoch),
        delta=privacy.delta,
    )
