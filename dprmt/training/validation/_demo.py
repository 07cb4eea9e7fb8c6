"""The experiment of `dprmt report`: the first steps of a recipe."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from dprmt._validation import ParameterError
from dprmt.accounting import calibrate_noise_multiplier
from dprmt.training.data import load_data, per_sample_losses
from dprmt.training.denoising import Denoising
from dprmt.training.models import load_model, load_tokenizer
from dprmt.training.recipes import Recipe
from dprmt.training.validation._run import Experiment, RunOptions


@dataclass(frozen=True)
class RecipeExperiment:
    """A recipe as an experiment.

    Attributes
    ----------
    experiment : Experiment
        Model and data.
    options : RunOptions
        How to train.
    sample_rate : float
        q, expected batch over number of items.
    target_epsilon, delta : float
        What the whole recipe spends; ``target_epsilon`` is None if the recipe fixes the noise.
    recipe_steps : int
        Of the whole recipe; the noise is that of the whole.
    """

    experiment: Experiment
    options: RunOptions
    sample_rate: float
    target_epsilon: float | None
    delta: float
    recipe_steps: int


def recipe_experiment(
    recipe: Recipe, *, steps: int = 12, base_folder: Any = None, advance: Callable[[], None] = lambda: None
) -> RecipeExperiment:
    """Load model and data of a classification recipe, and calibrate its noise.

    Parameters
    ----------
    recipe : Recipe
        With clipping "exact" or "ghost" and an Adam-type optimizer.
    steps : int
        How many of its steps to run; no more than it has.
    base_folder : Path, optional
        What relative file names of the recipe are relative to.
    advance : callable
        Called after each of the two parts of the work.

    Returns
    -------
    RecipeExperiment
        Ready to run.

    Raises
    ------
    ParameterError
        If something cannot be loaded, or the recipe is of another kind.

    Examples
    --------
    >>> from dprmt.training.recipes import load_recipe
    >>> recipe_experiment(load_recipe("qwen3-0.6b-e2e"))
    Traceback (most recent call last):
    ...
    dprmt._validation.ParameterError: model.task must be 'classification' for the validation report, got 'generation'
    """
    if recipe.model.task != "classification":
        raise ParameterError("model.task", recipe.model.task, "'classification' for the validation report")
    tokenizer = load_tokenizer(recipe.model)
    data = load_data(recipe.data, tokenizer, recipe.model.task, base_folder=base_folder)
    assert data.labels is not None  # it classifies
    loaded = load_model(recipe.model, labels=len(data.labels), tokenizer=tokenizer)
    advance()
    privacy, training, items = recipe.privacy, recipe.training, data.train
    rate = training.batch_size / len(items)
    σ = privacy.noise_multiplier
    if σ is None:
        assert privacy.target_epsilon is not None  # a recipe has one of the two
        σ = calibrate_noise_multiplier(privacy.target_epsilon, privacy.delta, rate, training.steps)
    advance()
    experiment = Experiment(
        name=recipe.name,
        model=loaded.model,
        items=items,
        collate=data.collate,
        losses=per_sample_losses,
        length=_length,
    )
    options = RunOptions(
        noise_multiplier=σ,
        clipping_norm=privacy.clipping_norm,
        clipping=privacy.clipping,  # type: ignore[arg-type]  # checked there
        expected_batch=training.batch_size,
        steps=min(steps, training.steps),
        learning_rate=recipe.optimizer.learning_rate,
        micro_batch=training.micro_batch_size,
        denoising=Denoising("paper"),
    )
    return RecipeExperiment(experiment, options, rate, privacy.target_epsilon, privacy.delta, training.steps)


def _length(item: Any) -> int:
    return len(item["input_ids"])
