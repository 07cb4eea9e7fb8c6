"""Parses, dispatches, and turns every bad input into one line and exit code 2."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module

from dprmt import __version__
from dprmt._validation import ParameterError, TrainingStateError, did_you_mean, how_to_install
from dprmt.cli._completion import add_completion
from dprmt.cli._options import Parser, UsageError
from dprmt.cli._summaries import MEANING, SUMMARIES
from dprmt.cli._terminal import speak_any_encoding

_EXTRAS = {
    "matplotlib": "plots",
    "rich": "cli",
    "jinja2": "cli",
    "safetensors": "cli",
    "joblib": "sweep",
    "flint": "verify",
    "dprmt_verify": "verify",
}
_OF_NO_COMMAND = (["-h"], ["--help"], ["--version"])
_EXTRAS |= dict.fromkeys(("torch", "opacus", "transformers", "peft", "datasets", "tomli_w"), "train")
_EXTRAS_OF_COMMANDS = {"dprmt report": "demo"}  # at once all that it shows, not one package after another


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
    # Without the other commands where the first word names one: their imports take longer than a whole answer.
    named = [name for name in SUMMARIES if arguments[:1] == [name]]
    parser = Parser(
        prog="dprmt", description="The mathematics of noise in differentially private training.", epilog=MEANING
    )
    parser.add_argument("--version", action="version", version=f"dprmt {__version__}")
    add_completion(parser)
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True, parser_class=Parser)
    for name in named or SUMMARIES:
        if arguments[:1] in _OF_NO_COMMAND:
            commands.add_parser(name, help=SUMMARIES[name])
        else:
            import_module(f"dprmt.cli._{name}").add_command(commands)
    return parser


def _refuse_unknown_command(word: str) -> None:
    if not word.startswith("-") and word not in SUMMARIES:
        raise UsageError(f"dprmt: no such command: {word!r}{did_you_mean(word, SUMMARIES)}; dprmt --help lists them")


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
    command = "dprmt"
    speak_any_encoding()
    try:
        words = list(sys.argv[1:] if arguments is None else arguments) or ["--help"]
        _refuse_unknown_command(words[0])
        namespace = _parser_for(words).parse_args(words)
        command = f"dprmt {namespace.command}"
        code: int | None = namespace.run(namespace)
    except ParameterError as error:
        option = "--" + error.name.replace("_", "-")
        got = f"; {command} --help has examples" if error.value is None else f", got {error.value}"
        return _refuse(f"{command}: {option} must be {error.allowed}{got}")
    except UsageError as error:
        return _refuse(str(error))
    except TrainingStateError as error:
        return _refuse(f"{command}: {error}")
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package not in _EXTRAS:
            raise
        extra = _EXTRAS_OF_COMMANDS.get(command, _EXTRAS[package])
        return _refuse(f"{command}: needs {package}: {how_to_install(extra)}")
    except BrokenPipeError:
        sys.stderr.close()
        return 0
    except OSError as error:
        _say(f"{command}: {error}")
        return 1
    except KeyboardInterrupt:
        return 130
    return code or 0


def _refuse(message: str) -> int:
    _say(message)
    return 2


def _say(message: str) -> None:
    sys.stderr.write(" ".join(message.split()) + "\n")
