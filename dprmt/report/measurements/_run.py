"""A recipe's first steps as an experiment, and a run that hands out the clean and the noisy gradient of every step."""

from __future__ import annotations

import itertools
import math
import warnings
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from dprmt.training.data import load_data, per_sample_losses
from dprmt.training.denoising import Denoising, DenoisingEvaluation, DenoisingStep, PrivateDataWarning
from dprmt.training.harness import ItemTask, Observer, StepRecord, run_in_memory
from dprmt.training.models import load_model, load_tokenizer
from dprmt.training.recipes import Recipe, Settings


@dataclass(frozen=True)
class Experiment:
    """A model and data to train it on.

    Attributes
    ----------
    name : str
        For the report.
    model : Module
        In training mode, without dropout; what requires a gradient is trained.
    task : ItemTask
        The data.
    """

    name: str
    model: torch.nn.Module
    task: ItemTask


@dataclass(frozen=True)
class GradientStep:
    """The gradient of one step, by layer, in units of a mean over the expected batch.

    Attributes
    ----------
    number : int
        Number of the step, from 0.
    sigma : float
        Standard deviation of the noise in one entry, σ_DP·C/L.
    samples : int
        Size of the drawn batch. **Private.**
    loss : float
        Mean loss of the batch, NaN without samples. **Private.**
    clean : mapping of str to Tensor
        Mean of the clipped gradients. **Private.**
    noisy : mapping of str to Tensor
        Released gradient.
    """

    number: int
    sigma: float
    samples: int
    loss: float
    clean: Mapping[str, torch.Tensor]
    noisy: Mapping[str, torch.Tensor]


def private_gradients(
    experiment: Experiment, settings: Settings, *, steps: int | None = None, seed: int = 0
) -> Iterator[GradientStep]:
    """Train as the harness does, in memory, and yield the gradients of every step.

    The model is trained in place. The gradients are copies.

    Parameters
    ----------
    experiment : Experiment
        Model and data to train.
    settings : Settings
        Of the run. For weights that DP-GRAPE trains and a denoiser sees, gradients are in their subspaces.
    steps : int, optional
        Number of steps to run; by default all of the settings'.
    seed : int
        Seed of batches and noise. A known seed, as here, makes a run repeatable and **not private**.

    Yields
    ------
    GradientStep
        Each gradient comes after the optimizer has moved.

    Raises
    ------
    ParameterError
        If the expected batch is larger than the data set.

    Formal guarantees
    -----------------
    None: it reads clean gradients, and its noise comes from a known seed. Use it with public data.

    Examples
    --------
    >>> model = torch.nn.Linear(4, 3)
    >>> def losses(model, labels):
    ...     return torch.nn.functional.cross_entropy(model(torch.eye(4)[labels]), labels, reduction="none")
    >>> experiment = Experiment("toy", model, ItemTask([0, 1, 2] * 10, torch.tensor, losses))
    >>> settings = Settings(
    ...     privacy={"noise_multiplier": 0.5, "delta": 1e-5, "clipping_norm": 2.0},
    ...     optimizer={"name": "adamw", "learning_rate": 1e-3},
    ...     training={"batch_size": 20, "steps": 3},
    ...     denoising={"method": "paper"},
    ... )
    >>> [(step.number, step.sigma) for step in private_gradients(experiment, settings)]
    [(0, 0.05), (1, 0.05), (2, 0.05)]
    """
    look = CleanGradients()
    with run_in_memory(experiment.model, experiment.task, settings, noise_seed=seed, observers=[look]) as run:
        for record in itertools.islice(run.steps(), steps):
            yield GradientStep(record.step - 1, look.sigma, record.batch_size, _loss(record), look.clean, look.noisy)


class CleanGradients(Observer):
    """Copies of the gradients as the denoiser gets them, or the optimizer if there is none: **private**.

    Attributes
    ----------
    sigma : float
        Standard deviation of the noise in one entry.
    clean, noisy : dict of Tensor
        Gradients of the last step, by layer.
    """

    def __init__(self) -> None:
        self.sigma = math.nan
        self.clean: dict[str, torch.Tensor] = {}
        self.noisy: dict[str, torch.Tensor] = {}

    def start(self, run: Any) -> None:
        """Attach between noise and optimizer, after telemetry."""
        step = run.private.denoising
        self._own = step is None
        self._step = step or DenoisingStep.attach(run.noised, run.prepared.parameters, Denoising(method="none"))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", PrivateDataWarning)  # the docstring documents it
            self._evaluation = DenoisingEvaluation(self._step)
        self._step.observers[self] = self._take

    def end(self, run: Any) -> None:
        """Detach from the optimizer."""
        self._step.observers.pop(self, None)
        if self._own:
            self._step.detach()

    def _take(self, noisy: Mapping[str, torch.Tensor], _: object, sigma: float) -> None:
        clean = self._evaluation.private_clean_gradients()
        self.sigma, self.noisy, self.clean = sigma, copies(noisy), copies(clean)


