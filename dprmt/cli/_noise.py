"""``dprmt noise``."""

from __future__ import annotations

import argparse

from dprmt._validation import ParameterError
from dprmt.cli._answers import Answer, add_statement, print_bounds
from dprmt.cli._options import Commands, Option, add_command_with, real
from dprmt.cli._run_options import DELTA, RUN_WITHOUT_NOISE, Run, read_run
from dprmt.cli._sampling_options import MEANING
from dprmt.cli._terminal import waiting
from dprmt.statements import round_up

_TARGET = Option("--epsilon", real(low=0.0, low_open=True), "target ε, > 0", metavar="E")
_OPTIONS = (_TARGET, *RUN_WITHOUT_NOISE, DELTA)
_EXAMPLES = """\
examples:
  dprmt noise --epsilon 2 --sample-rate 2000/67349 --steps 400 --delta 1e-5
  dprmt noise --epsilon 2 --phases run.toml --delta 1e-5
  dprmt noise --epsilon 2 --examples 67349 --batch-size 2000 --epochs 12 --delta 1e-5 --probes 32
"""


def add_command(commands: Commands) -> None:
    """The command, its options and its help."""
    summary = "the smallest noise multiplier for a target (ε, δ)"
    add_statement(add_command_with(commands, "noise", summary, _OPTIONS, run_noise, f"{MEANING}\n{_EXAMPLES}"))


def run_noise(namespace: argparse.Namespace) -> None:
    """The noise multiplier, and the ε that it gives."""
    asked, values = read_run(namespace, (_TARGET, DELTA), noise_multiplier="1")
    with waiting("calibrating"):
        run = _calibrated(asked, values["epsilon"], values["delta"])
        by_direction = run.composition().epsilon_by_direction(values["delta"])
    noise = [mechanism.noise_multiplier for mechanism, _ in run.phases]
    answer = Answer(run, "epsilon", "ε", by_direction, ("delta", "δ", values["delta"]))
    found = {"noise_multipliers": noise} if run.in_phases else {"noise_multiplier": noise[0]}
    line = f"noise multiplier{'s' if run.in_phases else ''} = {', '.join(map(round_up, noise))}"
    print_bounds(namespace, answer, {**found, "target_epsilon": values["epsilon"]}, (line,))


def _calibrated(run: Run, epsilon: float, delta: float) -> Run:
    try:
        return run.calibrated(epsilon, delta)
    except ParameterError as error:
        name = "epsilon" if error.name == "target_epsilon" else error.name
        raise ParameterError(name, error.value, error.allowed) from None
