"""Interface of a private training step, for every clipping method."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch

from dprmt.training.norms import NormRecord


class PrivateStep(Protocol):
    """Per-sample gradients, clipped, summed over micro-batches, noised once per logical step, given to an optimizer.

    A logical step has any number of calls of :meth:`accumulate` (none, if Poisson sampling drew no sample) and one of
    :meth:`step`. :class:`ClippedStep` implements it. If you know the clipped sums in closed form, you can write
    another.

    Examples
    --------
    >>> from dprmt.training.clipping import ClippedStep
    >>> all(hasattr(ClippedStep, name) for name in ("accumulate", "step"))
    True
    """

    @property
    def model(self) -> torch.nn.Module:
        """The model to call, with the hooks that the clipping needs."""

    @property
    def optimizer(self) -> torch.optim.Optimizer:
        """The Opacus optimizer; its ``original_optimizer`` is the one that was given."""

    @property
    def record(self) -> NormRecord:
        """Record of how the norms are obtained, for the accountant."""

    def accumulate(
        self,
        losses: torch.Tensor | Callable[[Any], torch.Tensor],
        *,
        samples: Sequence[int | str] | torch.Tensor,
        step: int,
        batch: Any = None,
        units: Sequence[int | str] | torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Add the clipped gradients of a micro-batch to the sum of the logical step.

        Parameters
        ----------
        losses : callable, or Tensor of shape (B,)
            A function from a batch to each sample's loss, by :attr:`model`; or these losses, with their graph.
        samples : sequence of int or str, or tensor of integers, shape (B,)
            Identities in the data set, all different within a logical step.
        step : int
            Number of the logical step, the same for all its micro-batches, never used twice in a run.
        batch : Tensor, list, or mapping or tuple of these
            Argument of a callable ``losses``; every tensor has one row per sample.
        units : sequence of int or str, or tensor of integers, shape (B,), optional
            Unit of each row; all rows of a unit form one sample.

        Returns
        -------
        Tensor, shape (B,)
            The losses, detached. **Private.**
        """

    def step(self) -> None:
        """Add noise once, divide by the *expected* batch size, let the optimizer move, and clear the sum."""
