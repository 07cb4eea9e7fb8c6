"""Samples of several rows, such as people: which rows make up a unit, and whether units run side by side or alone.

Side by side, the plain backward pass is followed by norms and by a second product of every layer, at least 2RTdp
operations for R rows of T tokens. One at a time, there is no second product: the unit's gradient is there, and is
read three times, whatever R and T are, but a batch holds R rows only. So both overheads are as the parameters are, and
what decides is the number of a unit's tokens alone, measured in ``benchmarks/units.py``.

Side by side, a unit's gradient of a layer is AᵀG of its rows' tokens, one after the other: whatever takes norms of
samples with more tokens takes norms of units.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, TypeAlias

import torch

from dprmt._validation import ParameterError, check_choice, check_count
from dprmt.training.norms._probes import SampleId, checked_ids

Regime = Literal["rows", "together", "alone"]
Use: TypeAlias = tuple[Sequence[torch.Tensor], torch.Tensor]
"""A layer's inputs in one of its uses, and the gradients of its output."""


def by_token(use: Use) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the input and the output gradients with one axis of tokens, the second."""
    inputs, gradients = use
    tokens = gradients.flatten(1, -2) if gradients.ndim > 2 else gradients[:, None]
    shape = (*tokens.shape[:2], -1) if inputs[0].is_floating_point() else tokens.shape[:2]
    return inputs[0].reshape(shape), tokens


@dataclass(frozen=True)
class Units:
    """Samples of several rows, such as all texts of a person, for :func:`plan_private`.

    Parameters
    ----------
    rows_per_unit : int, optional
        Largest number of rows of a unit in a logical step, >= 1, known without looking at the data.
    micro_batch_size : int, optional
        Number of rows of a micro-batch, >= 1, on which the choice of the regime depends.
    regime : {"auto", "together", "alone"}
        "alone" runs units one at a time and computes the exact norm of each accumulated gradient. It works with any
        module and ignores ``norms``, and a unit may continue in the next micro-batch. "together" runs units side by
        side, all rows of a unit in one micro-batch, with norms of their concatenated tokens by ``norms``. The default
        is the cheaper one by the numbers above and ``tokens``; ``plan_private(…).reason`` names it with the reason.

    Raises
    ------
    ParameterError
        If a number is out of its range, or units cannot be run side by side.

    Examples
    --------
    >>> Units(8, micro_batch_size=4, regime="together")
    Traceback (most recent call last):
    ...
    dprmt._validation.ParameterError: micro_batch_size must be at least rows_per_unit = 8 with regime='together', got 4
    """

    rows_per_unit: int | None = None
    micro_batch_size: int | None = None
    regime: str = "auto"

    def __post_init__(self) -> None:
        for name in ("rows_per_unit", "micro_batch_size"):
            if (value := getattr(self, name)) is not None:
                object.__setattr__(self, name, check_count(name, value))
        rows, size = self.rows_per_unit, self.micro_batch_size
        if check_choice("regime", self.regime, ("auto", "together", "alone")) != "together":
            return
        if rows is None:
            raise ParameterError("rows_per_unit", None, "given with regime='together'", "pass rows_per_unit")
        if size is not None and rows > size:
            raise ParameterError("micro_batch_size", size, f"at least rows_per_unit = {rows} with regime='together'")


def choose_regime(units: Units, tokens: int | None) -> tuple[Regime, str]:
    """Return the regime and why, from public sizes alone; ``tokens``: T of a row."""
    wanted: Any = units.regime
    rows, size = units.rows_per_unit, units.micro_batch_size
    if wanted != "auto":
        return wanted, f"units are clipped {_HOW[wanted]}, as asked for"
    reasons = {
        "how many rows they have is not known": rows is None,
        f"two of {rows} rows exceed a micro-batch of {size}": rows is not None and size is not None and 2 * rows > size,
        "256 tokens of a unit or more are more expensive side by side": (rows or 0) * (tokens or 0) >= 256,
    }
    for reason, applies in reasons.items():
        if applies:
            return "alone", f"units are clipped {_HOW['alone']}: {reason}"
    return "together", f"units are clipped {_HOW['together']}: several small ones fill a micro-batch"


_HOW = {"alone": "one at a time", "together": "side by side"}


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
        activations, gradients = by_token(use)
        return [self._placed(activations)], self._placed(gradients)

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
    places: dict[SampleId, int] = {}
    owners = tuple(places.setdefault(name, len(places)) for name in checked_ids("units", units, rows))
    return UnitRows(tuple(places), owners)
