"""Command-line options: declared with their range, checked by the library's own checks, reported in one line."""

from __future__ import annotations

import argparse
import math
import os
import re
import sys
import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from pathlib import Path
from typing import Any, Generic, NoReturn, TypeAlias, TypeVar

from dprmt._validation import ParameterError, check_choice, check_count, check_real, did_you_mean
from dprmt.cli._summaries import SUMMARIES

Commands: TypeAlias = "argparse._SubParsersAction[Parser]"
AnyNumber = TypeVar("AnyNumber", float, int)
_PICTURES = (".png", ".pdf", ".svg")
_MANY = 8  # options that a usage line does not list
_NEGATIVE = re.compile(r"-(\.?\d|inf|nan)")


class UsageError(Exception):
    """A command line that cannot be carried out; the message is one line."""


class HelpFormatter(argparse.RawDescriptionHelpFormatter):
    """Help as it is written, except for prose under a heading: that is filled to the terminal's width."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=30)

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        blocks = re.split(r"(?m)^(?=\S)", text)  # a heading and what is indented under it
        return "".join(_filled(block, min(width, 118)) for block in blocks)


def _filled(block: str, width: int) -> str:
    heading, _, prose = block.partition("\n")
    if heading != "what the answer means:":
        return block
    words = textwrap.wrap(" ".join(prose.split()), max(24, width), initial_indent="  ", subsequent_indent="  ")
    return "\n".join([heading, *words, "", ""])


class Parser(argparse.ArgumentParser):
    """An argument parser whose errors are one line, without the usage text, and that takes ``-1e-5`` for a number."""

    def __init__(self, **options: Any) -> None:
        super().__init__(formatter_class=HelpFormatter, allow_abbrev=False, **options)
        self._negative_number_matcher = _NEGATIVE  # argparse's own knows no -1e-5, -inf and -nan

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Refuse unknown options before argparse, which would first ask for the one that a wrong word stands for."""
        for word in sys.argv[1:] if args is None else args:
            name = word.partition("=")[0]
            if name == "--" or (self._subparsers is not None and not word.startswith("-")):
                break  # what comes after a command's name is the command's
            if name.startswith("--") and name not in self._option_string_actions:
                known = [option for option in self._option_string_actions if option.startswith("--")]
                self.error(f"no such option: {name}{did_you_mean(name, known)}")
        return super().parse_known_args(args, namespace)

    def error(self, message: str) -> NoReturn:
        """Raise instead of exiting."""
        message = re.sub(r"^argument (\S+): must", r"\1 must", message)
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
    metavar : str
        What stands for the value in the help; the words of a choice by default.
    is_flag : bool
        Whether it takes no value; its text is "yes" where it is given.
    is_list : bool
        Whether it may be repeated; ``read`` then gets all texts.
    group : str
        Heading in the help; none by default.
    dest : str
        Its attribute in the parsed namespace.
    """

    flag: str
    read: Callable[[str, str], Any]
    help: str
    required: bool = False
    default: Any = None
    metavar: str = ""
    is_flag: bool = False
    is_list: bool = False
    group: str = ""
    dest: str = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "dest", self.flag.lstrip("-").replace("-", "_"))

    def add_to(self, parser: argparse._ActionsContainer) -> None:
        """Declare it; its text is read later, by :func:`read_options`."""
        if self.is_flag:
            parser.add_argument(self.flag, dest=self.dest, action="store_const", const="yes", help=self.help)
            return
        choices = self.read.words if isinstance(self.read, Choice) else ()
        words = "{" + ",".join(choices) + "}" if choices else "X"
        metavar = self.metavar or words
        action = "append" if self.is_list else "store"
        made = parser.add_argument(
            self.flag, dest=self.dest, required=self.required, metavar=metavar, help=self.help, action=action
        )
        made.words = choices  # type: ignore[attr-defined]  # what a shell completes


def grouped(heading: str, *options: Option) -> tuple[Option, ...]:
    """The options under a heading of the help."""
    return tuple(replace(option, group=heading) for option in options)


@dataclass(frozen=True)
class Choice:
    """A reader of one of several words."""

    words: tuple[str, ...]

    def __call__(self, name: str, text: str) -> str:
        """The word, checked."""
        return check_choice(name, text, self.words)


@dataclass(frozen=True, eq=False)
class Number(Generic[AnyNumber]):
    """A reader of one kind of numbers within limits, which ``check`` knows in words."""

    kind: type[AnyNumber]
    check: Callable[..., AnyNumber]
    limits: dict[str, Any]

    def __call__(self, name: str, text: str) -> AnyNumber:
        """The number, checked."""
        try:
            return self.check(name, _number(self.kind, text), **self.limits)
        except (ValueError, ArithmeticError) as error:
            raise ParameterError(name, text, _allowed(error, self.check, **self.limits)) from None


def _number(kind: type[AnyNumber], text: str) -> AnyNumber:
    """A number from its text: 1e5 is an integer, too; 1/60000 is rounded down, the safe side of δ and σ."""
    if kind is float and "/" in text:
        exact = Fraction(text)
        value = float(exact)
        return kind(value if Fraction(value) <= exact else math.nextafter(value, -math.inf))
    if kind is int and "e" in text.lower():
        value = float(text)
        if not value.is_integer() or abs(value) > 2.0**53:
            raise ValueError(text)
        return kind(value)
    return kind(text)


def real(**limits: Any) -> Number[float]:
    """A reader of finite numbers within limits, see :func:`dprmt._validation.check_real`."""
    return Number(float, check_real, limits)


def count(low: int = 1, high: int | None = None) -> Number[int]:
    """A reader of integers within limits."""
    return Number(int, check_count, {"low": low, "high": high})


def choice(*words: str) -> Choice:
    """A reader of one of several words."""
    return Choice(words)


def share(low: float) -> Callable[[str, str], float]:
    """A reader of numbers in [low, 1], as decimals, or as fractions such as ``2000/67349``, rounded up."""

    def read(name: str, text: str) -> float:
        allowed = f"a number or a fraction such as 2000/67349 in [{low:g}, 1]"
        try:
            value = rounded_up(Fraction(text)) if "/" in text else float(text)
        except (ValueError, ArithmeticError):
            raise ParameterError(name, text, allowed) from None
        if not low <= value <= 1.0:
            raise ParameterError(name, text, allowed)
        return value

    return read


def rounded_up(exact: Fraction) -> float:
    """The smallest float that is not below."""
    value = float(exact)
    return value if Fraction(value) >= exact else math.nextafter(value, math.inf)


def name_of(what: str) -> Callable[[str], str]:
    """A reader of names that are not empty, for ``add_argument(type=name_of("a file"))``."""

    def read(text: str) -> str:
        if not text.strip():
            raise argparse.ArgumentTypeError(f"must be the name of {what}, got {text!r}")
        return text

    return read


def yes_or_no(name: str, text: str) -> bool:
    """A reader of yes and no."""
    return check_choice(name, text, ("yes", "no")) == "yes"


def _allowed(error: Exception, check: Callable[..., Any], **limits: Any) -> str:
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


def leave_out(values: Mapping[str, Any], names: tuple[str, ...], where: str, needed: tuple[str, ...] = ()) -> None:
    """Refuse all options at once that mean nothing beside another one, and name those that it needs."""
    given = [name for name in names if values.get(name)]  # no option means anything at 0
    missing = [name for name in needed if values[name] is None]
    also = f", and so must {_flags(given[1:])}" if given[1:] else ""
    if given:
        value = "given" if values[given[0]] is True else values[given[0]]
        instead = f"; give {_flags(missing)} instead" if missing else ""
        raise ParameterError(given[0], value, f"left out where {where}{also}{instead}")
    if missing:
        more = f" with {_flags(missing[1:])}" if missing[1:] else ""
        raise ParameterError(missing[0], None, f"given{more} where {where}")


def _flags(names: Sequence[str]) -> str:
    return " and ".join(f"--{name.replace('_', '-')}" for name in names)


def add_command_with(
    commands: Commands,
    name: str,
    options: tuple[Option, ...],
    run: Callable[[argparse.Namespace], int | None],
    epilog: str,
) -> Parser:
    """Declare a command with its options and ``--json``."""
    summary = SUMMARIES[name]
    parser = commands.add_parser(name, help=summary, description=summary, epilog=epilog)
    if len(options) > _MANY:
        parser.usage = f"{parser.prog} [options]"
    headings = {
        heading: parser.add_argument_group(heading) for heading in dict.fromkeys(o.group for o in options if o.group)
    }
    for option in options:
        option.add_to(headings.get(option.group, parser))
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout and nothing else")
    parser.set_defaults(run=run)
    return parser


def check_picture_name(command: str, name: str) -> None:
    """Refuse, before any work, the value of ``--plot`` if no picture could be written there."""
    place = Path(name)
    if place.suffix.lower() not in _PICTURES:
        _refuse_picture(command, "a file name that ends in .png, .pdf or .svg", name)
    if not place.parent.is_dir() or place.is_dir():
        _refuse_picture(command, "a file in an existing folder", name)
    if not os.access(place.parent, os.W_OK):
        _refuse_picture(command, "a file in a folder that can be written", name)


def _refuse_picture(command: str, allowed: str, name: str) -> NoReturn:
    raise UsageError(f"{command}: --plot must be {allowed}, got {name!r}")
