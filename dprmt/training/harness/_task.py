"""What is trained on: samples, their losses, and scores."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import torch

from dprmt.training.clipping import PrivateStep, plan_private
from dprmt.training.norms import NormRecord
from dprmt.training.subspaces import Subspaces


class Plan(Protocol):
    """How gradients will be clipped, before it is known how much noise they get."""

    @property
    def record(self) -> NormRecord:
        """What the accountant is told."""

    @property
    def subspaces(self) -> Subspaces | None:
        """Of weights whose gradients are clipped in projected coordinates, for `DPGrape`; None if there are none."""

    def noise_variance(self, noise_multiplier: float) -> float:
        """(σC/L)², of the noise in one entry of the gradient."""

    def privatize(
        self, optimizer: torch.optim.Optimizer, *, noise_multiplier: float, noise_generator: torch.Generator
    ) -> PrivateStep:
        """The private step, with hooks on the model and noise before the optimizer."""


class Task(ABC):
    """A training set, as the loop sees it: numbers of samples, and what becomes of some of them.

    Attributes
    ----------
    size : int
        Number of samples; one of them is the unit of privacy.
    class_names : tuple of str or None
        Names of the classes, for the record of a run.
    length_at : callable or None
        Of a position, for micro-batches of samples of similar length.
    unit : str
        What a sample is, for the record of a run.

    Examples
    --------
    `ItemTask` is one. Another, on four points of a line:

    >>> class Line(Task):
    ...     size, points = 4, torch.arange(4.0)[:, None]
    ...
    ...     def accumulate(self, private, positions, step):
    ...         x = self.points[list(positions)]
    ...         losses = lambda x: (private.model(x) - 2 * x).square().sum(1)
    ...         return private.accumulate(losses, samples=positions, step=step, batch=x)
    >>> Line().pieces([0, 1, 3], 2)
    [[0, 1], [3]]
    """

    size: int
    class_names: tuple[str, ...] | None = None
    length_at: Callable[[int], int] | None = None
    unit: str = "one sample of the training set"

    @abstractmethod
    def accumulate(self, private: PrivateStep, positions: Sequence[int], step: int) -> torch.Tensor:
        """Send a micro-batch through ``private.model`` and add its clipped gradients to the sum of the step.

        Parameters
        ----------
        private : PrivateStep
            Of :meth:`clipping_plan`.
        positions : sequence of int
            Which samples, in [0, size).
        step : int
            Number of the logical step.

        Returns
        -------
        Tensor, shape (B,)
            Their losses, without graph. **Private.**
        """

    def clipping_plan(self, model: torch.nn.Module, **options: Any) -> Plan:
        """How the gradients of these samples will be clipped.

        Parameters
        ----------
        model : Module
            What is trained.
        **options
            Those of `dprmt.training.clipping.plan_private`.

        Returns
        -------
        Plan
            By default that of `dprmt.training.clipping.plan_private`.
        """
        return plan_private(model, **options)

    def pieces(self, batch: Sequence[int], largest: int) -> list[Sequence[int]]:
        """One process' share of a logical batch as micro-batches; in its order, but for samples of known length.

        Returns
        -------
        list of sequence of int
            Each of at most ``largest`` samples.
        """
        batch = batch if self.length_at is None else sorted(batch, key=self.length_at)
        return [batch[start : start + largest] for start in range(0, len(batch), largest)]

    def digest(self) -> str | None:
        """What tells this training set from others, so that a run is not continued with another one.

        Returns
        -------
        str or None
            **Private.** None, the default, if it is not known.
        """
        return None

    def score(self) -> dict[str, Any]:
        """Scores of the model as it is now, on data that is not trained on.

        Returns
        -------
        dict
            JSON values; empty, as by default, if there is nothing to evaluate on.
        """
        return {}


@dataclass
class ItemTask(Task):
    """Samples that are collated into batches, of which a function gives the losses.

    Attributes
    ----------
    items : sequence
        The training set; one item is the unit of privacy.
    collate : callable
        From a list of items to the batch that ``losses`` takes.
    losses : callable
        From (model, batch) to each sample's own loss, shape (B,), with its graph. Right, of a text: the sum over its
        own tokens by their number, as `dprmt.training.data.per_sample_losses` has it. Wrong, as other samples' lengths
        decide: the mean over the padded length, or the sum over the batch's number of tokens
        (``num_items_in_batch``). Wrong, too: a loss divided by the batch's largest one, a batch's mean taken from the
        inputs. Everything in the batch has one row for each sample. Samples are run alone now and then, and a loss
        that differs is refused.
    length : callable or None
        Of an item: micro-batches are then formed of items of similar length.

    Examples
    --------
    >>> def losses(model, labels):
    ...     return torch.nn.functional.cross_entropy(model(torch.eye(4)[labels]), labels, reduction="none")
    >>> task = ItemTask([0, 1, 2, 1], torch.tensor, losses)
    >>> task.size, task.pieces([0, 2, 3], 2)
    (4, [[0, 2], [3]])
    """

    items: Sequence[Any]
    collate: Callable[[list[Any]], Any]
    losses: Callable[[torch.nn.Module, Any], torch.Tensor]
    length: Callable[[Any], int] | None = None

    def __post_init__(self) -> None:
        length = self.length
        if length is not None:
            self.length_at = lambda position: length(self.items[position])

    @property
    def size(self) -> int:  # type: ignore[override]  # what is an attribute may be computed
        """Number of items."""
        return len(self.items)

    def accumulate(self, private: PrivateStep, positions: Sequence[int], step: int) -> torch.Tensor:
        """See `Task`."""
        batch = self.collate([self.items[i] for i in positions])
        return private.accumulate(partial(self.losses, private.model), samples=positions, step=step, batch=batch)
