"""A DP training run that hands out the clean and the noisy gradient of every step."""

from __future__ import annotations

import itertools
import math
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from dprmt._validation import ParameterError
from dprmt.training.denoising import DenoisingEvaluation, PrivateDataWarning
from dprmt.training.harness import ItemTask, Observer, run_in_memory
from dprmt.training.optimizers import preconditioner
from dprmt.training.recipes import Settings


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
    preconditioner : mapping of str to Tensor
        Factors by which the optimizer multiplied its momentum, entry by entry; empty unless it is a kind of Adam.
    """

    number: int
    sigma: float
    samples: int
    loss: float
    clean: Mapping[str, torch.Tensor]
    noisy: Mapping[str, torch.Tensor]
    preconditioner: Mapping[str, torch.Tensor] = field(default_factory=dict)


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
        Settings with a denoiser. For weights that DP-GRAPE trains, gradients are in their subspaces.
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
        If the expected batch is larger than the data set, or there is no denoiser.

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
            loss = math.nan if record.loss is None else record.loss
            scales = _preconditioner(run)
            yield GradientStep(record.step - 1, look.sigma, record.batch_size, loss, look.clean, look.noisy, scales)


def _preconditioner(run: Any) -> dict[str, torch.Tensor]:
    optimizer, parameters = run.noised, run.prepared.parameters
    scales = {name: preconditioner(optimizer, p) for name, p in parameters.items()}
    return {name: scale for name, scale in scales.items() if scale is not None}


class CleanGradients(Observer):
    """Copies of the gradients as the denoiser gets them: **private**.

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
        step = run.private.denoising
        if step is None:
            raise ParameterError("denoising.method", None, "a denoiser, on whole gradients, to compare them at")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", PrivateDataWarning)  # `private_gradients` documents it
            self._evaluation = DenoisingEvaluation(step)
        step.observe(self, self._take)

    def _take(self, noisy: Mapping[str, torch.Tensor], _: object, sigma: float) -> None:
        self.sigma = sigma
        self.noisy = {name: gradient.detach().clone() for name, gradient in noisy.items()}
        self.clean = {
            name: total.detach().clone() for name, total in self._evaluation.private_clean_gradients().items()
        }
