"""What a recipe's steps cost by every way of taking norms, and the one that ``norms.kind = "auto"`` takes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from dprmt._validation import ParameterError
from dprmt.training.clipping import ClippingPlan, Rates, StepCosts, measured_rates
from dprmt.training.data import TaskData, per_sample_losses
from dprmt.training.harness._prepare import find_noise_multiplier, sampling
from dprmt.training.harness._recipe_task import load, made_up_batch, recipe_task
from dprmt.training.models import LoadedModel
from dprmt.training.private_run._ledger import whole_epochs
from dprmt.training.recipes import NormsRecipe, Recipe

_UNNOISED = 1.0  # an ε to compare where a recipe adds no noise


def recipe_costs(recipe: Recipe, *, measure: bool = False) -> StepCosts:
    """Time, memory and ε of a recipe's steps by every way of taking norms, on made-up texts of ``max_tokens`` tokens.

    Parameters
    ----------
    recipe : Recipe
        What would be trained. Its noise is taken: σ as it stands, or calibrated for its own norms (exact ones if they
        are ``"auto"``), and every way's ε is with this σ.
    measure : bool
        Whether to take this machine's rates, measured now, in place of those of one core of a CPU.

    Returns
    -------
    StepCosts
        Of a step of one micro-batch.

    Raises
    ------
    ParameterError
        If the recipe cannot be used, has units of several rows or trains in subspaces.

    Formal guarantees
    -----------------
    Reads no text of the data: only how many there are, and the names of labels, which are taken to be public.

    Examples
    --------
    >>> from dprmt.training.recipes import load_recipe
    >>> few = {"data.limit": 30, "training.batch_size": 10, "training.steps": 2, "model.tokenizer": "bytes"}
    >>> costs = recipe_costs(load_recipe("qwen3-tiny-docstrings").with_changes(few))
    >>> [way.way for way in costs.ways]
    ['formed', 'exact', 'ghost', 'hutchinson', 'hutch++']
    """
    return _counted(recipe, *load(recipe), measured_rates() if measure else None)


def with_norms(recipe: Recipe, loaded: LoadedModel, data: TaskData) -> Recipe:
    """The recipe with what ``"auto"`` stands for: by shapes and public numbers, the same on every machine."""
    if recipe.privacy.norms.kind != "auto":
        return recipe
    plan = _plan(recipe, loaded, data)
    counts = plan.regime == "rows" and recipe.optimizer.name != "grape"
    kind = _counted(recipe, loaded, data, None).recommended.way if counts else "ghost"
    return replace(recipe, privacy=replace(recipe.privacy, norms=NormsRecipe(kind)))


def _plan(recipe: Recipe, loaded: LoadedModel, data: TaskData) -> ClippingPlan:
    privacy = recipe.privacy
    options: dict[str, Any] = {"clipping_norm": privacy.clipping_norm, "tokens": recipe.data.max_tokens}
    task = recipe_task(recipe, loaded, data, torch.device("cpu"))
    return task.clipping_plan(  # type: ignore[return-value]  # a recipe's own tasks make these
        loaded.model, norms=privacy.norms, expected_batch_size=recipe.training.batch_size, **options
    )


def _counted(recipe: Recipe, loaded: LoadedModel, data: TaskData, rates: Rates | None) -> StepCosts:
    if recipe.optimizer.name == "grape":
        raise ParameterError(
            "optimizer.name", "grape", "one that moves whole weights: costs of projected ones are not counted"
        )
    plan, model = _plan(recipe, loaded, data), loaded.model.train()
    size = recipe_task(recipe, loaded, data, torch.device("cpu")).size
    drawn, settings = sampling(recipe.settings, size), recipe.settings
    sigma = _UNNOISED if recipe.privacy.clip_only else find_noise_multiplier(settings, plan.record, drawn)
    samples = min(recipe.training.micro_batch_size, recipe.training.batch_size)
    device = next(model.parameters()).device
    batch = made_up_batch(loaded, data, samples, recipe.data.max_tokens)
    batch = {name: value.to(device) for name, value in batch.items()}
    steps = whole_epochs(recipe.training.steps, drawn.steps_per_epoch)
    return plan.costs(
        lambda: per_sample_losses(model, batch),
        noise_multiplier=sigma,
        sampling=drawn,
        steps=steps,
        delta=recipe.privacy.delta,
        rates=rates,
    )
