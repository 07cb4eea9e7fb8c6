"""Options as data: each declared once with its range, read by the library's own checks, refused in one line.

To add an option to a command, add one :class:`Option` to the tuple of options that the command names, and read its
value from :func:`read_options`. Options of training runs are in ``_values.py``, with what turns them into the
library's values; they then hold for every accounting command and for ``--phase`` and ``--phases``.
"""

from __future__ import annotations

import argparse
import math
import os
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from pathlib import Path
from typing import Any, NoReturn, TypeAlias

from dprmt._validation import ParameterError, check_choice, check_count, check_real, did_you_mean

Commands: TypeAlias = "argparse._SubParsersAction[Parser]"
Reader: TypeAlias = Callable[[str, Any], Any]
SUMMARIES = {
    "epsilon": "compute ε of a training run at δ",
    "noise": "find the smallest noise multiplier for a target (ε, δ), or for what an attacker may reach",
    "steps": "find the largest number of steps for a budget (ε, δ), or for what is left of it",
    "delta": "compute δ of a training run at ε",
    "probes": "split a budget of products per layer between sketch and probes, with the ε of each choice",
    "tradeoff": "compute the trade-off curve of a training run (f-DP), as csv, JSON or picture",
    "statement": "write the privacy report of a run: what may be stated, in Markdown or JSON, and what not",
    "spectrum": "compare the singular values of noisy matrices with those of the noise",
    "plan": "measure what a recipe's steps cost by every norm method: time, memory, ε; and recommend one",
    "train": "train a model from a recipe with differential privacy, and record what it cost",
    "recipes": "list the recipes that come with the package, or print one in full",
    "report": "compare theory with measurements on real gradients, or show a finished run, on one HTML page",
    "verify": "prove or refute statements of ε in ball arithmetic, from dprmt or any other source",
}
MEANING = (
    "An attacker who sees everything that training releases can distinguish a run with any one sample from the same run"
    " in which that sample has no gradient only as well as (ε, δ) allows: zero-out neighbours, with a public number of"
    " samples; --neighbours and --group ask about others. The larger of both directions counts. It holds for Poisson"
    " sampling, or for the scheme that --sampling names, if gradients are clipped as stated and sums are divided by the"
    " expected batch size. For batches from a shuffled order use --sampling fixed-order: it gives no credit for the"
    " shuffle."
)
MEANING_IN_SHORT = """\
what the answer means: how well an attacker who sees all that is released can tell whether one sample was used
(zero-out neighbours, Poisson sampling, unless options say otherwise); dprmt --help has the conditions
"""
_PICTURES = (".png", ".pdf", ".svg")
_MANY = 8  # options that a usage line does not list
_NEGATIVE = re.compile(r"-(\.?\d|inf|nan)")


class UsageError(Exception):
    """A command line that cannot be carried out; the message is one line."""


class Parser(argparse.ArgumentParser):
    """An argument parser whose errors are one line, without the usage text, and that takes ``-1e-5`` for a number."""

    def __init__(self, **options: Any) -> None:
        def formatter(prog: str) -> argparse.HelpFormatter:
            return argparse.RawDescriptionHelpFormatter(prog, max_help_position=30)

        super().__init__(formatter_class=formatter, allow_abbrev=False, **options)
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

    def shown(self, name: str) -> str:
        """The option of this name as it is written on the command line; of no option, the name itself."""
        for action in self._actions:
            if action.dest == name:
                return action.option_strings[-1] if action.option_strings else str(action.metavar)
        return name


