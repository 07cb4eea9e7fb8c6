"""``dprmt epsilon``."""

from __future__ import annotations

import argparse

from dprmt.cli._answers import bounds_document, bounds_lines, print_answer
from dprmt.cli._clipping_options import CLIPPING
from dprmt.cli._options import Commands, add_command_with, read_options
from dprmt.cli._run_options import DELTA, NOISE, composed
from dprmt.cli._sampling_options import SAMPLING

_OPTIONS = (NOISE, *SAMPLING, DELTA, *CLIPPING)


def add_command(commands: Commands) -> None:
    """Declare it."""
    add_command_with(commands, "epsilon", "ε of a training run at δ", _OPTIONS, run_epsilon)


def run_epsilon(namespace: argparse.Namespace) -> None:
    """ε at δ, in both directions."""
    values = read_options(namespace, _OPTIONS)
    by_direction = composed(values).epsilon_by_direction(values["delta"])
    lines = bounds_lines("ε", by_direction, f"δ = {values['delta']:g}", values)
    print_answer(namespace, bounds_document("epsilon", by_direction, values), lines)
