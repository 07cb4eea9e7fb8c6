"""``dprmt statement``: the privacy card of a run, described by options or kept in a folder."""

from __future__ import annotations

import argparse
import sys

from dprmt._files import strict_json
from dprmt._validation import ParameterError, how_to_install
from dprmt.cli._options import Commands, Option, UsageError, add_command_with, name_of
from dprmt.cli._run_options import DELTA, RUN, read_run
from dprmt.cli._summaries import MEANING
from dprmt.cli._terminal import waiting
from dprmt.statements import PrivacyCard, privacy_card


def _words(name: str, text: str) -> str:
    if not text.strip():
        raise ParameterError(name, text, "a non-empty description")
    return " ".join(text.split())


_UNIT = Option("--unit", _words, "what one sample is, in words (one row of the training data)", metavar="WORDS")
_OPTIONS = (*RUN, DELTA, _UNIT)
_COMMAND = "dprmt statement"
_EXAMPLES = """\
examples:
  dprmt statement --noise-multiplier 1 --sample-rate 2000/67349 --steps 400 --delta 1e-5
  dprmt statement --noise-multiplier 1 --sample-rate 0.03 --steps 400 --delta 1e-5 --json > card.json
  dprmt statement --run runs/first
"""


def add_command(commands: Commands) -> None:
    """The command, its options and its help."""
    parser = add_command_with(commands, "statement", _OPTIONS, run_statement, f"{MEANING}\n{_EXAMPLES}")
    parser.add_argument(
        "--run",
        dest="folder",
        metavar="FOLDER",
        type=name_of("a folder"),
        help="the folder of a run of dprmt train, finished or not, in place of a run's options",
    )


def run_statement(namespace: argparse.Namespace) -> None:
    """The card, as Markdown or as JSON."""
    card, file = (_described if namespace.folder is None else _kept)(namespace)
    text = strict_json(card.as_dict(), indent=1) if namespace.json else card.as_markdown(f"dprmt verify {file}")
    sys.stdout.write(text.rstrip("\n") + "\n")


def _described(namespace: argparse.Namespace) -> tuple[PrivacyCard, str]:
    run, values = read_run(namespace, (DELTA, _UNIT))
    more = {} if values["unit"] is None else {"unit": values["unit"]}
    with waiting("composing"):
        return privacy_card(run.composition(), values["delta"], **more), "card.json"


def _kept(namespace: argparse.Namespace) -> tuple[PrivacyCard, str]:
    for option in _OPTIONS:
        if getattr(namespace, option.dest, None) is not None:
            raise ParameterError(option.dest, getattr(namespace, option.dest), "left out where --run is given")
    try:
        from dprmt.training.harness import CARD, read_card
    except ModuleNotFoundError as error:
        raise UsageError(f"{_COMMAND}: --run needs {error.name}: {how_to_install('train')}") from None
    with waiting("composing"):
        return read_card(namespace.folder), f"{namespace.folder}/{CARD}"
