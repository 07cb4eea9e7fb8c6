"""``dprmt epsilon``."""

from __future__ import annotations

import argparse

from dprmt.cli._answers import STATEMENT, Answer, print_bounds
from dprmt.cli._options import Commands, add_command_with
from dprmt.cli._run_options import DELTA, RUN, read_run
from dprmt.cli._summaries import MEANING
from dprmt.cli._terminal import waiting

_OPTIONS = (*RUN, DELTA)
_EXAMPLES = """\
examples:
  dprmt epsilon --noise-multiplier 1 --sample-rate 2000/67349 --steps 400 --delta 1e-5
  dprmt epsilon --noise-multiplier 1 --sample-rate 0.03 --steps 400 --delta 1e-5 --probes 32 --public-probes
  dprmt epsilon --phases run.toml --delta 1e-5
  dprmt epsilon --sample-rate .03 --phase noise-multiplier=2,steps=99 --phase noise-multiplier=1,steps=300 --delta 1e-5
"""


def add_command(commands: Commands) -> None:
    """The command, its options and its help."""
    epilog = f"{MEANING}\n{_EXAMPLES}"
    add_command_with(commands, "epsilon", (*_OPTIONS, STATEMENT), run_epsilon, epilog)


def run_epsilon(namespace: argparse.Namespace) -> None:
    """ε at δ, in both directions."""
    run, values = read_run(namespace, (DELTA,))
    with waiting("composing"):
        by_direction = run.composition().epsilon_by_direction(values["delta"])
    print_bounds(namespace, Answer(run, "epsilon", "ε", by_direction, ("delta", "δ", values["delta"])))
