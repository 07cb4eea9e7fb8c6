"""Completion scripts for shells, by shtab."""

from __future__ import annotations

import argparse
import sys
from typing import Any, NoReturn

from dprmt.cli._options import Parser, UsageError

_FILES = ("FILE", "OUT", "DIR", "RECIPE")


def add_completion(parser: Parser) -> None:
    """Declare ``--print-completion``."""
    words = "the completion script of a shell: bash, zsh or tcsh (needs dprmt[completion])"
    parser.add_argument(
        "--print-completion", action=_Print, choices=("bash", "zsh", "tcsh"), metavar="SHELL", help=words
    )


class _Print(argparse.Action):
    def __call__(self, parser: argparse.ArgumentParser, *rest: Any) -> NoReturn:
        try:
            import shtab
        except ModuleNotFoundError:
            raise UsageError("dprmt: --print-completion needs shtab; install dprmt[completion]") from None
        for command in self._commands(parser):
            for action in command._actions:
                if action.metavar in _FILES:
                    action.complete = shtab.FILE  # type: ignore[attr-defined]
                if str(action.metavar).startswith("{"):
                    action.choices = str(action.metavar).strip("{}").split(",")
        sys.stdout.write(shtab.complete(parser, rest[1]) + "\n")
        raise SystemExit(0)

    def _commands(self, parser: argparse.ArgumentParser) -> list[argparse.ArgumentParser]:
        (subparsers,) = (action for action in parser._actions if isinstance(action, argparse._SubParsersAction))
        return list(subparsers.choices.values())
