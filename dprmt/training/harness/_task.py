"""What is trained on: samples, their losses, and scores."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from dprmt._validation import ParameterError
from dprmt.training.clipping import ClippingPlan, Units, plan_private
from dprmt.training.norms._probes import SampleId
from dprmt.training.private_run import MicroBatch, PrivateRun
from dprmt.training.private_run._batches import Owners, check_owners, owners_of


class Task(ABC):
    """A training set, as the loop sees it: rows, how they become batches, and what their losses are.

    Attributes
    ----------
    size : int
        Number of samples; one of them is the unit of privacy.
    class_names : tuple of str or None
        Names of the classes, for the record of a run.
    length_at : callable or None
        Function from a row's position to its length, for micro-batches of rows of similar length.
    owners_of_rows : Owners or None
        Owners of rows, if samples have several rows.
    units : Units or None
        How samples of several rows are clipped.
    unit : str
        Meaning of a sample, for the record of a run.
    scored_rows : int or None
        Public number of rows whose zeros and ones are averaged in the score's ``"accuracy"``; then
        ``evaluation.private_noise`` may release it.

    Examples
    --------
    `ItemTask` is a task. This task has four points of a line:

    >>> class Line(Task):
    ...     size, points = 4, torch.arange(4.0)[:, None]
    ...
    ...     def losses_of(self, model, batch):
    ...         x = self.points[batch]
    ...         return (model(x) - 2 * x).square().sum(1)
    >>> Line().batch_of([0, 3])
    tensor([0, 3])
    """

    size: int
    class_names: tuple[str, ...] | None = None
    length_at: Callable[[int], int] | None = None
    owners_of_rows: Owners | None = None
    units: Units | None = None
    unit: str = "one sample of the training set"
    scored_rows: int | None = None

    @property
    def rows(self) -> Sequence[Any]:
        """All rows; by default their positions."""
        return range(self.size)

    def batch_of(self, rows: list[Any]) -> Any:
        """Make a batch of rows, on the model's device.

        Parameters
        ----------
        rows : list
            Some of :attr:`rows`.

        Returns
        -------
        object
            What :meth:`losses_of` takes; everything in it has one entry for each row.
        """
        return torch.tensor(rows)

    @abstractmethod
    def losses_of(self, model: torch.nn.Module, batch: Any) -> torch.Tensor:
        """Compute the losses of a batch.

        Parameters
        ----------
        model : Module
            What is trained.
        batch : object
            From :meth:`batch_of`.

        Returns
        -------
        Tensor, shape (B,)
            Each row's own loss, with its graph.
        """

    def accumulate(self, private: PrivateRun, part: MicroBatch) -> torch.Tensor:
        """Add the clipped gradients of a micro-batch to the sum of the step; for tasks that look at it, too.

        Parameters
        ----------
        private : PrivateRun
            The run.
        part : MicroBatch
            Of :meth:`PrivateRun.micro_batches`.

        Returns
        -------
        Tensor, shape (B,)
            The losses, without graph. **Private.**
        """
        losses = private.accumulate(lambda batch: self.losses_of(private.model, batch), part, return_losses=True)
        assert losses is not None  # they were asked for
        return losses

    def clipping_plan(self, model: torch.nn.Module, **options: Any) -> ClippingPlan:
        """Plan how the gradients of these samples will be clipped.

        Parameters
        ----------
        model : Module
            Model to train.
        **options
            Options of `dprmt.training.clipping.plan_private`.

        Returns
        -------
        ClippingPlan
            By default the plan of `dprmt.training.clipping.plan_private`.
        """
        return plan_private(model, **options)

    def digest(self) -> str | None:
        """Digest of the training set, so that a run is not continued with another one.

        Returns
        -------
        str or None
            **Private.** None, the default, if it is not known.
        """
        return None

    def save(self, folder: Path, weights: dict[str, torch.Tensor] | None) -> None:  # noqa: B027
        """Save the trained model of a finished run; by default it is left to the caller.

        Parameters
        ----------
        folder : Path
            Folder for it.
        weights : dict of Tensor or None
            All weights of a sharded model.
        """

    def score(self) -> dict[str, Any]:
        """Score the present model on data that is not trained on.

        Returns
        -------
        dict
            JSON values; by default empty, if there is nothing to evaluate on.
        """
        return {}


@dataclass
class ItemTask(Task):
    """Samples that are collated into batches, with a function that returns the losses.

    Attributes
    ----------
    items : sequence
        The training set; one item is the unit of privacy, unless ``owners`` are given.
    collate : callable
        Function from a list of items to the batch for ``losses``.
    losses : callable
        Function from (model, batch) to each sample's loss, shape (B,), with its graph. Right, for a text: the mean
        over its tokens, as in `dprmt.training.data.per_sample_losses`. Wrong, because other samples' lengths count:
        the mean over the padded length, or a division by the batch's number of tokens (``num_items_in_batch``). Also
        wrong: a loss divided by the batch's largest loss, or inputs minus the batch's mean. Everything in the batch
        must have one row per sample. Isolation checks run random samples alone, and raise an error if a loss differs.
    length : callable or None
        Function from an item to its length, for micro-batches of items of similar length.
    owners : sequence of int or str, or tensor of integers, or None
        Owner of every item. All items of an owner are then the unit of privacy: drawn, added and clipped together.
        ``size`` and the batch size count units, and the micro-batch size counts items.
    units : Units or None
        With owners: at most ``rows_per_unit`` items of each are used in a step, by default all; and how they are
        clipped. Items are drawn anew for each step from the step's number and ``seed``.
    averages : bool
        Whether a unit's gradient is the mean over the used items instead of their sum.
    seed : int
        Seed of these draws, which may be public.

    Raises
    ------
    ParameterError
        If an item has no owner.

    Examples
    --------
    >>> def losses(model, labels):
    ...     return torch.nn.functional.cross_entropy(model(torch.eye(4)[labels]), labels, reduction="none")
    >>> ItemTask([0, 1, 2, 1], torch.tensor, losses).size
    4

    Anna has three items:

    >>> task = ItemTask([0, 1, 2, 1], torch.tensor, losses, owners=["anna", "ben", "anna", "anna"], units=Units(2))
    >>> task.size, task.unit
    (2, 'all items that have one of the owners')
    >>> ItemTask([0, 1], torch.tensor, losses, owners=["anna", None])  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    ...
    dprmt._validation.ParameterError: missing values of owners must be 0: one integer or string for each of ..., got 1
    """

    items: Sequence[Any]
    collate: Callable[[list[Any]], Any]
    losses: Callable[[torch.nn.Module, Any], torch.Tensor]
    length: Callable[[Any], int] | None = None
    owners: Sequence[SampleId] | torch.Tensor | None = None
    units: Units | None = None
    averages: bool = False
    seed: int = 0

    def __post_init__(self) -> None:
        length = self.length
        if length is not None:
            self.length_at = lambda position: length(self.items[position])
        if self.owners is not None:
            self.units = self.units or Units()
            owners, most = check_owners("owners", self.owners, len(self.items)), self.units.rows_per_unit
            self.owners_of_rows = owners_of(owners, most=most, averages=self.averages, seed=self.seed)
            self.unit = "all items that have one of the owners"
        elif self.units is not None or self.averages:
            raise ParameterError("owners", None, "given with units or averages", "pass the owner of each item")

    @property
    def size(self) -> int:  # type: ignore[override]  # what is an attribute may be computed
        """Number of items, or of their owners."""
        return len(self.items) if self.owners_of_rows is None else len(self.owners_of_rows.names)

    @property
    def rows(self) -> Sequence[Any]:
        """See `Task`."""
        return self.items

    def batch_of(self, rows: list[Any]) -> Any:
        """See `Task`."""
        return self.collate(rows)

    def losses_of(self, model: torch.nn.Module, batch: Any) -> torch.Tensor:
        """See `Task`."""
        return self.losses(model, batch)
