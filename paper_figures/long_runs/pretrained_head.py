"""``pretrained-head train | page``: the study on digits again, of a head on a frozen MiniLM."""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Sequence
from pathlib import Path

from paper_figures._reproduction import RESULTS
from paper_figures.long_runs.digits import PAGE

STORED = RESULTS / "raw" / "pretrained-head.json"
NAME = "pretrained-head"


def main(arguments: Sequence[str]) -> None:
    """Carry out the command line."""
    options = _parser().parse_args(arguments)
    {"train": _train, "page": _page}[options.command](options)


def _parser() -> argparse.ArgumentParser:
    description = __doc__.split(": ", 1)[1]
    parser = argparse.ArgumentParser(prog=f"python -m paper_figures study {NAME}", description=description)
    commands = parser.add_subparsers(dest="command", required=True)
    trainer = commands.add_parser("train", help="tune and train; a stopped study goes on")
    trainer.add_argument("folder", help="where the pieces and what MiniLM makes of the texts are kept")
    commands.add_parser("page", help=f"write the tables into {PAGE.name}")
    return parser


def _train(options: argparse.Namespace) -> None:
    from paper_figures._pieces import Pieces, cpu_seconds
    from paper_figures.digits import ALSO, HEADS, docstring_features, of_method, tuned_and_run

    folder = Path(options.folder)
    pieces, texts = Pieces(folder, NAME, "study"), docstring_features(folder / "features")
    found = tuned_and_run(pieces, texts, HEADS)
    for name, results in found.items():
        results["also"] = {also: of_method(pieces, texts, name, HEADS[name], also) for also in ALSO}
    seconds = round(pieces.earlier_seconds + cpu_seconds())
    texts_of = [len(labels) for _, labels in (texts.train, texts.tune, texts.test)]
    stored = {"cpu_seconds": seconds, "texts": texts_of, "settings": found}
    STORED.write_text(json.dumps(stored, separators=(",", ":")) + os.linesep)
    print(f"stored {STORED.name} ({seconds} s of processor time)")


def _page(options: argparse.Namespace) -> None:
    del options
    from paper_figures.digits import with_tables

    stored = json.loads(STORED.read_text())
    PAGE.write_text(with_tables(PAGE.read_text(encoding="utf-8"), stored["settings"], NAME), encoding="utf-8")
