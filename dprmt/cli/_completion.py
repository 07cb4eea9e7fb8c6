"""Completion scripts for shells, by shtab."""

from __future__ import annotations

import argparse
import sys
from typing import Any, NoReturn

from dprmt._validation import how_to_install
from dprmt.cli._options import Parser, UsageError

_FILES = ("FILE", "OUT", "DIR")
_SHELLS = ("bash", "zsh", "tcsh", "fish")


def add_completion(parser: Parser) -> None:
    """Declare ``--print-completion``."""
    words = "the completion script of a shell: bash, zsh, tcsh or fish (needs the extra completion)"
    parser.add_argument("--print-completion", action=_Print, choices=_SHELLS, metavar="SHELL", help=words)


class _Print(argparse.Action):
    def __call__(self, parser: argparse.ArgumentParser, *rest: Any) -> NoReturn:
        try:
            import shtab
        except ModuleNotFoundError:
            raise UsageError(f"dprmt: --print-completion needs shtab: {how_to_install('completion')}") from None
        for command in self._commands(parser):
            for action in command._actions:
                if action.metavar in _FILES:
                    action.complete = shtab.FILE  # type: ignore[attr-defined]
                if action.metavar == "RECIPE":
                    action.complete = _recipe_or_file()  # type: ignore[attr-defined]
                if action.metavar == "NAME" and command.prog == "dprmt recipes":
                    action.choices = _recipes()
                if words := getattr(action, "words", ()):
                    action.choices = words
        sys.stdout.write(shtab.complete(parser, rest[1], preamble=_functions()) + "\n")
        raise SystemExit(0)

    def _commands(self, parser: argparse.ArgumentParser) -> list[argparse.ArgumentParser]:
        (subparsers,) = (action for action in parser._actions if isinstance(action, argparse._SubParsersAction))
        return list(subparsers.choices.values())


def _recipes() -> tuple[str, ...]:
    from dprmt.training.recipes import builtin_recipes

    return builtin_recipes()


def _recipe_or_file() -> dict[str, str]:
    # Names of a shell's functions, or its own words for what completes; tcsh has no function and takes files alone.
    fish = f"{' '.join(_recipes())} (__fish_complete_path (commandline -ct))"
    return {"bash": "_dprmt_recipes", "zsh": "_dprmt_recipes", "tcsh": "f", "fish": fish}


def _functions() -> dict[str, str]:
    names = " ".join(_recipes())
    bash = f'_dprmt_recipes() {{ compgen -W "{names}" -- "$1"; compgen -f -- "$1"; }}'
    zsh = f"_dprmt_recipes() {{ _alternative 'recipes:recipe:({names})' 'files:file:_files'; }}"
    return {"bash": bash, "zsh": zsh}
