"""Where a study's noisy sum of clipped gradients comes from: hooks on the layers, or the task's own closed form."""

from __future__ import annotations

from typing import Protocol

import torch

from dprmt.training.clipping import ClippedStep, NoisySumOptimizer, make_private, sum_of
from studies._task import ClosedFormTask, Measured, PrivateSettings, Task


class Clipping(Protocol):
    """One logical step is any number of calls of :meth:`accumulate`, and one of :meth:`step`."""

    def accumulate(self, indices: torch.Tensor, step: int) -> Measured:
        """Add the clipped gradients of a micro-batch, and measure it on the way."""

    def step(self) -> None:
        """Add noise once, divide by the expected batch size, let the optimizer move."""

    def close(self) -> None:
        """Leave the model as it was given."""


def clipping_of(
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer,
    task: Task,
    settings: PrivateSettings,
    noise: torch.Generator,
) -> Clipping:
    """The closed form if the task has one, hooks otherwise.

    Parameters
    ----------
    model, optimizer : Module, Optimizer
        What is trained, and what trains it.
    task : Task
        The samples; perhaps a `ClosedFormTask`.
    settings : PrivateSettings
        Clipping norm, noise and sample rate.
    noise : torch.Generator
        Of the noise.

    Returns
    -------
    Clipping
        With no gradients in it yet.
    """
    expected = settings.sample_rate * task.size
    if isinstance(task, ClosedFormTask):
        noisy = NoisySumOptimizer(
            optimizer,
            noise_multiplier=settings.noise_multiplier,
            max_grad_norm=settings.clipping_norm,
            expected_batch_size=expected,
            loss_reduction="mean",
            generator=noise,
        )
        return ClosedFormClipping(model, noisy, task)
    private = make_private(
        model,
        optimizer,
        clipping="ghost",
        clipping_norm=settings.clipping_norm,
        noise_multiplier=settings.noise_multiplier,
        expected_batch_size=expected,
        noise_generator=noise,
    )
    return HookedClipping(private, task)


class HookedClipping:
    """Exact norms from hooks; a linear layer's per-sample gradients are not formed.

    Parameters
    ----------
    private : ClippedStep
        Model and optimizer, made private.
    task : Task
        The samples.
    """

    def __init__(self, private: ClippedStep, task: Task) -> None:
        self._private, self._task = private, task
        self.step, self.close = private.step, private.close

    def accumulate(self, indices: torch.Tensor, step: int) -> Measured:
        """See :class:`Clipping`."""
        measured = self._task.measure(self._private.model, indices)
        self._private.accumulate(measured.losses, samples=indices, step=step)
        return measured


class ClosedFormClipping:
    """Sums of clipped gradients that the task knows by itself.

    Parameters
    ----------
    model : Module
        What is trained.
    optimizer : NoisySumOptimizer
        Of its trained parameters.
    task : ClosedFormTask
        The samples.
    """

    def __init__(self, model: torch.nn.Module, optimizer: NoisySumOptimizer, task: ClosedFormTask) -> None:
        self._model, self._optimizer, self._task = model, optimizer, task
        self._trained = {name: p for name, p in model.named_parameters() if p.requires_grad}

    def accumulate(self, indices: torch.Tensor, step: int) -> Measured:
        """See :class:`Clipping`; every step is like the others."""
        measured, sums = self._task.clipped_gradients(self._model, indices, self._optimizer.max_grad_norm)
        for name, parameter in self._trained.items():
            sum_of(parameter).add_(sums[name])
        return measured

    def step(self) -> None:
        """See :class:`Clipping`."""
        self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=True)

    def close(self) -> None:
        """Nothing was changed."""
