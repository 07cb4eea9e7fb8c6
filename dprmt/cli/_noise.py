"""``dprmt noise``."""

from __future__ import annotations

import argparse
from typing import Any

from dprmt._validation import ParameterError
from dprmt.accounting import calibrate_noise_multiplier
from dprmt.cli._answers import add_statement, bounds_document, bounds_lines, larger, print_answer
from dprmt.cli._clipping_options import CLIPPING, clipping_keywords
from dprmt.cli._options import Commands, Option, add_command_with, real
from dprmt.cli._rounding import round_up
from dprmt.cli._run_options import DELTA, composed
from dprmt.cli._sampling_options import MEANING, SAMPLING, batch_keywords, read_run, run_keywords
from dprmt.cli._spinner import waiting
from dprmt.cli._statements import statement, upper_bound

_TARGET = Option("--epsilon", real(low=0.0, low_open=True), "target ε, > 0", required=True, metavar="E")
_OPTIONS = (_TARGET, *SAMPLING, DELTA, *CLIPPING)
_EXAMPLES = """\
examples:
  dprmt noise --epsilon 2 --sample-rate 2000/67349 --steps 400 --delta 1e-5
  dprmt noise --epsilon 2 --examples 67349 --batch-size 2000 --epochs 12 --delta 1e-5 --probes 32
"""


def add_command(commands: Commands) -> None:
    """Declare it."""
    summary = "the smallest noise multiplier for a target (ε, δ)"
    add_statement(add_command_with(commands, "noise", summary, _OPTIONS, run_noise, f"{MEANING}\n{_EXAMPLES}"))


def run_noise(namespace: argparse.Namespace) -> None:
    """The noise multiplier, and the ε that it gives."""
    values = read_run(namespace, _OPTIONS)
    with waiting("calibrating"):
        values["noise_multiplier"] = sigma = _calibrated(values)
        by_direction = composed(values).epsilon_by_direction(values["delta"])
    document = {"noise_multiplier": sigma, **bounds_document("epsilon", by_direction, values)}
    lines = bounds_lines("ε", by_direction, f"δ = {values['delta']:g}", values)
    worst = larger(by_direction)
    paper = statement(worst, values, epsilon=upper_bound("ε", worst), delta=f"δ = {values['delta']:g}")
    print_answer(namespace, document, [f"noise multiplier = {round_up(sigma)}", *lines], paper)


def _calibrated(values: dict[str, Any]) -> float:
    keywords = {**batch_keywords(values), **run_keywords(values), **clipping_keywords(values)}
    try:
        return calibrate_noise_multiplier(values["epsilon"], values["delta"], **keywords)
    except ParameterError as error:
        name = "epsilon" if error.name == "target_epsilon" else error.name
        raise ParameterError(name, error.value, error.allowed) from None
