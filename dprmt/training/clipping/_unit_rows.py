"""Which rows of a micro-batch make up a unit, such as a person: then all of them together are one sample.

A unit's gradient of a layer is AᵀG of its rows' tokens, one after the other: whatever takes norms of samples with more
tokens takes norms of units.
"""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch

from dprmt._validation import ParameterError
from dprmt.training.clipping._policy import Use
from dprmt.training.norms import SampleId


@dataclass(frozen=True)
class UnitRows:
    """The rows of every unit of a micro-batch.

    ``names``: of the units, by their first rows. ``owners``: of every row, the place of its unit in ``names``.
    """

    names: tuple[SampleId, ...]
    owners: tuple[int, ...]

    @cached_property
    def rows(self) -> list[list[int]]:
        """Rows of every unit."""
        found: list[list[int]] = [[] for _ in self.names]
        for row, owner in enumerate(self.owners):
            found[owner].append(row)
        return found

    @cached_property
    def most(self) -> int:
        """Rows of the unit that has most of them."""
        return max(Counter(self.owners).values())

    def joined(self, use: Use) -> Use:
        """Join inputs and output gradients by unit instead of row, with rows of zeros if a unit has fewer."""
        inputs, gradients = use
        tokens = gradients.flatten(1, -2) if gradients.ndim > 2 else gradients[:, None]
        shape = (*tokens.shape[:2], -1) if inputs[0].is_floating_point() else tokens.shape[:2]
        return [self._placed(inputs[0].reshape(shape))], self._placed(tokens)

    def summed(self, gradients: torch.Tensor) -> torch.Tensor:
        """Sum gradients of rows, (B, …), to gradients of units."""
        dtype = torch.promote_types(gradients.dtype, torch.float32)
        total = torch.zeros((len(self.names), *gradients.shape[1:]), dtype=dtype, device=gradients.device)
        return total.index_add_(0, torch.tensor(self.owners, device=gradients.device), gradients.to(dtype))

    @cached_property
    def _places(self) -> list[int] | None:
        # Rows side by side, one after the last standing for zeros; None if they stand so already.
        places = [place for rows in self.rows for place in (*rows, *[len(self.owners)] * (self.most - len(rows)))]
        return None if places == list(range(len(self.owners))) else places

    def _placed(self, values: torch.Tensor) -> torch.Tensor:
        if self._places is not None:
            values = torch.cat([values, torch.zeros_like(values[:1])])[self._places]
        return values.reshape(len(self.names), self.most * values.shape[1], *values.shape[2:])


def unit_rows(units: Sequence[SampleId] | torch.Tensor, rows: int) -> UnitRows:
    """Return the units that were named, one for each row.

    Raises: ParameterError, unless there is an integer or a string for each.
    """
    values: Any = units.tolist() if isinstance(units, torch.Tensor) else units
    if isinstance(values, (str, bytes)) or not isinstance(values, Sequence) or len(values) != rows:
        found = len(values) if isinstance(values, Sequence) else type(values).__name__
        raise ParameterError("units", found, f"the units of all {rows} rows of the micro-batch")
    places: dict[SampleId, int] = {}
    owners = tuple(places.setdefault(_name(value), len(places)) for value in values)
    return UnitRows(tuple(places), owners)


def _name(unit: Any) -> SampleId:
    if not isinstance(unit, bool):
        try:
            return unit if isinstance(unit, str) else operator.index(unit)
        except TypeError:
            pass
    raise ParameterError("units", unit, "integers or strings")
