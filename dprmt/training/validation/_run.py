"""A DP training run that hands out the clean and the noisy gradient of every step."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import torch

from dprmt._validation import check_choice, check_count, check_real
from dprmt.training._private_step import PrivateStep
from dprmt.training.clipping import make_private
from dprmt.training.denoising import Denoising, DenoisingEvaluation, DenoisingStep, PrivateDataWarning


@dataclass(frozen=True)
class Experiment:
    """A model and data to train it on.

    Attributes
    ----------
    name : str
        For the report.
    model : Module
        In training mode, without dropout; what requires a gradient is trained.
    items : sequence
        The training data; one item is the unit of privacy.
    collate : callable
        From a list of items to the batch that ``losses`` takes.
    losses : callable
        From (model, batch) to each sample's own loss, shape (B,), with its graph.
    length : callable
        Of an item; micro-batches are formed of items of similar length.
    """

    name: str
    model: torch.nn.Module
    items: Sequence[Any]
    collate: Callable[[list[Any]], Any]
    losses: Callable[[torch.nn.Module, Any], torch.Tensor]
    length: Callable[[Any], int]


@dataclass(frozen=True)
class RunOptions:
    """How to train.

    Parameters
    ----------
    noise_multiplier : float
        σ_DP > 0.
    clipping_norm : float
        C > 0.
    clipping : {"exact", "ghost"}
        How the norms are obtained.
    expected_batch : int
        L, the expected size of a Poisson sampled batch; at most the number of items.
    steps : int
        T >= 1.
    learning_rate : float
        Of AdamW, > 0.
    micro_batch : int
        Samples that pass the model at once.
    denoising : Denoising
        What the run does with the noisy gradient.
    seed : int
        For batches and noise. A known seed, as here, makes a run repeatable and **not private**.

    Raises
    ------
    ParameterError
        If a number is out of its range.
    """

    noise_multiplier: float
    clipping_norm: float = 1.0
    clipping: Literal["exact", "ghost"] = "ghost"
    expected_batch: int = 256
    steps: int = 12
    learning_rate: float = 1e-3
    micro_batch: int = 32
    denoising: Denoising = field(default_factory=Denoising)
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("noise_multiplier", "clipping_norm", "learning_rate"):
            check_real(name, getattr(self, name), low=0.0, low_open=True)
        for name in ("expected_batch", "steps", "micro_batch"):
            check_count(name, getattr(self, name))
        check_choice("clipping", self.clipping, ("exact", "ghost"))
        check_count("seed", self.seed, low=0)


@dataclass(frozen=True)
class GradientStep:
    """The gradient of one step, by layer, in units of a mean over the expected batch.

    Attributes
    ----------
    number : int
        Of the step, from 0.
    sigma : float
        Standard deviation of the noise in one entry, σ_DP·C/L.
    samples : int
        How many were drawn. **Private.**
    loss : float
        Their mean loss, NaN without samples. **Private.**
    clean : mapping of str to Tensor
        Mean of the clipped gradients. **Private.**
    noisy : mapping of str to Tensor
        What is released.
    """

    number: int
    sigma: float
    samples: int
    loss: float
    clean: Mapping[str, torch.Tensor]
    noisy: Mapping[str, torch.Tensor]


def private_gradients(experiment: Experiment, options: RunOptions) -> Iterator[GradientStep]:
    """Train by DP-SGD with denoising, and yield the gradients of every step.

    The model is trained in place. The gradients are copies.

    Parameters
    ----------
    experiment : Experiment
        What to train.
    options : RunOptions
        How.

    Yields
    ------
    GradientStep
        After the optimizer has moved.

    Raises
    ------
    ParameterError
        If the expected batch is larger than the data set.

    Formal guarantees
    -----------------
    None: this reads clean gradients, and its noise comes from a known seed. It is for looking at public data.

    Examples
    --------
    >>> model = torch.nn.Linear(4, 3)
    >>> def losses(model, labels):
    ...     return torch.nn.functional.cross_entropy(model(torch.eye(4)[labels]), labels, reduction="none")
    >>> experiment = Experiment("toy", model, [0, 1, 2] * 10, torch.tensor, losses, length=lambda item: 1)
    >>> options = RunOptions(noise_multiplier=0.5, clipping_norm=2.0, expected_batch=20, steps=3)
    >>> [(step.number, step.sigma) for step in private_gradients(experiment, options)]
    [(0, 0.05), (1, 0.05), (2, 0.05)]
    """
    rate = options.expected_batch / check_count("items", len(experiment.items), low=options.expected_batch)
    generator = torch.Generator().manual_seed(options.seed)
    trained = {name: p for name, p in experiment.model.named_parameters() if p.requires_grad}
    private = make_private(
        experiment.model,
        torch.optim.AdamW(trained.values(), lr=options.learning_rate),
        clipping=options.clipping,
        clipping_norm=options.clipping_norm,
        noise_multiplier=options.noise_multiplier,
        expected_batch_size=options.expected_batch,
        noise_generator=generator,
    )
    try:
        with DenoisingStep.attach(private.optimizer, trained, options.denoising) as step:
            look = _Look(step)
            for number in range(options.steps):
                drawn = torch.rand(len(experiment.items), generator=generator) < rate
                chosen = drawn.nonzero().flatten().tolist()
                loss = _accumulate(experiment, private, chosen, options.micro_batch, number)
                private.step()
                yield GradientStep(number, look.sigma, len(chosen), loss, look.clean, look.noisy)
    finally:
        private.close()


class _Look:
    # Copies of the gradients as the optimizer gets them.
    def __init__(self, step: DenoisingStep) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", PrivateDataWarning)  # `private_gradients` says it in its docstring
            self._evaluation = DenoisingEvaluation(step)
        self.sigma = math.nan
        self.clean: dict[str, torch.Tensor] = {}
        self.noisy: dict[str, torch.Tensor] = {}
        step.observe(self, self._take)

    def _take(self, noisy: dict[str, torch.Tensor], _: object, sigma: float) -> None:
        self.sigma = sigma
        self.noisy = {name: gradient.detach().clone() for name, gradient in noisy.items()}
        self.clean = {
            name: total.detach().clone() for name, total in self._evaluation.private_clean_gradients().items()
        }


def _accumulate(
    experiment: Experiment, private: PrivateStep, chosen: list[int], micro_batch: int, number: int
) -> float:
    # One logical step over micro-batches of similar length; the mean loss, NaN if Poisson sampling drew nobody.
    chosen = sorted(chosen, key=lambda i: experiment.length(experiment.items[i]))
    total = 0.0
    for start in range(0, len(chosen), micro_batch):
        samples = chosen[start : start + micro_batch]
        batch = experiment.collate([experiment.items[i] for i in samples])
        losses = experiment.losses(private.model, batch)
        private.accumulate(losses, samples=samples, step=number)
        total += losses.sum().item()
    return total / len(chosen) if chosen else math.nan
