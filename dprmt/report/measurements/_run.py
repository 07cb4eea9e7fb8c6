"""A recipe as an experiment, and a run that yields the clean and the noisy gradient of every step."""

from __future__ import annotations

import itertools
import math
import warnings
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from dprmt.training.data import load_data, per_sample_losses
from dprmt.training.denoising import Denoising, DenoisingEvaluation, DenoisingStep, PrivateDataWarning
from dprmt.training.harness import ItemTask, Observer, run_in_memory
from dprmt.training.models import load_model, load_tokenizer
from dprmt.training.recipes import Recipe, Settings


@dataclass(frozen=True)
class Experiment:
    """A model, data to train it on, and how.

    Attributes
    ----------
    name : str
        For the report.
    model : Module
        In training mode, without dropout; what requires a gradient is trained.
    task : ItemTask
        The data.
    settings : Settings
        Settings of the run.
    """

    name: str
    model: torch.nn.Module
    task: ItemTask
    settings: Settings


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
    telemetry : mapping or None
        What the run's telemetry read after the step.
    """

    number: int
    sigma: float
    samples: int
    loss: float
    clean: Mapping[str, torch.Tensor]
    noisy: Mapping[str, torch.Tensor]
    telemetry: Mapping[str, Any] | None = None


def private_gradients(
    experiment: Experiment, *, steps: int | None = None, seed: int = 0, changes: Mapping[str, Any] | None = None
) -> Iterator[GradientStep]:
    """Train as the harness does, in memory, and yield the gradients of every step.

    The model is trained in place. The gradients are copies.

    Parameters
    ----------
    experiment : Experiment
        Model, data and settings. For weights that DP-GRAPE trains and a denoiser sees, gradients are in their
        subspaces.
    steps : int, optional
        Number of steps to run; by default all of the settings'.
    seed : int
        Seed of batches and noise. A known seed, as here, makes a run repeatable and **not private**.
    changes : mapping, optional
        Changed values of the settings, by dotted name.

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
    >>> settings = Settings(
    ...     privacy={"noise_multiplier": 0.5, "delta": 1e-5, "clipping_norm": 2.0},
    ...     optimizer={"name": "adamw", "learning_rate": 1e-3},
    ...     training={"batch_size": 20, "steps": 3},
    ...     denoising={"method": "paper"},
    ... )
    >>> experiment = Experiment("toy", model, ItemTask([0, 1, 2] * 10, torch.tensor, losses), settings)
    >>> [(step.number, step.sigma) for step in private_gradients(experiment)]
    [(0, 0.05), (1, 0.05), (2, 0.05)]
    """
    settings, look = experiment.settings.with_changes(changes or {}), _CleanGradients()
    with run_in_memory(experiment.model, experiment.task, settings, noise_seed=seed, observers=[look]) as run:
        for record in itertools.islice(run.steps(), steps):
            loss, size = record.private["loss"], record.private["batch_size"]
            loss = math.nan if loss is None else loss
            yield GradientStep(record.step - 1, look.sigma, size, loss, look.clean, look.noisy, record.telemetry)


class _CleanGradients(Observer):
    """Copies the last step's gradients as the denoiser gets them, or the optimizer if there is none: **private**."""

    def start(self, run: Any) -> None:
        """Attach between noise and optimizer, after telemetry."""
        step = run.private.denoising
        self._own = step is None
        self._step = step or DenoisingStep(run.noised, run.parameters, Denoising(method="none"))
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
        self.sigma, self.noisy, self.clean = sigma, _copies(noisy), _copies(clean)


def _copies(tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {name: tensor.detach().clone() for name, tensor in tensors.items()}


def recipe_experiment(recipe: Recipe) -> Experiment:
    """Load model and data of a recipe, and calibrate its noise.

    Parameters
    ----------
    recipe : Recipe
        With any optimizer; of DP-GRAPE's weights the gradients in their subspaces are looked at.

    Returns
    -------
    Experiment
        With the noise multiplier of the recipe's whole length, and the denoiser of the report.

    Raises
    ------
    ParameterError
        If something cannot be loaded.

    Examples
    --------
    >>> from dprmt.training.recipes import load_recipe
    >>> recipe = load_recipe("qwen3-tiny-docstrings").with_changes({"optimizer.name": "grape"})
    >>> recipe_experiment(recipe).settings.optimizer.name
    'grape'
    """
    tokenizer = load_tokenizer(recipe.model)
    data = load_data(recipe.data, tokenizer, recipe.model.task)
    labels = None if data.labels is None else len(data.labels)
    loaded = load_model(recipe.model, labels=labels, seed=recipe.training.seed, tokenizer=tokenizer)
    task = ItemTask(data.train, data.collate, per_sample_losses, lambda item: len(item["input_ids"]))
    with run_in_memory(loaded.model, task, recipe) as run:  # not a step of it: for its noise multiplier
        noise = run.private.noise_multiplier
    changes = {"privacy.target_epsilon": None, "privacy.noise_multiplier": noise, "evaluation.every": None}
    settings = recipe.with_changes({**changes, "denoising": {"method": "paper"}})
    return Experiment(recipe.name, loaded.model, task, settings)


def signal_shares(steps: Iterable[GradientStep]) -> dict[str, float]:
    """Compute the share of the signal ``‖g‖²/(‖g‖² + ds²)`` over some steps, by layer, from clean gradients."""
    signal, noise = dict[str, float](), dict[str, int]()
    for step in steps:
        for name, clean in step.clean.items():
            signal[name] = signal.get(name, 0.0) + float(clean.double().square().sum()) / step.sigma**2
            noise[name] = noise.get(name, 0) + clean.numel()
    return {name: energy / (energy + noise[name]) for name, energy in signal.items()}
