"""Where the gate opens: the top singular value of clean gradients over the noise, by layer, batch, step and ε.

Usage: ``python -m paper_figures study gate-map train [--settings NAME …] [--data FOLDER]``, then ``… gate-map page``,
which writes its tables and picture into ``docs/theory/when_denoising_helps.md``.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from pathlib import Path

from dprmt._files import append_line, read_lines
from paper_figures._needs import DATA
from paper_figures._pieces import cpu_seconds
from paper_figures._reproduction import RESULTS
from paper_figures.denoising._map import SETTINGS, label, looks
from paper_figures.long_runs._options import study_parser


def main(arguments: Sequence[str]) -> None:
    """Carry out the command."""
    parser = study_parser("gate-map", __doc__)
    parser.add_argument("action", choices=("train", "page"))
    parser.add_argument("--settings", nargs="+", choices=list(SETTINGS), default=list(SETTINGS), metavar="NAME")
    parser.add_argument("--data", metavar="FOLDER", help="where e2e/, dart/ and sst2/ lie")
    parser.add_argument("--results", metavar="FILE", default=str(RESULTS / "raw" / "gate-map.jsonl"))
    parser.add_argument("--minutes", type=float, metavar="N", help="a look ends after so long, at the batches reached")
    options = parser.parse_args(arguments)
    if options.action == "train":
        _train(options)
        return
    from paper_figures.denoising._map_page import write

    write(Path(options.results))


def _train(options: argparse.Namespace) -> None:
    # A setting whose looks are all there is not trained again.
    if options.data:
        os.environ[DATA] = options.data
    file = Path(options.results)
    for name in options.settings:
        known = {line["name"] for line in read_lines(file)} if file.exists() else set()
        if all(label(name, step) in known for step in SETTINGS[name].stages):
            print(f"{name}: stored")
            continue
        before = cpu_seconds()
        for stored_as, seen in looks(name, known, options.minutes):
            append_line(file, {"name": stored_as, "cpu_seconds": round(cpu_seconds() - before, 1), "value": seen})
            print(f"{stored_as}: {len(seen['layers'])} matrices, {cpu_seconds() - before:.0f} s")
