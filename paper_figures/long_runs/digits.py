"""``digits train | page``: denoisers and filters beside tuned Adam on digits, where spectra do stand out."""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Sequence
from pathlib import Path

from paper_figures._reproduction import RESULTS

STORED = RESULTS / "raw" / "digits.json"
PAGE = Path(__file__).parents[2] / "docs" / "theory" / "when_denoising_helps.md"


def main(arguments: Sequence[str]) -> None:
    """Carry out the command line."""
    options = _parser().parse_args(arguments)
    {"train": _train, "more": _more, "page": _page}[options.command](options)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m paper_figures study digits", description=__doc__.split(": ", 1)[1])
    commands = parser.add_subparsers(dest="command", required=True)
    for command, words in {
        "train": "tune and train; a stopped study goes on",
        "more": "nulls, for what train has stored",
    }.items():
        trainer = commands.add_parser(command, help=words)
        trainer.add_argument("folder", help="where the pieces are kept")
        trainer.add_argument("--data", required=True, metavar="FOLDER", help="where mnist/ lies")
    commands.add_parser("page", help=f"write the tables into {PAGE.name}")
    return parser


def _train(options: argparse.Namespace) -> None:
    from paper_figures._pieces import Pieces, cpu_seconds
    from paper_figures.digits import split_images, tuned_and_run

    pieces = Pieces(Path(options.folder), "digits", "study")
    found = tuned_and_run(pieces, split_images(Path(options.data)))
    seconds = round(pieces.earlier_seconds + cpu_seconds())
    STORED.write_text(json.dumps({"cpu_seconds": seconds, "settings": found}, separators=(",", ":")) + os.linesep)
    print(f"stored {STORED.name} ({seconds} s of processor time)")


def _more(options: argparse.Namespace) -> None:
    from paper_figures._pieces import Pieces, cpu_seconds
    from paper_figures.digits import SETTINGS, null_columns, split_images

    stored = json.loads(STORED.read_text())
    pieces, images = Pieces(Path(options.folder), "digits", "more"), split_images(Path(options.data))
    settings = dict(reversed(stored["settings"].items()))  # the cheaper one first
    for name, results in settings.items():
        rate = results["methods"]["Adam"]["rate"]
        results["nulls"] = null_columns(pieces, images, name, SETTINGS[name], rate)
    stored["more_cpu_seconds"] = round(pieces.earlier_seconds + cpu_seconds())
    STORED.write_text(json.dumps(stored, separators=(",", ":")) + os.linesep)
    print(f"stored {STORED.name} ({stored['more_cpu_seconds']} s of processor time)")


def _page(options: argparse.Namespace) -> None:
    del options
    from paper_figures.digits import with_tables

    stored = json.loads(STORED.read_text())
    PAGE.write_text(with_tables(PAGE.read_text(encoding="utf-8"), stored["settings"]), encoding="utf-8")
