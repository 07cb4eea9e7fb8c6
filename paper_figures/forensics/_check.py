"""One relation between printed numbers, and rows that say whether it holds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from paper_figures._published import Cell, Published
from paper_figures._reproduction import Row
from paper_figures._verdict import Reason

Reader = Callable[[str], Published]
"""Gives an entry of ``published.toml`` by name; tests give it with a number changed."""


@dataclass(frozen=True)
class Check:
    """Named on the command line, ``python -m paper_figures forensics NAME``."""

    name: str
    title: str
    how: str
    """What is computed from what, in a sentence or two."""
    rows: Callable[[Reader], Sequence[Row]]
    reasons: Sequence[Reason] = ()
    """Needed where a row differs."""

    @property
    def command(self) -> str:
        return f"python -m paper_figures forensics {self.name}"


def row(
    label: str,
    ours: float,
    printed: Cell,
    *,
    margin: float,
    ends: tuple[float, float] | None = None,
    uses: Sequence[Cell] = (),
    unit: str = "",
) -> Row:
    """A value that follows from printed ones, ``uses``, beside the printed one.

    ``ends`` are the values for the inputs as far off as their last digits leave open; without them there is one value.
    """
    keys = [printed.key, *(cell.key for cell in uses)]
    return Row(label, ours, printed, unit=unit, interval=ends or (ours, ours), margin=margin, cells=tuple(keys))


def statement(
    label: str, ours: float, claim: str, within: tuple[float, float], uses: Sequence[Cell], *, unit: str = ""
) -> Row:
    """A value that printed words or an order put into a range."""
    keys = tuple(cell.key for cell in uses)
    return Row(label, ours, unit=unit, claim=claim, interval=(ours, ours), within=within, cells=keys)
