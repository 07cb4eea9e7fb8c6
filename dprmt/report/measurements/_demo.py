"""The experiment of `dprmt report`: the first steps of a recipe."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

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
