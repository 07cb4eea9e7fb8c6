"""Units of several rows, such as persons: which rows are whose, and which of them a step uses."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Sequence
from dataclasses import dataclass

from dprmt.training.norms import SampleId


@dataclass(frozen=True)
class UnitTable:
    """The rows of every unit of a training set.

    ``names``: of the units. ``rows``: of each, positions in the training set. ``most``: at most so many are drawn of
    each in a step, None for all. ``averages``: whether a unit's gradient is the mean over its drawn rows, not the sum.
    ``seed``: of the draws, which nobody has to keep secret: whichever of its rows are used, a unit's gradient is
    clipped.
    """

    names: tuple[SampleId, ...]
    rows: tuple[tuple[int, ...], ...]
    most: int | None = None
    averages: bool = False
    seed: int = 0

    def count(self, unit: int) -> int:
        """How many rows of a unit a step uses."""
        return len(self.rows[unit]) if self.most is None else min(self.most, len(self.rows[unit]))

    def drawn(self, unit: int, step: int) -> list[int]:
        """Positions of the rows of a unit that a step uses, by unit and step alone."""
        rows, many = self.rows[unit], self.count(unit)
        if many == len(rows):
            return list(rows)
        text = f"{self.seed} {step} {self.names[unit]!r}"
        return sorted(random.Random(hashlib.blake2b(text.encode()).digest()).sample(rows, many))

    def pieces(self, batch: Sequence[int], largest: int) -> list[Sequence[int]]:
        """Units of similar size together, as many as fit with all their rows, the smaller ones padded."""
        pieces: list[list[int]] = []
        for unit in sorted(batch, key=self.count):
            if pieces and (len(pieces[-1]) + 1) * self.count(unit) <= largest:
                pieces[-1].append(unit)
            else:
                pieces.append([unit])
        return [*pieces]


def unit_table(units: Sequence[SampleId], **options: int | bool | None) -> UnitTable:
    """From the unit of every row."""
    rows: dict[SampleId, list[int]] = {}
    for position, unit in enumerate(units):
        rows.setdefault(unit, []).append(position)
    return UnitTable(tuple(rows), tuple(map(tuple, rows.values())), **options)  # type: ignore[arg-type]