@dataclass(frozen=True)
class Option:
    """One option, or one word without a flag.

    Attributes
    ----------
    flag : str
        With its dashes; without any, a word that stands alone.
    read : callable or tuple of str
        Turns (name, text) into the value or raises :class:`ParameterError`; or the words of a choice.
    help : str
        With the allowed range.
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
    more : mapping
        Further arguments of ``add_argument``.
    dest : str
        Its attribute in the parsed namespace.
    """

    flag: str
    read: Reader | tuple[str, ...]
    help: str
    default: Any = None
    metavar: str = ""
    is_flag: bool = False
    is_list: bool = False
    group: str = ""
    more: Mapping[str, Any] = field(default_factory=dict)
    dest: str = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "dest", self.more.get("dest", self.flag.lstrip("-").replace("-", "_")))

    def add_to(self, parser: argparse._ActionsContainer) -> None:
        """Declare it; its text is read later, by :func:`read_options`."""
        words = self.read if isinstance(self.read, tuple) else ()
        more: dict[str, Any] = {"action": "append"} if self.is_list else {}
        more["metavar"] = self.metavar or "{" + ",".join(words) + "}"
        if self.is_flag:
            more = {"action": "store_const", "const": "yes"}
        made = parser.add_argument(self.flag, help=self.help, **more, **self.more)
        made.words = words  # type: ignore[attr-defined]  # what a shell completes

    def value(self, text: Any) -> Any:
        """What a text stands for, checked."""
        if isinstance(self.read, tuple):
            return check_choice(self.dest, text, self.read)
        return self.read(self.dest, text)


def grouped(heading: str, *options: Option) -> tuple[Option, ...]:
    """The options under a heading of the help."""
    return tuple(replace(option, group=heading) for option in options)


def real(**limits: Any) -> Callable[[str, str], float]:
    """A reader of finite numbers within limits, see :func:`dprmt._validation.check_real`."""
    return _number(float, check_real, limits)


def count(low: int = 1, high: int | None = None) -> Callable[[str, str], int]:
    """A reader of integers within limits."""
    return _number(int, check_count, {"low": low, "high": high})


def _number(kind: type, check: Callable[..., Any], limits: dict[str, Any]) -> Reader:
    def read(name: str, text: str) -> Any:
        try:
            value = _parsed(kind, text)
        except (ValueError, ArithmeticError):
            value = None  # which no check accepts
        try:
            return check(name, value, **limits)
        except ParameterError as error:
            raise ParameterError(name, text, error.allowed) from None

    return read


def _parsed(kind: type, text: str) -> Any:
    """A number from its text: 1e5 is an integer, too; 1/60000 is rounded down, the safe side of δ and σ."""
    if kind is float and "/" in text:
        exact = Fraction(text)
        value = float(exact)
        return value if Fraction(value) <= exact else math.nextafter(value, -math.inf)
    if kind is int and "e" in text.lower():
        value = float(text)
        if not value.is_integer() or abs(value) > 2.0**53:
            raise ValueError(text)
        return int(value)
    return kind(text)


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


def named(flag: str, metavar: str, what: str, help: str, **more: Any) -> Option:
    """An option whose value is the name of something, a file say; further arguments are those of ``add_argument``."""
    return Option(flag, as_it_is, help, metavar=metavar, more={"type": name_of(what), **more})


def as_it_is(name: str, text: Any) -> Any:
    """A reader of any text; of a flag, "yes"."""
    del name
    return text


def yes_or_no(name: str, text: str) -> bool:
    """A reader of yes and no."""
    return check_choice(name, text, ("yes", "no")) == "yes"


def flag(name: str, help: str) -> Option:
    """An option that takes no value."""
    return Option(name, yes_or_no, help, is_flag=True)


def read_options(namespace: argparse.Namespace, options: tuple[Option, ...]) -> dict[str, Any]:
    """Values of all options, checked."""
    texts = ((option, getattr(namespace, option.dest, None)) for option in options)
    return {option.dest: option.default if text is None else option.value(text) for option, text in texts}


def leave_out(values: Mapping[str, Any], names: Sequence[str], where: str, needed: Sequence[str] = ()) -> None:
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
    parser.add_argument("--json", action="store_true", help="print one JSON object and nothing else")
    parser.set_defaults(carry_out=run, shown=parser.shown)
    return parser


def check_picture_name(command: str, name: str, option: str = "--plot", endings: tuple[str, ...] = _PICTURES) -> None:
    """Refuse, before any work, the value of an option if no picture, or other file, could be written there."""
    place = Path(name)
    allowed = ""
    if endings and place.suffix.lower() not in endings:
        allowed = "a file name that ends in .png, .pdf or .svg"
    elif not place.parent.is_dir() or place.is_dir():
        allowed = "a file in an existing folder"
    elif not os.access(place.parent, os.W_OK):
        allowed = "a file in a folder that can be written"
    if allowed:
        raise UsageError(f"{command}: {option} must be {allowed}, got {name!r}")