def copies(tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Copy tensors by name, without their graphs."""
    return {name: tensor.detach().clone() for name, tensor in tensors.items()}


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


def recipe_experiment(recipe: Recipe, *, steps: int = 12) -> RecipeExperiment:
    """Load model and data of a recipe, and calibrate its noise.

    Parameters
    ----------
    recipe : Recipe
        With any optimizer; of DP-GRAPE's weights the gradients in their subspaces are looked at.
    steps : int
        How many of its steps to run; no more than it has.

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
    task = ItemTask(data.train, data.collate, per_sample_losses, _length)
    with run_in_memory(loaded.model, task, recipe.settings) as run:  # not a step of it: for its noise multiplier
        mechanism = run.prepared.mechanism
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
    experiment, losses = setting.experiment, {}
    for name, changes in variants.items():
        experiment.model.load_state_dict(dict(start), strict=False)
        settings = setting.settings.with_changes(changes)
        with run_in_memory(experiment.model, experiment.task, settings, noise_seed=seed) as run:
            losses[name] = [_loss(record) for record in itertools.islice(run.steps(), setting.steps)]
    return losses


class _SignalShares(CleanGradients):
    """Reads the shares of signal over telemetry's window from clean gradients."""

    def start(self, run: Any) -> None:
        super().start(run)
        self._energies: deque[dict[str, float]] = deque(maxlen=run.prepared.settings.telemetry.window)

    def _take(self, noisy: Mapping[str, torch.Tensor], denoised: object, sigma: float) -> None:
        super()._take(noisy, denoised, sigma)
        self._energies.append({name: float(g.double().square().sum()) / sigma**2 for name, g in self.clean.items()})

    def shares(self) -> dict[str, float]:
        """Return ``‖g‖²/(‖g‖² + ds²)`` over the window, by layer."""
        totals = {name: math.fsum(step[name] for step in self._energies) for name in self.clean}
        return {name: E / (E + len(self._energies) * self.clean[name].numel()) for name, E in totals.items()}


def telemetry_readings(
    setting: RecipeExperiment,
    start: Mapping[str, torch.Tensor],
    *,
    steps: int,
    seed: int = 0,
) -> tuple[list[dict[str, Any]], dict[str, float]]:
    """Read the telemetry of a recipe's first steps, without a denoiser, and the last true values.

    The model is trained in place, from ``start``. DP-GRAPE's gradients are not whole, so they have no true values.

    Parameters
    ----------
    setting : RecipeExperiment
        Recipe to train.
    start : mapping of str to Tensor
        Initial values of the trained parameters.
    steps : int
        Number of steps, at most the recipe's.
    seed : int
        Seed of noise and batches.

    Returns
    -------
    lines : list of dict
        ``step`` and ``telemetry`` of every step.
    truth : dict of str to float
        Shares of signal by layer at the last step, from clean gradients. **Private.**

    Raises
    ------
    ParameterError
        If the settings do not fit.

    Formal guarantees
    -----------------
    None: it reads clean gradients, and its noise comes from a known seed.

    Examples
    --------
    >>> from dprmt.report.measurements import recipe_experiment
    >>> from dprmt.training.recipes import load_recipe
    >>> changes = {"data.limit": 40, "training.batch_size": 8}
    >>> setting = recipe_experiment(load_recipe("roberta-tiny-docstrings").with_changes(changes), steps=2)
    >>> start = {name: p.detach().clone() for name, p in setting.experiment.model.named_parameters()}
    >>> lines, truth = telemetry_readings(setting, start, steps=2)
    >>> len(lines), 0 < max(truth.values()) < 1
    (2, True)
    """
    telemetry = {"on": True, "every": 1, "window": max(2, steps)}
    settings = setting.settings.with_changes({"denoising": {"method": "none"}, "telemetry": telemetry})
    experiment = setting.experiment
    experiment.model.load_state_dict(dict(start), strict=False)
    looks = [] if settings.optimizer.name == "grape" else [_SignalShares()]
    with run_in_memory(experiment.model, experiment.task, settings, noise_seed=seed, observers=looks) as run:
        lines = [{"step": r.step, "telemetry": r.telemetry} for r in itertools.islice(run.steps(), steps)]
        return lines, looks[0].shares() if looks else {}


def _loss(record: StepRecord) -> float:
    return math.nan if record.loss is None else record.loss
