"""``dprmt delta``."""

from __future__ import annotations

import argparse

from dprmt.cli._answers import add_statement, bounds_document, bounds_lines, larger, print_answer
from dprmt.cli._options import Commands, add_command_with
from dprmt.cli._phases import RUN, read_phases
from dprmt.cli._run_options import EPSILON, composed
from dprmt.cli._sampling_options import MEANING
from dprmt.cli._spinner import waiting
from dprmt.cli._statements import statement, upper_bound

_OPTIONS = (*RUN, EPSILON)
_EXAMPLES = """\
examples:
  dprmt delta --epsilon 2 --noise-multiplier 1 --sample-rate 2000/67349 --steps 400
  dprmt delta --epsilon 2 --noise-multiplier 1 --examples 67349 --batch-size 2000 --epochs 12 --probes 32 --json
"""


def add_command(commands: Commands) -> None:
    """Declare it."""
    epilog = f"{MEANING}\n{_EXAMPLES}"
    add_statement(add_command_with(commands, "delta", "δ of a training run at ε", _OPTIONS, run_delta, epilog))


def run_delta(namespace: argparse.Namespace) -> None:
    """δ at ε, in both directions."""
    values = read_phases(namespace, (EPSILON,))
    with waiting("composing"):
        by_direction = composed(values).delta_by_direction(values["epsilon"])
    lines = bounds_lines("δ", by_direction, f"ε = {values['epsilon']:g}", values)
    worst = larger(by_direction)
    paper = statement(worst, values, epsilon=f"ε = {values['epsilon']:g}", delta=upper_bound("δ", worst))
    print_answer(namespace, bounds_document("delta", by_direction, values), lines, paper)
