"""What telemetry reads of private runs, held against the clean gradients; writes its tables into the theory page.

Usage: ``python -m paper_figures study telemetry [--data FOLDER] [--tables]``

Trains the runs that are not stored yet, small models, MiniLM and SmolLM2 (whose package it needs), each with labels as
they are, shuffled, or without data, and keeps them in ``results/raw/telemetry-small.jsonl``; a study that is stopped
goes on where it was. Then three tables go into ``docs/theory/telemetry.md``, of the runs that are stored.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dprmt._files import read_lines, write_whole
from dprmt.report import Table
from paper_figures._needs import DATA
from paper_figures._pieces import Pieces, raw_file
from paper_figures._reproduction import RESULTS
from paper_figures.telemetry import RUNS, coverage, first_spikes, nulls

PAGE = Path(__file__).parents[2] / "docs" / "theory" / "telemetry.md"
BEGIN, END = "<!-- tables of the study -->", "<!-- end of the tables -->"


def main(arguments: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m paper_figures study telemetry", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("--data", metavar="FOLDER", help="where sst2/ and e2e/ lie")
    parser.add_argument("--tables", action="store_true", help="train nothing, write the tables of what is stored")
    options = parser.parse_args(arguments)
    if options.data:
        os.environ[DATA] = options.data
    if not options.tables:
        Pieces(RESULTS, "telemetry", "small").measure({run.name: run.train for run in RUNS})
    text = tables(stored())
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    write_whole(PAGE, f"{before}{BEGIN}\n{text}\n{END}{rest.partition(END)[2]}")
    print(text)


def stored() -> dict[str, Any]:
    """The runs that are known, in the study's order."""
    file = raw_file(RESULTS, "telemetry", "small")
    known = {line["name"]: line["value"] for line in read_lines(file)} if file.exists() else {}
    return {run.name: known[run.name] for run in RUNS if run.name in known}


def tables(values: dict[str, Any]) -> str:
    """All three, and how many runs of the study they are of."""
    parts = [f"{len(values)} of {len(RUNS)} runs."]
    for table in (coverage(values), first_spikes(values), nulls(values)):
        parts += ["", f"*{table.caption}*", "", *_lines(table)]
    return "\n".join(parts)


def _lines(table: Table) -> list[str]:
    rows = [table.header, ["---"] * len(table.header), *table.rows]
    return ["| " + " | ".join(row) + " |" for row in rows]
