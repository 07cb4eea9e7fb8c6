"""Owners of rows: where people with several rows are the samples, whose each row is."""

from __future__ import annotations

import operator
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from dprmt._validation import ParameterError
from dprmt.training.norms import SampleId


@dataclass(frozen=True)
class Owners:
    """``names``, and positions of the rows of each. ``alone``: whether each owner runs alone."""

    names: tuple[SampleId, ...]
    items: tuple[tuple[int, ...], ...]
    alone: bool = False

    def parts(self, drawn: Sequence[int], largest: int) -> Iterator[tuple[list[int], list[SampleId]]]:
        """Split positions into micro-batches with their owners: whole owners together, or one owner, cut if it is
        long.
        """
        size = 1 if self.alone else largest
        held: list[tuple[int, SampleId]] = []
        for owner in drawn:
            own = [(item, self.names[owner]) for item in self.items[owner]]
            if held and len(held) + len(own) > size:
                yield from _cut(held, largest if self.alone else len(held))
                held = []
            held += own
        if held:
            yield from _cut(held, largest if self.alone else len(held))


def _cut(rows: list[tuple[int, SampleId]], size: int) -> Iterator[tuple[list[int], list[SampleId]]]:
    for start in range(0, len(rows), size):
        part = rows[start : start + size]
        yield [item for item, _ in part], [name for _, name in part]


def read_owners(data: Any, owners: Any, most: int | None) -> Owners:
    """Read them from a column's name, or from one name for each row; ``most``: rows that an owner may have."""
    places: dict[SampleId, list[int]] = {}
    for place, name in enumerate(_names(data, owners)):
        places.setdefault(name, []).append(place)
    longest = max(map(len, places.values()), default=0)
    if most is not None and longest > most:
        raise ParameterError("items of an owner", longest, f"at most units.rows_per_unit = {most}")
    return Owners(tuple(places), tuple(map(tuple, places.values())))


def _names(data: Any, owners: Any) -> list[SampleId]:
    values = owners
    if isinstance(owners, str):
        columns = list(getattr(data, "column_names", None) or [])
        if owners not in columns:
            raise ParameterError("owners", owners, "one of the columns " + (", ".join(columns) or "(there are none)"))
        values = data[owners]
    values = values.tolist() if isinstance(values, torch.Tensor) else values
    if isinstance(values, bytes) or not hasattr(values, "__len__") or len(values) != len(data):
        found = len(values) if hasattr(values, "__len__") else type(values).__name__
        raise ParameterError("owners", found, f"one integer or string for each of the {len(data)} items")
    holes = sum(value is None or (isinstance(value, str) and not value) or value != value for value in values)
    if holes:
        raise ParameterError("items without owners", holes, f"0 of {len(data)}: an integer or string for each")
    return [_name(value) for value in values]


def _name(value: Any) -> SampleId:
    if not isinstance(value, bool):
        try:
            return str(value) if isinstance(value, str) else operator.index(value)
        except TypeError:
            pass
    raise ParameterError("owners", value, "integers or strings")
