"""A training run whose privacy is asked for: its noise, the other half of the question, and the run itself."""

from __future__ import annotations

from typing import Any

from dprmt.accounting import Composition, compose
from dprmt.cli._clipping_options import mechanism
from dprmt.cli._options import Option, real
from dprmt.cli._sampling_options import number_of_steps

NOISE = Option(
    "--noise-multiplier",
    real(low=1e-3, high=1e6),
    "σ, noise in units of the clipping norm; in [1e-3, 1e6]",
    required=True,
    metavar="SIGMA",
)
DELTA = Option("--delta", real(low=1e-290, high=1.0, high_open=True), "δ, in [1e-290, 1)", required=True, metavar="D")
EPSILON = Option("--epsilon", real(low=0.0, high=1e13), "ε, in [0, 1e13]", required=True, metavar="E")


def composed(values: dict[str, Any]) -> Composition:
    """The run that the options describe."""
    return compose([(mechanism(values), number_of_steps(values))])
