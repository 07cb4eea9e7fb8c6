"""``layer-gains train | page``: what maps of a noisy gradient gain on MiniLM's last layer, predicted and measured."""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Sequence
from pathlib import Path

from paper_figures._reproduction import RESULTS
from paper_figures.long_runs.digits import PAGE

STORED = RESULTS / "raw" / "layer-gains.json"
NAME = "layer-gains"


def main(arguments: Sequence[str]) -> None:
    """Carry out the command line."""
    options = _parser().parse_args(arguments)
    {"train": _train, "page": _page}[options.command](options)


def _parser() -> argparse.ArgumentParser:
    description = __doc__.split(": ", 1)[1]
    parser = argparse.ArgumentParser(prog=f"python -m paper_figures study {NAME}", description=description)
    commands = parser.add_subparsers(dest="command", required=True)
    trainer = commands.add_parser("train", help="draw and measure; a stopped study goes on")
    trainer.add_argument("folder", help="where the pieces are kept")
    commands.add_parser("page", help=f"write the table into {PAGE.name}")
    return parser


def _train(options: argparse.Namespace) -> None:
    from functools import partial

    from paper_figures._pieces import Pieces, cpu_seconds
    from paper_figures.denoising._gain_model import curvatures
    from paper_figures.denoising._gains import STRENGTHS, around, expected, measured

    pieces, found = Pieces(Path(options.folder), NAME, "study"), {}
    for name, curvature in curvatures():
        tasks = {f"{name} at {strength:g}": partial(measured, curvature, strength) for strength in STRENGTHS}
        theory = {f"{name} expected at {strength:g}": partial(expected, curvature, strength) for strength in STRENGTHS}
        values = pieces.measure({**tasks, f"{name} around": partial(around, curvature), **theory})
        found[name] = {
            f"{strength:g}": {
                **values[f"{name} at {strength:g}"],
                **values[f"{name} around"],
                "expected": values[f"{name} expected at {strength:g}"],
            }
            for strength in STRENGTHS
        }
    seconds = round(pieces.earlier_seconds + cpu_seconds())
    STORED.write_text(json.dumps({"cpu_seconds": seconds, "matrices": found}, separators=(",", ":")) + os.linesep)
    print(f"stored {STORED.name} ({seconds} s of processor time)")


def _page(options: argparse.Namespace) -> None:
    del options
    from paper_figures.denoising._gains_page import with_table

    stored = json.loads(STORED.read_text())
    PAGE.write_text(with_table(PAGE.read_text(encoding="utf-8"), stored["matrices"]), encoding="utf-8")
