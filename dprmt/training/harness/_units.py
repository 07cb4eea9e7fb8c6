"""Units of several rows, such as persons: which rows are whose, which a step uses, in which micro-batches."""

from __future__ import annotations

import copy
import hashlib
import operator
import random
from collections.abc import Callable, Iterator, MutableMapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from dprmt._validation import ParameterError
from dprmt.training.clipping import ClippingPlan, PrivateStep, Units, plan_private
from dprmt.training.norms import SampleId

_SHARE = "share_of_unit"
Losses = Callable[[torch.nn.Module, Any], torch.Tensor]


@dataclass(frozen=True)
class UnitTable:
    """The rows of every unit of a training set.

    ``names``: names of the units. ``rows``: positions of each unit's rows in the training set. ``most``: largest
    number of rows drawn of each in a step, None for all. ``averages``: whether a unit's gradient is the mean over its
    drawn rows instead of the sum. ``seed``: seed of the draws, which may be public: a unit's gradient is clipped
    whichever rows are used.
    """

    names: tuple[SampleId, ...]
    rows: tuple[tuple[int, ...], ...]
    most: int | None = None
    averages: bool = False
    seed: int = 0

    def count(self, unit: int) -> int:
        """Count the rows of a unit that a step uses."""
        return len(self.rows[unit]) if self.most is None else min(self.most, len(self.rows[unit]))

    def drawn(self, unit: int, step: int) -> list[int]:
        """Return the positions of the rows of a unit that a step uses, by unit and step alone."""
        rows, many = self.rows[unit], self.count(unit)
        if many == len(rows):
            return list(rows)
        text = f"{self.seed} {step} {self.names[unit]!r}"
        return sorted(random.Random(hashlib.blake2b(text.encode()).digest()).sample(rows, many))

    def pieces(self, batch: Sequence[int], largest: int) -> list[Sequence[int]]:
        """Group units of similar size, as many as fit with all their rows; smaller ones are padded."""
        pieces: list[list[int]] = []
        for unit in sorted(batch, key=self.count):
            if pieces and (len(pieces[-1]) + 1) * self.count(unit) <= largest:
                pieces[-1].append(unit)
            else:
                pieces.append([unit])
        return [*pieces]


class UnitBatches:
    """Micro-batches of the rows of units that were drawn, clipped as the plan decides.

    ``units``: what the plan may know of them. ``length``: of the row at a position, if it is known.
    """

    def __init__(self, table: UnitTable, units: Units, length: Callable[[int], int] | None) -> None:
        self.table, self._units, self._length = table, units, length
        self._regime, self._largest = "alone", 1

    def plan(self, model: torch.nn.Module, **options: Any) -> ClippingPlan:
        """Plan by public sizes alone."""
        plan = plan_private(model, units=self._units, **options)
        self._regime = plan.regime
        return plan

    def pieces(self, batch: Sequence[int], largest: int) -> list[Sequence[int]]:
        """Group as many units as fit side by side, or one each."""
        self._largest = largest
        return [[unit] for unit in batch] if self._regime == "alone" else self.table.pieces(batch, largest)

    def parts(self, units: Sequence[int], step: int) -> Iterator[list[tuple[int, int]]]:
        """Yield positions of the rows that a step uses, and their units: all together, or in micro-batches."""
        rows = [(row, unit) for unit in units for row in self.table.drawn(unit, step)]
        if self._regime != "alone":
            yield rows
            return
        if (length := self._length) is not None:
            rows.sort(key=lambda row: length(row[0]))
        for start in range(0, len(rows), self._largest):
            yield rows[start : start + self._largest]

    def accumulate(
        self,
        private: PrivateStep,
        losses: Losses,
        batch: Any,
        rows: Sequence[tuple[int, int]],
        samples: Sequence[int] | torch.Tensor,
        step: int,
    ) -> torch.Tensor:
        """Return rows with their units' names; their losses by their shares, where a unit's gradient is a mean."""
        table = self.table
        if table.averages:
            batch = _with_shares(batch, torch.tensor([1.0 / table.count(unit) for _, unit in rows]))
            losses = partial(_shares_of_losses, losses)
        names = [table.names[unit] for _, unit in rows]
        return private.accumulate(partial(losses, private.model), samples=samples, units=names, step=step, batch=batch)


def _with_shares(batch: Any, shares: torch.Tensor) -> Any:
    if not isinstance(batch, MutableMapping):
        return (batch, shares)
    batch = copy.copy(batch)
    batch[_SHARE] = shares
    return batch


def _shares_of_losses(losses: Losses, model: torch.nn.Module, batch: Any) -> torch.Tensor:
    if isinstance(batch, MutableMapping):
        batch = copy.copy(batch)
        shares = batch.pop(_SHARE)
    else:
        batch, shares = batch
    found = losses(model, batch)
    return found * shares.to(found)


def check_owners(name: str, owners: Sequence[Any] | torch.Tensor, rows: int) -> list[SampleId]:
    """Check the owner of every row, because a row without an owner could not be protected."""
    values = owners.tolist() if isinstance(owners, torch.Tensor) else owners
    if isinstance(values, (str, bytes)) or not hasattr(values, "__len__") or len(values) != rows:
        found = len(values) if hasattr(values, "__len__") else type(values).__name__
        raise ParameterError(name, found, f"one integer or string for each of the {rows} items")
    holes = sum(value is None or (isinstance(value, str) and not value) or value != value for value in values)
    if holes:
        raise ParameterError(
            f"missing values of {name}", holes, f"0: one integer or string for each of the {rows} items"
        )
    return [_owner(name, value) for value in values]


def _owner(name: str, value: Any) -> SampleId:
    if not isinstance(value, bool):
        try:
            return str(value) if isinstance(value, str) else operator.index(value)
        except TypeError:
            pass
    raise ParameterError(name, value, "integers or strings")


def unit_table(units: Sequence[SampleId], **options: int | bool | None) -> UnitTable:
    """Build the table from the unit of every row."""
    rows: dict[SampleId, list[int]] = {}
    for position, unit in enumerate(units):
        rows.setdefault(unit, []).append(position)
    return UnitTable(tuple(rows), tuple(map(tuple, rows.values())), **options)  # type: ignore[arg-type]
