"""What the checks gave, kept next to the results, and how a check is shown."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass

from dprmt._files import strict_json, write_whole
from paper_figures._pieces import cpu_seconds
from paper_figures._published import published
from paper_figures._reproduction import RESULTS, Row, said
from paper_figures._rows import table_of
from paper_figures.forensics._check import Check

FILE = RESULTS / "forensics.json"


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
