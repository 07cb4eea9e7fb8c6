"""Command-line options: declared with their range, checked by the library's own checks, reported in one line."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn, TypeAlias

from dprmt._validation import ParameterError, check_choice, check_count, check_real

Commands: TypeAlias = "argparse._SubParsersAction[Parser]"
_PICTURES = (".png", ".pdf", ".svg")


class UsageError(Exception):
    """A command line that cannot be carried out; the message is one line."""


class Parser(argparse.ArgumentParser):
    """An argument parser whose errors are one line, without the usage text."""

    def error(self, message: str) -> NoReturn:
        """Raise instead of exiting."""
        raise UsageError(f"{self.prog}: {message}")


@dataclass(frozen=True)
class Option:
    """One option.

    Attributes
    ----------
    flag : str
        With its dashes.
    read : callable
        Turns (name, text) into the value or raises :class:`ParameterError`.
    help : str
        With the allowed range.
    required : bool
        Whether it must be given.
    default : object
        The value where it is not given.
    """

    flag: str
    read: Callable[[str, str], Any]
    help: str
    required: bool = False
    default: Any = None

    @property
    def dest(self) -> str:
        """Its attribute in the parsed namespace."""
        return self.flag.lstrip("-").replace("-", "_")

    def add_to(self, parser: argparse.ArgumentParser) -> None:
        """Declare it; its text is read later, by :func:`read_options`."""
        parser.add_argument(self.flag, dest=self.dest, required=self.required, metavar="X", help=self.help)


def real(**limits: Any) -> Callable[[str, str], float]:
    """A reader of finite numbers within limits, see :func:`dprmt._validation.check_real`."""

    def read(name: str, text: str) -> float:
        try:
            return check_real(name, float(text), **limits)
        except ValueError as error:
            raise ParameterError(name, text, _allowed(error, check_real, **limits)) from None

    return read


def count(low: int = 1, high: int | None = None) -> Callable[[str, str], int]:
    """A reader of integers within limits."""

    def read(name: str, text: str) -> int:
        try:
            return check_count(name, int(text), low=low, high=high)
        except ValueError as error:
            raise ParameterError(name, text, _allowed(error, check_count, low=low, high=high)) from None

    return read


def choice(*choices: str) -> Callable[[str, str], str]:
    """A reader of one of several words."""

    def read(name: str, text: str) -> str:
        return check_choice(name, text, choices)

    return read


def yes_or_no(name: str, text: str) -> bool:
    """A reader of a claim that is made or not; for :class:`Option`.

    Returns
    -------
    bool
        Whether it is made.
    """
    return check_choice(name, text, ("yes", "no")) == "yes"


def _allowed(error: ValueError, check: Callable[..., Any], **limits: Any) -> str:
    """The allowed range in words, also where the text was not even a number."""
    if isinstance(error, ParameterError):
        return error.allowed
    try:
        check("", None, **limits)
    except ParameterError as described:
        return described.allowed
    raise AssertionError("a check accepted None")


def read_options(namespace: argparse.Namespace, options: tuple[Option, ...]) -> dict[str, Any]:
    """Values of all options, checked."""
    values = {}
    for option in options:
        text = getattr(namespace, option.dest)
        values[option.dest] = option.default if text is None else option.read(option.dest, text)
    return values


def add_command_with(
    commands: Commands,
    name: str,
    summary: str,
    options: tuple[Option, ...],
    run: Callable[[argparse.Namespace], None],
) -> Parser:
    """Declare a command with its options and ``--json``."""
    parser = commands.add_parser(name, help=summary, description=summary, allow_abbrev=False)
    for option in options:
        option.add_to(parser)
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout and nothing else")
    parser.set_defaults(run=run)
    return parser


def check_picture_name(command: str, name: str) -> None:
    """Refuse, before any work, the value of ``--plot`` if no picture could be written there."""
    path = Path(name)
    if path.suffix.lower() not in _PICTURES:
        _refuse_picture(command, "a file name that ends in .png, .pdf or .svg", name)
    if not path.parent.is_dir() or path.is_dir():
        _refuse_picture(command, "a file in an existing folder", name)
    if not os.access(path.parent, os.W_OK):
        _refuse_picture(command, "a file in a folder that can be written", name)


def _refuse_picture(command: str, allowed: str, name: str) -> NoReturn:
    raise UsageError(f"{command}: --plot must be {allowed}, got {name!r}")
