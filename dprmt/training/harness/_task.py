"""What is trained on: samples, their losses, and scores."""

from __future__ import annotations

import hashlib
import pickle
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import torch
import torch.distributed as dist

from dprmt._validation import ParameterError
from dprmt.training.clipping import PrivateStep, Units, plan_private
from dprmt.training.harness._units import UnitBatches, check_owners, unit_table
from dprmt.training.norms import NormRecord, SampleId
from dprmt.training.subspaces import Subspaces


class Plan(Protocol):
    """How gradients will be clipped, before it is known how much noise they get."""

    @property
    def record(self) -> NormRecord:
        """Record for the accountant."""

    @property
    def subspaces(self) -> Subspaces | None:
        """Subspaces of weights whose gradients are clipped in projected coordinates, for `DPGrape`; None if there are
        none.
        """

    def noise_variance(self, noise_multiplier: float) -> float:
        """Compute (σC/L)², the variance of the noise in one entry of the gradient."""

    def privatize(
        self, optimizer: torch.optim.Optimizer, *, noise_multiplier: float, noise_generator: torch.Generator
    ) -> PrivateStep:
        """Return the private step, with hooks on the model and noise before the optimizer."""


class Task(ABC):
    """A training set for the loop: the number of samples, and how some of them are trained on.

    Attributes
    ----------
    size : int
        Number of samples; one of them is the unit of privacy.
    class_names : tuple of str or None
        Names of the classes, for the record of a run.
    length_at : callable or None
        Function from a position to a length, for micro-batches of samples of similar length.
    unit : str
        Meaning of a sample, for the record of a run.
    scored_rows : int or None
        Public number of rows whose zeros and ones are averaged in the score's ``"accuracy"``; then
        ``evaluation.private_noise`` may release it.

    Examples
    --------
    `ItemTask` is a task. This one has four points of a line: Another, on four points of a line:

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
    scored_rows: int | None = None

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
        """Plan how the gradients of these samples will be clipped.

        Parameters
        ----------
        model : Module
            Model to train.
        **options
            Options of `dprmt.training.clipping.plan_private`.

        Returns
        -------
        Plan
            By default the plan of `dprmt.training.clipping.plan_private`.
        """
        return plan_private(model, **options)

    def pieces(self, batch: Sequence[int], largest: int) -> list[Sequence[int]]:
        """Return one process' share of a logical batch as micro-batches; in its order, except for samples of known
        length.

        Returns
        -------
        list of sequence of int
            Each of at most ``largest`` samples.
        """
        batch = batch if self.length_at is None else sorted(batch, key=self.length_at)
        return [batch[start : start + largest] for start in range(0, len(batch), largest)]

    def digest(self) -> str | None:
        """Digest of the training set, so that a run is not continued with another one.

        Returns
        -------
        str or None
            **Private.** None, the default, if it is not known.
        """
        return None

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
    >>> task = ItemTask([0, 1, 2, 1], torch.tensor, losses)
    >>> task.size, task.pieces([0, 2, 3], 2)
    (4, [[0, 2], [3]])

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
        self._named: tuple[int, Counter[str]] = (-1, Counter())
        self._elsewhere: Counter[str] = Counter()
        self._batches: UnitBatches | None = None
        if length is not None:
            self.length_at = lambda position: length(self.items[position])
        if self.owners is not None:
            units = self.units or Units()
            owners = check_owners("owners", self.owners, len(self.items))
            table = unit_table(owners, most=units.rows_per_unit, averages=self.averages, seed=self.seed)
            self._batches, self.length_at = UnitBatches(table, units, self.length_at), None
            self.unit = "all items that have one of the owners"
            self.pieces = self._batches.pieces  # type: ignore[method-assign]
        elif self.units is not None or self.averages:
            raise ParameterError("owners", None, "given with units or averages", "pass the owner of each item")

    @property
    def size(self) -> int:  # type: ignore[override]  # what is an attribute may be computed
        """Number of items, or of their owners."""
        return len(self.items) if self._batches is None else len(self._batches.table.names)

    def clipping_plan(self, model: torch.nn.Module, **options: Any) -> Plan:
        """See `Task`."""
        return (
            super().clipping_plan(model, **options) if self._batches is None else self._batches.plan(model, **options)
        )

    def pieces(self, batch: Sequence[int], largest: int) -> list[Sequence[int]]:
        """See `Task`; all processes must ask, as equal items in two of them need different names."""
        if dist.is_available() and dist.is_initialized():
            shares: list[Counter[str]] = [Counter()] * dist.get_world_size()
            dist.all_gather_object(shares, Counter(_digest(self.items[position]) for position in batch))
            self._elsewhere = sum(shares[: dist.get_rank()], Counter())
        return super().pieces(batch, largest)

    def accumulate(self, private: PrivateStep, positions: Sequence[int], step: int) -> torch.Tensor:
        """See `Task`."""
        if self._batches is not None:
            return torch.cat(list(self._of_units(self._batches, private, positions, step)))
        items = [self.items[i] for i in positions]
        names = self._names_of(items, step)
        return private.accumulate(
            partial(self.losses, private.model), samples=names, step=step, batch=self.collate(items)
        )

    def _names_of(self, items: Sequence[Any], step: int) -> list[SampleId]:
        """Name items by content, because content does not change when another item is removed, as positions do; secret
        probes depend on it.

        Equal items of a step are numbered, after the items of earlier processes.
        """
        if self._named[0] != step:
            self._named = (step, self._elsewhere.copy())
        names: list[SampleId] = []
        seen = self._named[1]
        for item in items:
            digest = _digest(item)
            names.append(f"{digest} {seen[digest]}")
            seen[digest] += 1
        return names

    def _of_units(
        self, batches: UnitBatches, private: PrivateStep, positions: Sequence[int], step: int
    ) -> Iterator[torch.Tensor]:
        for rows in batches.parts(positions, step):
            places = [row for row, _ in rows]
            batch = self.collate([self.items[place] for place in places])
            yield batches.accumulate(private, self.losses, batch, rows, places, step)


def _digest(item: Any) -> str:
    return hashlib.blake2b(_content(item), digest_size=16).hexdigest()


def _content(item: Any) -> bytes:
    """Serialize an item to bytes that equal items share in every process."""
    if isinstance(item, torch.Tensor):
        value = item.detach().cpu().contiguous()
        return f"{value.dtype} {tuple(value.shape)} ".encode() + value.reshape(-1).view(torch.uint8).numpy().tobytes()
    if isinstance(item, Mapping):
        return b"".join(_content(part) for pair in sorted(item.items(), key=lambda pair: str(pair[0])) for part in pair)
    if isinstance(item, (tuple, list)):
        return f"{len(item)} ".encode() + b"".join(map(_content, item))
    if isinstance(item, (str, int, float, bool, bytes, type(None))):
        return f"{type(item).__name__} {item!r} ".encode()
    return pickle.dumps(item, protocol=4)
