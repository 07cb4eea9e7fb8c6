"""A training run whose privacy is asked for: its noise, the other half of the question, and the run itself."""

from __future__ import annotations

from typing import Any

from dprmt.accounting import Composition, compose
from dprmt.cli._clipping_options import clipping_details, clipping_label, mechanism
from dprmt.cli._options import Option, real
from dprmt.cli._sampling_options import number_of_steps, run_details

NOISE = Option(
    "--noise-multiplier",
    real(low=1e-3, high=1e6),
    "σ, noise in units of the clipping norm; in [1e-3, 1e6]",
    required=True,
    metavar="SIGMA",
)
DELTA = Option("--delta", real(low=1e-290, high=1.0, high_open=True), "δ, in [1e-290, 1)", required=True, metavar="D")
EPSILON = Option("--epsilon", real(low=0.0, high=1e17), "ε, in [0, 1e17]", required=True, metavar="E")


def phases_of(values: dict[str, Any]) -> list[dict[str, Any]]:
    """The values of every phase; a run of one phase is its own."""
    return values.get("phases") or [values]


def composed(values: dict[str, Any]) -> Composition:
    """The run that the options describe."""
    return compose([(mechanism(phase), number_of_steps(phase)) for phase in phases_of(values)])


def details(values: dict[str, Any]) -> dict[str, Any]:
    """What an answer in JSON says of the run: its clipping, its sampling, the notion of privacy."""
    described = [{**clipping_details(phase), **run_details(phase)} for phase in phases_of(values)]
    if values.get("phases") is None:
        return described[0]
    noise = [{"noise_multiplier": phase["noise_multiplier"]} for phase in values["phases"]]
    return {"phases": [{**sigma, **phase} for sigma, phase in zip(noise, described, strict=True)]}


def label(values: dict[str, Any]) -> str:
    """How norms are taken, in words."""
    labels = list(dict.fromkeys(clipping_label(phase) for phase in phases_of(values)))
    return labels[0] if values.get("phases") is None else f"{len(values['phases'])} phases: {'; '.join(labels)}"
