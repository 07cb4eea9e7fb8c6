"""``dprmt steps``."""

from __future__ import annotations

import argparse
from dataclasses import replace

from dprmt._validation import ParameterError
from dprmt.accounting import largest_steps
from dprmt.cli._answers import STATEMENT, Answer, print_bounds
from dprmt.cli._options import Commands, Option, add_command_with, real
from dprmt.cli._run_options import DELTA, RUN, read_run
from dprmt.cli._summaries import MEANING
from dprmt.cli._terminal import waiting

_EPSILON = Option("--epsilon", real(low=0.0, low_open=True), "ε that may be spent in all, > 0, at --delta", metavar="E")
_OPTIONS = (*RUN, _EPSILON, DELTA)
_EXAMPLES = """\
examples:
  dprmt steps --epsilon 2 --noise-multiplier 1 --sample-rate 2000/67349 --delta 1e-5
  dprmt steps --epsilon 2 --noise-multiplier 1 --sample-rate .01 --delta 1e-5 --spent runs/first
"""


def add_command(commands: Commands) -> None:
    """The command, its options and its help."""
    add_command_with(commands, "steps", (*_OPTIONS, STATEMENT), run_steps, f"{MEANING}\n{_EXAMPLES}")


def run_steps(namespace: argparse.Namespace) -> None:
    """How many steps a budget allows, and the ε of so many."""
    run, values = read_run(namespace, (DELTA, _EPSILON), unknown={"steps": "1"})
    asked = run.asked or (not run.in_phases,)
    if sum(asked) != 1 or (not run.in_phases and (namespace.steps or namespace.epochs)):
        raise ParameterError("steps", namespace.steps, "left out, and --epochs too, of one phase: the one to be run")
    with waiting("trying numbers of steps"):
        steps = largest_steps(run.composition(), values["epsilon"], values["delta"])
        phases = tuple((one, steps if free else count) for (one, count), free in zip(run.phases, asked, strict=True))
        run = replace(run, phases=phases, asked=asked)
        by_direction = run.composition().epsilon_by_direction(values["delta"])
    answer = Answer(run, "epsilon", "ε", by_direction, ("delta", "δ", values["delta"]))
    print_bounds(
        namespace, answer, {"largest_steps": steps, "target_epsilon": values["epsilon"]}, (f"steps = {steps}",)
    )
