"""What all commands share: a parser whose errors are one line, readers of values, and errors of options that conflict.

A command is a file with ``add_command(commands)``, which makes its parser by :func:`add_parser` and adds its options by
``add_argument``. Readers such as ``real(low=0.0)`` are the ``type`` of an option. The options that describe a training
run are in ``_run.py``.
"""

from __future__ import annotations

import argparse
import math
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import Any, NoReturn, TypeAlias

from dprmt._files import parse_json
from dprmt._validation import ParameterError, check_count, check_real, did_you_mean

Commands: TypeAlias = "argparse._SubParsersAction[Parser]"
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


class UsageError(Exception):
    """A command line that cannot be carried out; the message is one line."""


class Parser(argparse.ArgumentParser):
    """An argument parser whose errors are one line, without the usage text, and that takes ``-1e-5`` for a number."""

    def __init__(self, **options: Any) -> None:
        formatter: Any = partial(argparse.RawDescriptionHelpFormatter, max_help_position=30)
        super().__init__(formatter_class=formatter, allow_abbrev=False, **options)
        self._negative_number_matcher = re.compile(r"-(\.?\d|inf|nan)")  # argparse's own knows no -1e-5, -inf and -nan

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Refuse unknown options before argparse, which would first ask for the one that a wrong word stands for."""
        options = self._option_string_actions
        for word in sys.argv[1:] if args is None else args:
            name = word.partition("=")[0]
            if name == "--" or (self._subparsers is not None and not word.startswith("-")):
                break  # what comes after a command's name is the command's
            if name.startswith("--") and name not in options:
                symbols = {f"--{one.metavar}".lower(): option for option, one in options.items() if one.metavar}
                self.error(f"no such option: {name}{did_you_mean(symbols.get(name, name), options)}")
        return super().parse_known_args(args, namespace)

    def error(self, message: str) -> NoReturn:
        """Raise instead of exiting."""
        raise UsageError(re.sub(r"^argument (\S+): must", r"\1 must", message).removeprefix("argument "))

    def shown(self, name: str) -> str:
        """The option of this name as it is written on the command line; of no option, the name itself."""
        for action in self._actions:
            if action.dest == {"rate": "sample_rate"}.get(name, name):
                return action.option_strings[-1] if action.option_strings else str(action.metavar)
        return name

    def read(self, name: str, reader: Callable[[str], Any], text: str) -> Any:
        """What a reader makes of the text of an option; its error is one of the command line."""
        try:
            return reader(text)
        except argparse.ArgumentTypeError as error:
            self.error(f"argument {self.shown(name)}: {error}")


def add_parser(
    commands: Commands,
    name: str,
    run: Callable[..., int | None],
    examples: Sequence[str],
    *,
    about: str = "",
    usage: str = "[options]",
) -> Parser:
    """Declare a command with ``--json``, its epilog, and the function that carries it out, given the namespace."""
    epilog = (
        f"{about}\n" * bool(about)
        + "examples:\n"
        + "".join(f"  dprmt {name} {words}".rstrip() + "\n" for words in examples)
    )
    summary, usage = SUMMARIES[name], f"dprmt {name} {usage}"
    parser = commands.add_parser(name, help=summary, description=summary, epilog=epilog, usage=usage)
    parser.add_argument("--json", action="store_true", help="print one JSON object and nothing else")
    parser.set_defaults(carry_out=run, shown=parser.shown, parser=parser)
    return parser


def refused(text: object, allowed: str) -> argparse.ArgumentTypeError:
    """The error of a reader."""
    return argparse.ArgumentTypeError(f"must be {allowed}, got {text}")


def real(*, up: bool = False, **limits: Any) -> Callable[[str], float]:
    """A reader of finite numbers within limits, see :func:`dprmt._validation.check_real`; 1/60000 is one, too.

    A fraction is rounded down, the safe side of δ and σ, or ``up``.
    """
    return lambda text: _within(text, partial(_real, up=up), check_real, limits)


def count(low: int = 1, high: int | None = None) -> Callable[[str], int]:
    """A reader of integers within limits; 1e5 is one, too."""
    return lambda text: _within(text, _integer, check_count, {"low": low, "high": high})


def _within(text: str, parse: Callable[[str], Any], check: Callable[..., Any], limits: dict[str, Any]) -> Any:
    try:
        value = parse(text)
    except (ValueError, ArithmeticError):
        value = None  # which no check accepts
    try:
        return check("value", value, **limits)
    except ParameterError as error:
        raise refused(text, error.allowed) from None


def _real(text: str, *, up: bool) -> float:
    return rounded(Fraction(text), up=up) if "/" in text else float(text)


def _integer(text: str) -> int:
    if "e" not in text.lower():
        return int(text)
    value = float(text)
    if not value.is_integer() or abs(value) > 2.0**53:
        raise ValueError(text)
    return int(value)


def rounded(exact: Fraction, *, up: bool) -> float:
    """The nearest float that is not below, or not above."""
    value = float(exact)
    return value if value == exact or (value > exact) == up else math.nextafter(value, math.inf if up else -math.inf)


def name_of(what: str) -> Callable[[str], str]:
    """A reader of names that are not empty, as ``type=name_of("a file")``."""

    def read(text: str) -> str:
        if not text.strip():
            raise refused(repr(text), f"the name of {what}")
        return text

    return read


def writable(*endings: str) -> Callable[[str], str]:
    """A reader of names of files that can be written, with one of some endings."""

    def read(name: str) -> str:
        place = Path(name_of("a file")(name))
        if endings and place.suffix.lower() not in endings:
            raise refused(repr(name), f"a file name that ends in {', '.join(endings[:-1])} or {endings[-1]}")
        if not place.parent.is_dir() or place.is_dir():
            raise refused(repr(name), "a file in an existing folder")
        return name

    return read


picture = writable(".png", ".pdf", ".svg")


def record_of_run(text: str) -> dict[str, Any]:
    """Read what ``--json`` printed about a run, to a file or standard input."""
    form = "a file with what --json printed, or - for standard input"
    try:
        found = parse_json(sys.stdin.read() if text == "-" else Path(text).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise refused(text, f"{form} ({str(error).splitlines()[0]})") from None
    known = {"mechanism": dict, "phases": list}
    if not isinstance(found, dict) or not any(isinstance(found.get(key), kind) for key, kind in known.items()):
        raise refused(text, f"{form}, of a run: one with a mechanism and steps, or with phases")
    return found


def leave_out(values: Mapping[str, Any], names: Sequence[str], where: str, needed: Sequence[str] = ()) -> None:
    """Refuse all options at once that mean nothing beside another one, and name those that it needs."""
    given = [name for name in names if values.get(name)]  # no option means anything at 0
    missing = [name for name in needed if values[name] is None]
    also = f", and so must {_flags(given[1:])}" if given[1:] else ""
    if given:
        first = values[given[0]]
        value = first if isinstance(first, int | float | str) and first is not True else "given"
        instead = f"; give {_flags(missing)} instead" if missing else ""
        raise ParameterError(given[0], value, f"left out where {where}{also}{instead}")
    if missing:
        more = f" with {_flags(missing[1:])}" if missing[1:] else ""
        raise ParameterError(missing[0], None, f"given{more} where {where}")


def _flags(names: Sequence[str]) -> str:
    return " and ".join(map(flag_of, names))


def flag_of(name: str) -> str:
    """The option that sets an argument of the library."""
    return "--" + name.removeprefix("target_").replace("_", "-")
