"""One relation between printed numbers, rows that say whether it holds, and what all relations gave, stored."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from dprmt._files import strict_json, write_whole
from paper_figures._pieces import cpu_seconds
from paper_figures._published import Cell, Published, published
from paper_figures._reproduction import RESULTS, Row, said, table_of
from paper_figures._verdict import Reason

FILE = RESULTS / "forensics.json"
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


@dataclass(frozen=True)
class Kept:
    """One check."""

    rows: tuple[Row, ...]
    cpu_seconds: float


def run(checks: Iterable[Check]) -> dict[str, Kept]:
    """Compute, and keep beside what is there of others."""
    found = {}
    for check in checks:
        began = cpu_seconds()
        rows = tuple(check.rows(published))
        found[check.name] = Kept(rows, round(cpu_seconds() - began, 2))
    known = {
        name: {"rows": [said(row) for row in kept.rows], "cpu_seconds": kept.cpu_seconds}
        for name, kept in (stored() | found).items()
    }
    write_whole(FILE, strict_json(known, indent=1) + "\n")
    return found


def stored() -> dict[str, Kept]:
    """What was kept."""
    content = json.loads(FILE.read_text(encoding="utf-8")) if FILE.exists() else {}
    return {
        name: Kept(tuple(Row(**row) for row in kept["rows"]), kept["cpu_seconds"]) for name, kept in content.items()
    }


def details(check: Check, kept: Kept) -> str:
    """Return all rows of a check, and why some differ."""
    lines = [f"## {check.title}", "", check.how, "", *table_of(kept.rows)]
    if any(row.verdict() == "differs" for row in kept.rows):
        lines += ["", *(f"- {reason.sentence()}" for reason in check.reasons)]
    return "\n".join([*lines, "", f"`{check.command}`"]) + "\n"
