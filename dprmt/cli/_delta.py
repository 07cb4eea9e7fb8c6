"""``dprmt delta``."""

from __future__ import annotations

import argparse

from dprmt.cli._answers import STATEMENT, Answer, print_bounds
from dprmt.cli._options import Commands, add_command_with
from dprmt.cli._run_options import EPSILON, RUN, read_run
from dprmt.cli._summaries import MEANING
from dprmt.cli._terminal import waiting

_OPTIONS = (*RUN, EPSILON)
_EXAMPLES = """\
examples:
  dprmt delta --epsilon 2 --noise-multiplier 1 --sample-rate 2000/67349 --steps 400
  dprmt delta --epsilon 2 --noise-multiplier 1 --samples 67349 --batch-size 2000 --epochs 12 --json
"""


def add_command(commands: Commands) -> None:
    """The command, its options and its help."""
    epilog = f"{MEANING}\n{_EXAMPLES}"
    add_command_with(commands, "delta", (*_OPTIONS, STATEMENT), run_delta, epilog)


def run_delta(namespace: argparse.Namespace) -> None:
    """δ at ε, in both directions."""
    run, values = read_run(namespace, (EPSILON,))
    with waiting("composing"):
        by_direction = run.composition().delta_by_direction(values["epsilon"])
    print_bounds(namespace, Answer(run, "delta", "δ", by_direction, ("epsilon", "ε", values["epsilon"])))
