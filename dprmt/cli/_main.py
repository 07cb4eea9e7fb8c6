"""Parses, dispatches, and turns every bad input into one line and exit code 2."""

from __future__ import annotations

import argparse
import re
import shutil
import sys
import textwrap
from collections.abc import Sequence
from importlib import import_module
from typing import Any, NoReturn

from dprmt import __version__
from dprmt._validation import ParameterError, TrainingStateError, did_you_mean, how_to_install
from dprmt.cli._options import MEANING, SUMMARIES, Parser, UsageError
from dprmt.cli._terminal import speak_any_encoding

_MODULES = dict.fromkeys(("epsilon", "noise", "steps", "delta", "probes", "tradeoff", "statement"), "_accounting")
_MODULES |= dict.fromkeys(("plan", "train", "recipes"), "_recipes")
"""Modules that hold several commands; every other is named like its one."""
_FILES = ("FILE", "OUT", "DIR", "RUN", "BEFORE", "RECIPE")  # metavars of options that a shell completes to files
_NAME = re.compile(r"[a-z]+(_[a-z]+)+")  # of an argument of the library, which may be an option's
_SHELLS = ("bash", "zsh", "tcsh", "fish")


def build_parser() -> Parser:
    """The whole command line.

    Returns
    -------
    Parser
        An ``argparse`` parser with one sub-parser per command.

    Examples
    --------
    >>> build_parser().parse_args(["report", "--out", "page"]).command
    'report'
    """
    return _parser_for([])


def _parser_for(arguments: Sequence[str]) -> Parser:
    # Without the modules of other commands where the first word names one: importing them takes longer than an answer.
    named = [name for name in SUMMARIES if arguments[:1] == [name]]
    width = max(24, min(shutil.get_terminal_size().columns, 100) - 2)
    meaning = "what the answer means:\n" + textwrap.indent(textwrap.fill(MEANING, width - 2), "  ")
    parser = Parser(
        prog="dprmt", description="The mathematics of noise in differentially private training.", epilog=meaning
    )
    parser.add_argument("--version", action="version", version=f"dprmt {__version__}")
    words = "the completion script of a shell: bash, zsh, tcsh or fish (needs the extra completion)"
    parser.add_argument("--print-completion", action=_PrintCompletion, choices=_SHELLS, metavar="SHELL", help=words)
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True, parser_class=Parser)
    if arguments[:1] in (["-h"], ["--help"], ["--version"]):
        for name, summary in SUMMARIES.items():
            commands.add_parser(name, help=summary)
        return parser
    for module in dict.fromkeys(_MODULES.get(name, f"_{name}") for name in named or SUMMARIES):
        import_module(f"dprmt.cli.{module}").add_command(commands)
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line.

    Parameters
    ----------
    arguments : sequence of str, optional
        Defaults to the process' own.

    Returns
    -------
    int
        0; 2 after bad input and 1 where the machine failed (a full disk, say), with one line on stderr; 130 after
        an interrupt; 3 and 4 from ``verify``. Without words it is ``--help`` that is run.

    Raises
    ------
    ModuleNotFoundError
        If a module is missing that no extra installs.

    Examples
    --------
    >>> main(["delta", "--epsilon", "1", "--noise-multiplier", "2", "--sample-rate", "1", "--steps", "1"])
    δ <= 0.0068... at ε = 1  (exact norms; zero-out)
      remove 0.0068... <= δ <= 0.0068...  <- decides
      add    0.0068... <= δ <= 0.0068...
    0
    """
    command, namespace = "dprmt", argparse.Namespace(shown=str)
    speak_any_encoding()
    try:
        words = list(sys.argv[1:] if arguments is None else arguments) or ["--help"]
        if words[0] in SUMMARIES:
            command = f"dprmt {words[0]}"
        elif not words[0].startswith("-"):
            close = did_you_mean(words[0], SUMMARIES)
            raise UsageError(f"no such command: {words[0]!r}{close}; dprmt --help lists them")
        namespace = _parser_for(words).parse_args(words)
        code: int | None = namespace.carry_out(namespace)
    except ParameterError as error:
        got = f"; {command} --help has examples" if error.value is None else f", got {error.value}"
        allowed, fix = (_NAME.sub(lambda name: namespace.shown(name[0]), text) for text in (error.allowed, error.fix))
        fix = f". Fix: {fix}" if fix else ""
        return _fail(f"{command}: {namespace.shown(error.name)} must be {allowed}{got}{fix}")
    except (UsageError, TrainingStateError) as error:
        return _fail(f"{command}: {error}")
    except ModuleNotFoundError as error:
        if "pip install" not in str(error):
            raise
        return _fail(f"{command}: {error}")
    except BrokenPipeError:
        sys.stderr.close()
        return 0
    except OSError as error:
        return _fail(f"{command}: {error}", 1)
    except KeyboardInterrupt:
        return 130
    return code or 0


def _fail(message: str, code: int = 2) -> int:
    sys.stderr.write(" ".join(message.split()) + "\n")
    return code


class _PrintCompletion(argparse.Action):
    """Print a shell's completion script, by shtab."""

    def __call__(self, parser: argparse.ArgumentParser, *rest: Any) -> NoReturn:
        try:
            import shtab
        except ModuleNotFoundError:
            raise UsageError(f"--print-completion needs shtab: {how_to_install('completion')}") from None
        (subparsers,) = (action for action in parser._actions if isinstance(action, argparse._SubParsersAction))
        for command in subparsers.choices.values():
            for action in command._actions:
                if action.metavar in _FILES:
                    action.complete = shtab.FILE
        sys.stdout.write(shtab.complete(parser, rest[1]) + "\n")
        raise SystemExit(0)
