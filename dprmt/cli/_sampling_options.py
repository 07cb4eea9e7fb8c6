"""How samples come into batches, and for how long: options of a run, as keywords for the library."""

from __future__ import annotations

from typing import Any

from dprmt._validation import ParameterError, check_count
from dprmt.cli._options import Option, choice, count, real

SAMPLING = (
    Option("--sample-rate", real(low=1e-9, high=1.0), "q of Poisson sampling, in [1e-9, 1]"),
    Option("--steps", count(high=10**9), "T of Poisson sampling, an integer in [1, 1e9]"),
    Option("--sampling", choice("poisson", "allocation"), "poisson (default), or allocation: once in every epoch"),
    Option("--steps-per-epoch", count(high=10**7), "t of random allocation, an integer in [1, 1e7]"),
    Option("--epochs", count(high=10**9), "E of random allocation, an integer in [1, 1e9]"),
)

_POISSON, _ALLOCATION = ("sample_rate", "steps"), ("steps_per_epoch", "epochs")


def batch_keywords(values: dict[str, Any]) -> dict[str, Any]:
    """Keywords of a mechanism: how it samples.

    Raises
    ------
    ParameterError
        If an option is missing, or belongs to the other way of sampling.
    """
    sampling = values["sampling"] or "poisson"
    wanted, others = (_POISSON, _ALLOCATION) if sampling == "poisson" else (_ALLOCATION, _POISSON)
    for name in others:
        if values[name] is not None:
            raise ParameterError(name, values[name], f"left out where --sampling is {sampling}")
    for name in wanted:
        if values[name] is None:
            raise ParameterError(name, None, f"given where --sampling is {sampling}")
    if sampling == "poisson":
        return {"sample_rate": values["sample_rate"]}
    return {"sampling": sampling, "steps_per_epoch": values["steps_per_epoch"]}


def run_keywords(values: dict[str, Any]) -> dict[str, int]:
    """Keywords of a question: for how long it runs."""
    name = "epochs" if values["sampling"] == "allocation" else "steps"
    return {name: values[name]}


def number_of_steps(values: dict[str, Any]) -> int:
    """The same in steps, no more than 1e9."""
    if values["sampling"] == "allocation":
        most = 10**9 // values["steps_per_epoch"]
        return int(check_count("epochs", values["epochs"], high=most) * values["steps_per_epoch"])
    return int(values["steps"])
