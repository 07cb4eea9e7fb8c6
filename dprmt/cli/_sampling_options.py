"""How examples come into batches, and for how long: options of a run, as keywords for the library."""

from __future__ import annotations

import argparse
import math
from fractions import Fraction
from typing import Any

from dprmt._validation import ParameterError, check_count
from dprmt.cli._options import Option, choice, count, read_options, real, rounded_up, share

_MOST_STEPS = 10**9
POISSON = (
    Option("--sample-rate", share(1e-9), "q of Poisson sampling, in [1e-9, 1]; 2000/67349 is read too", metavar="Q"),
    Option("--steps", count(high=_MOST_STEPS), "T of Poisson sampling, an integer in [1, 1e9]", metavar="T"),
    Option("--examples", count(high=10**12), "N; with --batch-size B in place of --sample-rate: q = B/N", metavar="N"),
    Option("--batch-size", count(high=10**12), "B, expected number of examples in a step, at most N", metavar="B"),
    Option("--epochs", real(low=0.0, low_open=True, high=1e9), "E, in place of --steps: T = E/q, up", metavar="E"),
)
SAMPLING = (
    *POISSON,
    Option("--sampling", choice("poisson", "allocation"), "poisson (default), or allocation: once in every epoch"),
    Option("--steps-per-epoch", count(high=10**7), "t of random allocation, an integer in [1, 1e7]", metavar="T"),
    Option(
        "--participations",
        count(high=10**7),
        "r of random allocation, at most t (default 1): the epoch is r blocks, each example in one step of each",
        metavar="R",
    ),
)

MEANING = """\
what the answer means:
  Whoever sees all that training releases can tell a run with any one example from the same run without it only as
  well as (ε, δ) allows: add/remove adjacency, the larger of both directions. It holds if every batch is drawn by
  Poisson sampling (each example enters with probability q, by coins of its own) or, where --sampling says so, by
  random allocation (each example in one step of every epoch, drawn anew and uniformly); if gradients are clipped as
  said; and if sums are divided by the expected batch size. Exchanging one example for another is a different
  adjacency, not answered here, and so are batches from a shuffled order.
"""


def read_run(namespace: argparse.Namespace, options: tuple[Option, ...]) -> dict[str, Any]:
    """Values of the options; Poisson sampling comes as ``sample_rate`` and ``steps``, however it was given."""
    values = read_options(namespace, options)
    if values.get("sampling") == "allocation":
        _leave_out(values, ("sample_rate", "steps", "examples", "batch_size"), "--sampling is allocation")
        _need(values, ("steps_per_epoch", "epochs"), "--sampling is allocation")
        participations = check_count("participations", values["participations"] or 1, high=values["steps_per_epoch"])
        return {**values, "epochs": _whole(values["epochs"]), "participations": participations}
    _leave_out(values, ("steps_per_epoch", "participations"), "--sampling is poisson")
    rate = _exact_rate(values)
    return {**values, "sample_rate": rounded_up(rate), "steps": _steps(values, rate), "epochs": None}


def batch_keywords(values: dict[str, Any]) -> dict[str, Any]:
    """Keywords of a mechanism: how it samples."""
    if values.get("sampling") == "allocation":
        return {"sampling": "allocation", **{name: values[name] for name in ("steps_per_epoch", "participations")}}
    return {"sample_rate": values["sample_rate"]}


def run_keywords(values: dict[str, Any]) -> dict[str, int]:
    """Keywords of a question: for how long it runs."""
    name = "epochs" if values.get("sampling") == "allocation" else "steps"
    return {name: values[name]}


def run_details(values: dict[str, Any]) -> dict[str, Any]:
    """What an answer in JSON says of the run and of the notion of privacy."""
    notion = {"sampling": values.get("sampling") or "poisson", "adjacency": "add-remove"}
    return {**notion, **batch_keywords(values), **run_keywords(values)}


def sampling_sentence(values: dict[str, Any]) -> str:
    """To follow "DP-SGD"."""
    if values.get("sampling") == "allocation":
        epochs, per_epoch = values["epochs"], values["steps_per_epoch"]
        blocks = values["participations"]
        where = "one step of each" if blocks == 1 else f"one step of each of an epoch's {blocks} blocks"
        return f"for {epochs} epochs of {per_epoch} steps with random allocation (every example in {where})"
    return f"for T = {values['steps']} steps on batches by Poisson sampling at rate q = {values['sample_rate']:.6g}"


def number_of_steps(values: dict[str, Any]) -> int:
    """The length of the run in steps, no more than 1e9."""
    if values.get("sampling") == "allocation":
        most = _MOST_STEPS // values["steps_per_epoch"]
        return int(check_count("epochs", values["epochs"], high=most) * values["steps_per_epoch"])
    return int(values["steps"])


def _leave_out(values: dict[str, Any], names: tuple[str, ...], where: str) -> None:
    for name in names:
        if values.get(name) is not None:
            raise ParameterError(name, values[name], f"left out where {where}")


def _need(values: dict[str, Any], names: tuple[str, ...], where: str) -> None:
    for name in names:
        if values[name] is None:
            raise ParameterError(name, None, f"given where {where}")


def _whole(epochs: float) -> int:
    if not epochs.is_integer():
        raise ParameterError("epochs", epochs, "an integer where --sampling is allocation")
    return int(epochs)


def _exact_rate(values: dict[str, Any]) -> Fraction:
    if values["sample_rate"] is not None:
        _leave_out(values, ("examples", "batch_size"), "--sample-rate is given")
        return Fraction(values["sample_rate"])
    if values["examples"] is None and values["batch_size"] is None:
        _need(values, ("sample_rate",), "--sampling is poisson, or --examples with --batch-size")
    _need(values, ("examples", "batch_size"), "the other of --examples and --batch-size is")
    batch = check_count("batch_size", values["batch_size"], high=values["examples"])
    return Fraction(batch, values["examples"])


def _steps(values: dict[str, Any], rate: Fraction) -> int:
    if values["steps"] is not None:
        _leave_out(values, ("epochs",), "--steps is given")
        return int(values["steps"])
    if values["epochs"] is None:
        _need(values, ("steps",), "--sampling is poisson, or --epochs")
    steps = math.ceil(Fraction(values["epochs"]) / rate)
    if steps > _MOST_STEPS:
        raise ParameterError("epochs", values["epochs"], f"at most {_MOST_STEPS:g} steps long")
    return steps
