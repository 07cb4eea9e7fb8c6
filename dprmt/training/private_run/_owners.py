"""Owners of rows: where people with several rows are the samples, whose each row is."""

from __future__ import annotations

import hashlib
import operator
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from dprmt._validation import ParameterError
from dprmt.training.norms import SampleId


@dataclass(frozen=True)
class Part:
    """Positions of a micro-batch's rows, whose they are, and by what their losses are multiplied."""

    positions: list[int]
    owners: list[SampleId] | None = None
    weights: list[float] | None = None


@dataclass(frozen=True)
class Owners:
    """The rows of every owner, and which of them a step uses.

    ``names``: names of the owners. ``items``: positions of each owner's rows. ``alone``: whether each owner runs
    alone. ``most``: rows of an owner that a step uses, drawn for it; None for all. ``averages``: whether an owner's
    gradient is the mean over the used rows instead of the sum. ``seed``: seed of the draws, which may be public: an
    owner's gradient is clipped whichever rows are used.
    """

    names: tuple[SampleId, ...]
    items: tuple[tuple[int, ...], ...]
    alone: bool = False
    most: int | None = None
    averages: bool = False
    seed: int = 0

    def count(self, owner: int) -> int:
        """Count the rows of an owner that a step uses."""
        return len(self.items[owner]) if self.most is None else min(self.most, len(self.items[owner]))

    def used(self, owner: int, step: int) -> list[int]:
        """Return the positions of the rows of an owner that a step uses, by owner and step alone."""
        items, many = self.items[owner], self.count(owner)
        if many == len(items):
            return list(items)
        text = f"{self.seed} {step} {self.names[owner]!r}"
        return sorted(random.Random(hashlib.blake2b(text.encode()).digest()).sample(items, many))

    def parts(
        self, drawn: Sequence[int], largest: int | None, step: int, length: Callable[[int], int] | None
    ) -> Iterator[Part]:
        """Group owners into micro-batches: as many as fit when padded to the longest, or one, cut if it is long."""
        held: list[int] = []
        for owner in drawn if self.alone else sorted(drawn, key=self.count):
            if held and (self.alone or (largest is not None and (len(held) + 1) * self.count(owner) > largest)):
                yield from self._cut(held, largest, step, length)
                held = []
            held.append(owner)
        if held:
            yield from self._cut(held, largest, step, length)

    def _cut(
        self, owners: list[int], largest: int | None, step: int, length: Callable[[int], int] | None
    ) -> Iterator[Part]:
        rows = [(item, owner) for owner in owners for item in self.used(owner, step)]
        if length is not None:
            rows.sort(key=lambda row: length(row[0]))
        size = largest if self.alone and largest is not None else len(rows)
        for start in range(0, len(rows), size):
            part = rows[start : start + size]
            weights = [1.0 / self.count(owner) for _, owner in part] if self.averages else None
            yield Part([item for item, _ in part], [self.names[owner] for _, owner in part], weights)


def owners_of(names: Sequence[SampleId], **options: Any) -> Owners:
    """Group rows into owners by the name at every row."""
    places: dict[SampleId, list[int]] = {}
    for place, name in enumerate(names):
        places.setdefault(name, []).append(place)
    return Owners(tuple(places), tuple(map(tuple, places.values())), **options)


def read_owners(data: Any, owners: Any, most: int | None) -> Owners:
    """Read them from a column's name, or from one name for each row; ``most``: rows that an owner may have."""
    values = owners
    if isinstance(owners, str):
        columns = list(getattr(data, "column_names", None) or [])
        if owners not in columns:
            raise ParameterError("owners", owners, "one of the columns " + (", ".join(columns) or "(there are none)"))
        values = data[owners]
    found = owners_of(check_owners("owners", values, len(data)))
    longest = max(map(len, found.items), default=0)
    if most is not None and longest > most:
        raise ParameterError("items of an owner", longest, f"at most units.rows_per_unit = {most}")
    return found


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
    return [_name(name, value) for value in values]


def _name(name: str, value: Any) -> SampleId:
    if not isinstance(value, bool):
        try:
            return str(value) if isinstance(value, str) else operator.index(value)
        except TypeError:
            pass
    raise ParameterError(name, value, "integers or strings")
