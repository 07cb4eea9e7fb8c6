"""How samples come into batches, and for how long: from flat options to the library's value and a number of steps."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

from dprmt._validation import ParameterError, check_count, check_real
from dprmt.accounting import CyclicPoisson, FixedOrder, FixedSize, Poisson, RandomAllocation, Sampling
from dprmt.cli._options import Option, choice, count, leave_out, real, rounded_up, share

_MOST_STEPS = 10**9
_OTHERS = ("at_most", "bands")
POISSON = (
    Option("--sample-rate", share(1e-9), "q of Poisson sampling, in [1e-9, 1]; 2000/67349 is read too", metavar="Q"),
    Option("--steps", count(high=_MOST_STEPS), "T of Poisson sampling, an integer in [1, 1e9]", metavar="T"),
    Option("--samples", count(high=10**12), "N; with --batch-size B in place of --sample-rate: q = B/N", metavar="N"),
    Option("--batch-size", count(high=10**12), "B, expected number of samples in a step, at most N", metavar="B"),
    Option("--epochs", real(low=0.0, low_open=True, high=1e9), "E, in place of --steps: T = E/q, up", metavar="E"),
)
SAMPLING = (
    *POISSON,
    Option(
        "--sampling",
        choice("poisson", "cyclic-poisson", "fixed-size", "allocation", "fixed-order"),
        "poisson (default), cyclic-poisson (from one of --bands groups in turn), fixed-size (B of N drawn anew in "
        "every step), allocation (a random step of each epoch), fixed-order",
        metavar="KIND",
    ),
    Option(
        "--at-most", count(high=10**12), "largest batch of Poisson sampling from --samples N; rest dropped", metavar="B"
    ),
    Option("--bands", count(high=10**6), "b of cyclic Poisson sampling, an integer in [1, 1e6]", metavar="B"),
    Option("--steps-per-epoch", count(high=10**7), "t of random allocation, an integer in [1, 1e7]", metavar="T"),
    Option(
        "--participations",
        count(high=10**7),
        "r of random allocation, at most t: r blocks an epoch (default 1)",
        metavar="R",
    ),
)


def batches_of(values: dict[str, Any]) -> tuple[Sampling, int]:
    """How samples come into batches, as the library's value, and the number of steps; however the two were given."""
    if values.get("sampling") == "allocation":
        return _allocated(values)
    if values.get("sampling") == "fixed-order":
        return _in_order(values)
    kind = values.get("sampling") or "poisson"
    leave_out(values, ("steps_per_epoch", "participations"), f"--sampling is {kind}")
    for name, owner in (("at_most", "poisson"), ("bands", "cyclic-poisson")):
        if kind != owner:
            leave_out(values, (name,), f"--sampling is {kind}")
    if kind == "fixed-size":
        leave_out(values, ("sample_rate",), "--sampling is fixed-size", ("samples", "batch_size"))
        drawn = FixedSize(values["batch_size"], values["samples"])
        return drawn, _steps(values, Fraction(drawn.batch_size, drawn.samples))
    rate = _exact_rate(values)
    if kind == "cyclic-poisson":
        _need(values, ("bands",), "--sampling is cyclic-poisson")
        bands, least = values["bands"], rounded_up(rate)
        check_real("sample_rate", least, low=1e-9, high=1.0 / bands)
        return CyclicPoisson(least, bands), _steps(values, rate)
    if values.get("at_most") is None:
        return Poisson(rounded_up(rate)), _steps(values, rate)
    _need(values, ("samples",), "--at-most is")
    return Poisson(rounded_up(rate), values["at_most"], values["samples"]), _steps(values, rate)


def _allocated(values: dict[str, Any]) -> tuple[RandomAllocation, int]:
    beside, needed = ("sample_rate", "steps", "samples", "batch_size", *_OTHERS), ("steps_per_epoch", "epochs")
    leave_out(values, beside, "--sampling is allocation", needed)
    sampling = RandomAllocation(values["steps_per_epoch"], values["participations"] or 1)
    epochs = _whole(values["epochs"], "allocation")
    return sampling, sampling.run_length(None, epochs)


def _in_order(values: dict[str, Any]) -> tuple[FixedOrder, int]:
    beside = ("sample_rate", "steps", "samples", "batch_size", "steps_per_epoch", "participations", *_OTHERS)
    leave_out(values, beside, "--sampling is fixed-order, whatever the batches are", ("epochs",))
    sampling = FixedOrder()
    return sampling, sampling.run_length(None, _whole(values["epochs"], "fixed-order"))


def _need(values: dict[str, Any], names: tuple[str, ...], where: str) -> None:
    for name in names:
        if values[name] is None:
            raise ParameterError(name, None, f"given where {where}")


def _whole(epochs: float, sampling: str) -> int:
    if not epochs.is_integer():
        raise ParameterError("epochs", epochs, f"an integer where --sampling is {sampling}")
    return int(epochs)


def _exact_rate(values: dict[str, Any]) -> Fraction:
    if values["sample_rate"] is not None:
        beside = ("samples", "batch_size") if values.get("at_most") is None else ("batch_size",)
        leave_out(values, beside, "--sample-rate is given")
        return Fraction(values["sample_rate"])
    if values["samples"] is None and values["batch_size"] is None:
        _need(values, ("sample_rate",), "--sampling is poisson, or --samples with --batch-size")
    _need(values, ("samples", "batch_size"), "the other of --samples and --batch-size is")
    batch = check_count("batch_size", values["batch_size"], high=values["samples"])
    return Fraction(batch, values["samples"])


def _steps(values: dict[str, Any], rate: Fraction) -> int:
    if values["steps"] is not None:
        leave_out(values, ("epochs",), "--steps is given")
        return int(values["steps"])
    if values["epochs"] is None:
        _need(values, ("steps",), "--sampling is poisson, or --epochs")
    steps = math.ceil(Fraction(values["epochs"]) / rate)
    if steps > _MOST_STEPS:
        raise ParameterError("epochs", values["epochs"], f"at most {_MOST_STEPS:g} steps long")
    return steps
