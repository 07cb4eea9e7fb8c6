"""Where a study's noisy sum of clipped gradients comes from: hooks on the layers, or the task's own closed form."""

from __future__ import annotations

from typing import Protocol

import torch

from dprmt.training.clipping import make_private
from dprmt.training.clipping._optimizer import NoisySumOptimizer, sum_of
from dprmt.training.studies._task import ClosedFormTask, Measured, PrivateSettings, Task


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
        Clipping norm and noise.
    noise : torch.Generator
        Of the noise.

    Returns
    -------
    Clipping
        With no gradients in it yet.
    """
    if isinstance(task, ClosedFormTask):
        return ClosedFormClipping(model, optimizer, task, settings, noise)
    return HookedClipping(model, optimizer, task, settings, noise)


class HookedClipping:
    """Exact norms from hooks; a linear layer's per-sample gradients are not formed.

    Parameters
    ----------
    model, optimizer : Module, Optimizer
        What is trained, and what trains it.
    task : Task
        The samples.
    settings : PrivateSettings
        Clipping norm and noise.
    noise : torch.Generator
        Of the noise.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer,
        task: Task,
        settings: PrivateSettings,
        noise: torch.Generator,
    ) -> None:
        self._task = task
        self._private = make_private(
            model,
            optimizer,
            clipping="ghost",
            clipping_norm=settings.clipping_norm,
            noise_multiplier=settings.noise_multiplier,
            expected_batch_size=settings.sample_rate * task.size,
            noise_generator=noise,
        )

    def accumulate(self, indices: torch.Tensor, step: int) -> Measured:
        """See :class:`Clipping`."""
        measured = self._task.measure(self._private.model, indices)
        self._private.accumulate(measured.losses, samples=indices, step=step)
        return measured

    def step(self) -> None:
        """See :class:`Clipping`."""
        self._private.step()

    def close(self) -> None:
        """See :class:`Clipping`."""
        self._private.close()


class ClosedFormClipping:
    """Sums of clipped gradients that the task knows by itself.

    Parameters
    ----------
    model, optimizer : Module, Optimizer
        What is trained, and what trains it.
    task : ClosedFormTask
        The samples.
    settings : PrivateSettings
        Clipping norm and noise.
    noise : torch.Generator
        Of the noise.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer,
        task: ClosedFormTask,
        settings: PrivateSettings,
        noise: torch.Generator,
    ) -> None:
        self._model, self._task, self._norm = model, task, settings.clipping_norm
        self._trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
        self._optimizer = NoisySumOptimizer(
            optimizer,
            noise_multiplier=settings.noise_multiplier,
            max_grad_norm=settings.clipping_norm,
            expected_batch_size=settings.sample_rate * task.size,
            loss_reduction="mean",
            generator=noise,
        )

    def accumulate(self, indices: torch.Tensor, step: int) -> Measured:
        """See :class:`Clipping`; every step is like the others."""
        measured, sums = self._task.clipped_gradients(self._model, indices, self._norm)
        for name, parameter in self._trained.items():
            sum_of(parameter).add_(sums[name])
        return measured

    def step(self) -> None:
        """See :class:`Clipping`."""
        self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=True)

    def close(self) -> None:
        """Nothing was changed."""
