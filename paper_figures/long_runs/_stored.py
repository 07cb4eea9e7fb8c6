"""Command lines of studies whose results are one JSON file, from which a page is written."""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paper_figures._pieces import Pieces, cpu_seconds
from paper_figures._reproduction import RESULTS

PAGE = Path(__file__).parents[2] / "docs" / "theory" / "when_denoising_helps.md"
Options = argparse.Namespace


@dataclass(frozen=True)
class StoredStudy:
    """A study by its name after ``python -m paper_figures study``.

    Attributes
    ----------
    name, description : str
    commands : mapping
        What measures and stores, by the word for it: a line of help, and a function of the options.
    page : callable
        The page with what is stored, from the page and from what is stored.
    data : str
        What ``--data`` holds; "" if nothing is needed.
    settings : tuple of str
        Names of which ``--settings`` chooses.
    """

    name: str
    description: str
    commands: Mapping[str, tuple[str, Callable[[Options], None]]]
    page: Callable[[str, Any], str]
    data: str = ""
    settings: tuple[str, ...] = ()

    @property
    def file(self) -> Path:
        """Where the results are."""
        return stored_file(self.name)

    def main(self, arguments: Sequence[str]) -> None:
        """Carry out the command line."""
        options = self._parser().parse_args(arguments)
        if options.command == "page":
            PAGE.write_text(self.page(PAGE.read_text(encoding="utf-8"), read(self.file)), encoding="utf-8")
        else:
            self.commands[options.command][1](options)

    def _parser(self) -> argparse.ArgumentParser:
        description = self.description.split(": ", 1)[1]
        parser = argparse.ArgumentParser(prog=f"python -m paper_figures study {self.name}", description=description)
        commands = parser.add_subparsers(dest="command", required=True)
        for word, (words, _) in self.commands.items():
            command = commands.add_parser(word, help=words)
            command.add_argument("folder", help="where the pieces are kept; a stopped study goes on")
            if self.data:
                command.add_argument("--data", required=True, metavar="FOLDER", help=f"where {self.data} lies")
            if self.settings:
                command.add_argument(
                    "--settings", nargs="+", choices=self.settings, metavar="NAME", help="all, or these"
                )
        commands.add_parser("page", help=f"write what is stored into {PAGE.name}")
        return parser


def stored_file(name: str) -> Path:
    """The results of a study."""
    return RESULTS / "raw" / f"{name}.json"


def read(file: Path) -> Any:
    """What is stored."""
    return json.loads(file.read_text(encoding="utf-8"))


def write(file: Path, values: Mapping[str, Any]) -> None:
    """Store results."""
    file.write_text(json.dumps(values, separators=(",", ":")) + os.linesep)


def store(file: Path, values: Mapping[str, Any], pieces: Pieces) -> None:
    """Write results with the processor time of these pieces, earlier calls included."""
    seconds = round(pieces.earlier_seconds + cpu_seconds())
    write(file, {"cpu_seconds": seconds, **values})
    print(f"stored {file.name} ({seconds} s of processor time)")
