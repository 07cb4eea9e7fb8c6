"""``dprmt delta``."""

from __future__ import annotations

import argparse

from dprmt.cli._answers import bounds_document, bounds_lines, print_answer
from dprmt.cli._clipping_options import CLIPPING
from dprmt.cli._options import Commands, add_command_with, read_options
from dprmt.cli._run_options import EPSILON, NOISE, composed
from dprmt.cli._sampling_options import SAMPLING

_OPTIONS = (NOISE, *SAMPLING, EPSILON, *CLIPPING)


def add_command(commands: Commands) -> None:
    """Declare it."""
    add_command_with(commands, "delta", "δ of a training run at ε", _OPTIONS, run_delta)


def run_delta(namespace: argparse.Namespace) -> None:
    """δ at ε, in both directions."""
    values = read_options(namespace, _OPTIONS)
    by_direction = composed(values).delta_by_direction(values["epsilon"])
    lines = bounds_lines("δ", by_direction, f"ε = {values['epsilon']:g}", values)
    print_answer(namespace, bounds_document("delta", by_direction, values), lines)
