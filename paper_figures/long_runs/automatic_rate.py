"""A rate that sets itself from what a private run releases, held against grids of rates and other rules.

Usage: ``python -m paper_figures study automatic-rate [--data FOLDER] [--features FOLDER] [--tables]``

Runs what is not stored yet, in ``results/raw/automatic-rate-small.jsonl``; a study that is stopped goes on where it
was. Then tables and a picture go into ``docs/theory/automatic_rate.md``, of the runs that are stored.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from dprmt._files import read_lines, write_whole
from paper_figures._needs import DATA
from paper_figures._picture import picture
from paper_figures._pieces import Pieces, raw_file
from paper_figures._reproduction import RESULTS
from paper_figures.automatic_rate import draw, tasks, text

DOCS = Path(__file__).parents[2] / "docs"
PAGE, PICTURE = DOCS / "theory" / "automatic_rate.md", DOCS / "images" / "automatic_rate.png"
BEGIN, END = "<!-- tables of the study -->", "<!-- end of the tables -->"


def main(arguments: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m paper_figures study automatic-rate", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("--data", metavar="FOLDER", help="where mnist/ and sst2/ lie")
    parser.add_argument("--features", metavar="FOLDER", default="features", help="where features of texts are kept")
    parser.add_argument("--tables", action="store_true", help="train nothing, write what is stored")
    options = parser.parse_args(arguments)
    if options.data:
        os.environ[DATA] = options.data
    if not options.tables:
        torch.set_num_threads(1)
        Pieces(RESULTS, "automatic-rate", "small").measure(tasks(Path(options.features)))
    values = stored()
    found = text(values)
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    write_whole(PAGE, f"{before}{BEGIN}\n{found}\n{END}{rest.partition(END)[2]}")
    picture(PICTURE, lambda axes: draw(axes, values))
    print(found)


def stored() -> dict[str, Any]:
    """The runs that are known."""
    return {line["name"]: line["value"] for line in read_lines(raw_file(RESULTS, "automatic-rate", "small"))}
