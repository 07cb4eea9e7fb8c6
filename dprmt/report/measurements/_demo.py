"""The experiment of `dprmt report`: the first steps of a recipe."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from dprmt.report.measurements._run import Experiment
from dprmt.training.data import load_data, per_sample_losses
from dprmt.training.harness import ItemTask, run_in_memory
from dprmt.training.models import load_model, load_tokenizer
from dprmt.training.recipes import Recipe, Settings


@dataclass(frozen=True)
class RecipeExperiment:
    """A recipe as an experiment.

    Attributes
    ----------
    experiment : Experiment
        Model and data.
    settings : Settings
        Settings of the recipe, with the noise multiplier of its whole length, and the denoiser of the report.
    steps : int
        Number of the recipe's steps that are run.
    sample_rate : float
        Inclusion probability q of an item.
    target_epsilon : float or None
        The ε of the whole recipe; None if the recipe fixes the noise.
    """

    experiment: Experiment
    settings: Settings
    steps: int
    sample_rate: float
    target_epsilon: float | None


def recipe_experiment(
    recipe: Recipe, *, steps: int = 12, advance: Callable[[], None] = lambda: None
) -> RecipeExperiment:
    """Load model and data of a recipe, and calibrate its noise.

    Parameters
    ----------
    recipe : Recipe
        With any optimizer; of DP-GRAPE's weights the gradients in their subspaces are looked at.
    steps : int
        How many of its steps to run; no more than it has.
    advance : callable
        Called after each of the two parts of the work.

    Returns
    -------
    RecipeExperiment
        Ready to run.

    Raises
    ------
    ParameterError
        If something cannot be loaded.

    Examples
    --------
    >>> from dprmt.training.recipes import load_recipe
    >>> recipe = load_recipe("qwen3-tiny-docstrings").with_changes({"optimizer.name": "grape"})
    >>> recipe_experiment(recipe, steps=2).settings.optimizer.name
    'grape'
    """
    tokenizer = load_tokenizer(recipe.model)
    data = load_data(recipe.data, tokenizer, recipe.model.task)
    labels = None if data.labels is None else len(data.labels)
    loaded = load_model(recipe.model, labels=labels, seed=recipe.training.seed, tokenizer=tokenizer)
    advance()
    task = ItemTask(data.train, data.collate, per_sample_losses, _length)
    with run_in_memory(loaded.model, task, recipe.settings) as run:  # not a step of it: for its noise multiplier
        mechanism = run.prepared.mechanism
    advance()
    changes = {"privacy.target_epsilon": None, "privacy.noise_multiplier": mechanism.noise_multiplier}
    settings = recipe.settings.with_changes({**changes, "denoising": {"method": "paper"}, "evaluation.every": None})
    return RecipeExperiment(
        Experiment(recipe.name, loaded.model, task),
        settings,
        min(steps, recipe.training.steps),
        mechanism.sample_rate,
        recipe.privacy.target_epsilon,
    )


def _length(item: Any) -> int:
    return len(item["input_ids"])


_CLIP_ONLY: dict[str, Any] = {
    "privacy.noise_multiplier": None,
    "privacy.clip_only": True,
    "denoising": {"method": "none"},
    "evaluation.every": None,
}
NOT_CLIPPED = 1e9
"""Clipping norm at which nothing is clipped."""


def losses_without_noise(
    setting: RecipeExperiment,
    start: Mapping[str, torch.Tensor],
    *,
    seed: int = 0,
    advance: Callable[[], None] = lambda: None,
) -> dict[str, list[float]]:
    """Measure the mean loss of each step's batch in runs without noise, for comparison with `private_gradients`.

    The model is trained in place, from ``start`` each time, on the batches of the run with noise.

    Parameters
    ----------
    setting : RecipeExperiment
        Recipe and number of steps.
    start : mapping of str to Tensor
        Initial values of the trained parameters.
    seed : int
        Seed of the batches.
    advance : callable
        Called after each step.

    Returns
    -------
    dict of list
        "clipping alone" and "neither", NaN where a batch was empty. **Private.**

    Raises
    ------
    ParameterError
        If the settings do not fit.

    Formal guarantees
    -----------------
    None, because no noise is added.

    References
    ----------
    Figures 1 and 5 of arXiv:2510.01137v3.

    Examples
    --------
    >>> from dprmt.report.measurements import recipe_experiment
    >>> from dprmt.training.recipes import load_recipe
    >>> changes = {"data.limit": 40, "training.batch_size": 8}
    >>> setting = recipe_experiment(load_recipe("roberta-tiny-docstrings").with_changes(changes), steps=2)
    >>> start = {name: p.detach().clone() for name, p in setting.experiment.model.named_parameters()}
    >>> losses = losses_without_noise(setting, start)
    >>> [(name, len(values)) for name, values in losses.items()]
    [('clipping alone', 2), ('neither', 2)]
    """
    variants = {"clipping alone": _CLIP_ONLY, "neither": {**_CLIP_ONLY, "privacy.clipping_norm": NOT_CLIPPED}}
    return {name: _losses(setting, start, changes, seed, advance) for name, changes in variants.items()}


def _losses(
    setting: RecipeExperiment,
    start: Mapping[str, torch.Tensor],
    changes: Mapping[str, Any],
    seed: int,
    advance: Callable[[], None],
) -> list[float]:
    experiment, losses = setting.experiment, []
    experiment.model.load_state_dict(dict(start), strict=False)
    with run_in_memory(
        experiment.model, experiment.task, setting.settings.with_changes(changes), noise_seed=seed
    ) as run:
        for record in itertools.islice(run.steps(), setting.steps):
            losses.append(math.nan if record.loss is None else record.loss)
            advance()
    return losses
