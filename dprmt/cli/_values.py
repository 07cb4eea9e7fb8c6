"""Options of a training run as data, and the library's values that they become: sampling, norms, neighbours, releases.

An option is declared in one of the tuples below. ``SAMPLING`` becomes a value in :func:`sampling_of`, ``NORMS`` in
:func:`norms_of`, ``NEIGHBOURS`` in :func:`neighbours_of`, ``ALSO`` in its own reader. A new sampling scheme is a row of
``_SCHEMES``; a new release is a row of ``_RELEASES``.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any

from dprmt._validation import ParameterError, check_count, check_real, did_you_mean
from dprmt.accounting import (
    AddRemove,
    ApproximateRelease,
    CyclicPoisson,
    ExactNorms,
    FixedOrder,
    FixedSize,
    GaussianDPRelease,
    GaussianRelease,
    Group,
    Hutchinson,
    HutchPlusPlus,
    LaplaceRelease,
    Neighbours,
    Norms,
    Poisson,
    RandomAllocation,
    Release,
    ReplaceOne,
    Sampling,
    ZCDPRelease,
    ZeroOut,
)
from dprmt.cli._options import Option, count, flag, grouped, leave_out, real, rounded_up

_MOST_STEPS = 10**9
_RATE = "a number or a fraction such as 2000/67349 in [1e-09, 1]"
_RELATIONS = {relation.kind: relation for relation in (ZeroOut(), AddRemove(), ReplaceOne())}
_RELEASES: dict[str, tuple[Callable[..., Release], int]] = {
    "gaussian": (GaussianRelease, 1),
    "laplace": (LaplaceRelease, 1),
    "approximate": (ApproximateRelease, 2),
    "gaussian-dp": (GaussianDPRelease, 1),
    "zcdp": (ZCDPRelease, 1),
}
_FORM = (
    "gaussian:SIGMA, laplace:SCALE (in units of what neighbours can change), approximate:EPSILON:DELTA, gaussian-dp:MU "
    "or zcdp:RHO"
)
_POISSON = ("sample_rate", "steps", "samples", "batch_size")
_EPOCHS = ("steps_per_epoch", "participations")
_MORE = ("at_most", "bands")
_SCHEMES: dict[str, tuple[str, tuple[str, ...], tuple[str, ...]]] = {
    "poisson": ("", (), (*_EPOCHS, "bands")),
    "cyclic-poisson": ("", ("bands",), (*_EPOCHS, "at_most")),
    "fixed-size": ("", ("samples", "batch_size"), ("sample_rate", *_EPOCHS, *_MORE)),
    "allocation": ("", ("steps_per_epoch", "epochs"), (*_POISSON, *_MORE)),
    "fixed-order": (", whatever the batches are", ("epochs",), (*_POISSON, *_EPOCHS, *_MORE)),
}
"""Of every sampling scheme: what a refusal adds, the options that it needs, and those that mean nothing with it."""


def _rate(name: str, text: str) -> float:
    try:
        value = rounded_up(Fraction(text)) if "/" in text else float(text)
    except (ValueError, ArithmeticError):
        value = math.nan
    if not 1e-9 <= value <= 1.0:
        raise ParameterError(name, text, _RATE)
    return value


def _releases(name: str, texts: Any) -> tuple[Release, ...]:
    return tuple(_release(name, text) for text in texts)


def _release(name: str, text: str) -> Release:
    word, *numbers = text.split(":")
    if word not in _RELEASES:
        raise ParameterError(name, text, f"{_FORM}{did_you_mean(word, list(_RELEASES))}")
    make, needed = _RELEASES[word]
    try:
        found = [float(number) for number in numbers]
        if len(found) != needed:
            raise ValueError
        return make(*found)
    except ParameterError as error:
        raise ParameterError(name, text, f"one with {error}") from None
    except ValueError:
        raise ParameterError(name, text, _FORM) from None


NOISE = Option(
    "--noise-multiplier",
    real(low=1e-3, high=1e6),
    "σ, standard deviation of the noise in units of the clipping norm; in [1e-3, 1e6]",
    metavar="SIGMA",
)
_PARTICIPATIONS = "r blocks an epoch of allocation (default 1)"
_SCHEME = (
    "poisson (default), cyclic-poisson (from groups in turn), fixed-size (B of N every step), allocation (a random "
    "step of each epoch), fixed-order"
)
SAMPLING = (
    Option("--sample-rate", _rate, "probability q of a sample, as .03 or 2000/67349", metavar="Q"),
    Option("--steps", count(high=_MOST_STEPS), "number of steps, up to 1e9", metavar="STEPS"),
    Option("--samples", count(high=10**12), "with --batch-size, for a rate of q = B/N", metavar="N"),
    Option("--batch-size", count(high=10**12), "expected number of samples in a step, at most N", metavar="B"),
    Option("--epochs", real(low=0.0, low_open=True, high=1e9), "instead of --steps, rounded up", metavar="EPOCHS"),
    Option("--sampling", tuple(_SCHEMES), _SCHEME, metavar="SCHEME"),
    Option("--steps-per-epoch", count(high=10**7), "t of allocation, up to 1e7", metavar="LENGTH"),
    Option("--participations", count(high=10**7), _PARTICIPATIONS, metavar="R"),
    Option("--at-most", count(high=10**12), "largest batch of poisson from --samples N", metavar="MOST"),
    Option("--bands", count(high=10**6), "number of groups of cyclic-poisson", metavar="BANDS"),
)
NORMS = grouped(
    "norm method (default: exact norms)",
    Option("--probes", count(2, 10**5), "Gaussian probes per layer, at least 2", metavar="K"),
    Option("--sketch", count(3, 10**4), "columns of the sketch of Hutch++, at least 3", metavar="S"),
    flag("--power-iteration", "every sketch is of MᵀMS (3S + K products)"),
    flag("--secret-probes", "separate probes for every sample, never released"),
    flag("--public-probes", "the same probes for all samples, may be known"),
    Option("--rank", count(), "for the envelope, if every norm is estimated", metavar="RANK"),
    Option("--analysis", ("tight", "envelope"), "tight (default) or envelope (as published)", metavar="ANALYSIS"),
)
_WHO = "zero-out (default: one sample has no gradient), replace-one or add-remove (q chosen without N)"
NEIGHBOURS = grouped(
    "neighbouring relation",
    Option("--neighbours", tuple(_RELATIONS), _WHO, metavar="RELATION"),
    Option("--group", count(high=1000), "up to M samples of one person change together", metavar="M"),
)
ALSO = Option(
    "--also",
    _releases,
    "gaussian:σ, laplace:SCALE, approximate:ε:δ, gaussian-dp:μ or zcdp:ρ",
    metavar="RELEASE",
    is_list=True,
)
BESIDE = Option(
    "--beside",
    lambda name, text: _releases(name, text.split("+")),
    "noisy sums of the same batches, as gaussian:2+gaussian:3",
    metavar="RELEASES",
)
OF_A_PHASE = (*grouped("noise and batches", NOISE, *SAMPLING, BESIDE), *NORMS, *NEIGHBOURS)
"""What describes one phase of a run; all of them are options of ``--phase`` and keys of ``--phases``, too."""


def sampling_of(values: dict[str, Any]) -> tuple[Sampling, int]:
    """The scheme by which samples get into batches, and the number of steps; however the two were given."""
    scheme = values["sampling"] or "poisson"
    whatever, needed, meaningless = _SCHEMES[scheme]
    leave_out(values, meaningless, f"--sampling is {scheme}{whatever}", needed)
    if scheme in ("allocation", "fixed-order"):
        if not values["epochs"].is_integer():
            raise ParameterError("epochs", values["epochs"], f"an integer where --sampling is {scheme}")
        in_order = FixedOrder() if scheme == "fixed-order" else None
        drawn = in_order or RandomAllocation(values["steps_per_epoch"], values["participations"] or 1)
        return drawn, drawn.run_length(None, int(values["epochs"]))
    rate = _exact_rate(values)
    return _drawn(scheme, values, rounded_up(rate)), _steps(values, rate)


def _drawn(scheme: str, values: dict[str, Any], rate: float) -> Sampling:
    """The schemes that draw every batch anew."""
    if scheme == "fixed-size":
        return FixedSize(values["batch_size"], values["samples"])
    if scheme == "cyclic-poisson":
        check_real("sample_rate", rate, low=1e-9, high=1.0 / values["bands"])
        return CyclicPoisson(rate, values["bands"])
    if values["at_most"] is not None:
        leave_out(values, (), "--at-most is", ("samples",))
    return Poisson(rate, values["at_most"], values["samples"] if values["at_most"] else None)


def _exact_rate(values: dict[str, Any]) -> Fraction:
    if values["sample_rate"] is not None:
        leave_out(values, ("batch_size",) if values["at_most"] else ("samples", "batch_size"), "--sample-rate is given")
        return Fraction(values["sample_rate"])
    if values["samples"] is None and values["batch_size"] is None:
        leave_out(values, (), "--sampling is poisson, or --samples with --batch-size", ("sample_rate",))
    for name in ("samples", "batch_size"):
        leave_out(values, (), "the other of --samples and --batch-size is", (name,))
    return Fraction(check_count("batch_size", values["batch_size"], high=values["samples"]), values["samples"])


def _steps(values: dict[str, Any], rate: Fraction) -> int:
    if values["steps"] is not None:
        leave_out(values, ("epochs",), "--steps is given")
        return int(values["steps"])
    if values["epochs"] is None:
        leave_out(values, (), "--sampling is poisson, or --epochs", ("steps",))
    steps = math.ceil(Fraction(values["epochs"]) / rate)
    if steps > _MOST_STEPS:
        raise ParameterError("epochs", values["epochs"], f"at most {_MOST_STEPS:g} steps long")
    return steps


def norms_of(values: dict[str, Any]) -> Norms:
    """The norm method."""
    if values["probes"] is None:
        leave_out(values, [option.dest for option in NORMS], "--probes is not given")
        return ExactNorms()
    secret = bool(values["secret_probes"])
    if secret:
        leave_out(values, ("public_probes",), "--secret-probes is given")
    elif not values["public_probes"]:
        raise ParameterError("secret_probes", None, "given where --probes is, or --public-probes: ε depends on it")
    if values["sketch"] is None:
        leave_out(values, ("power_iteration",), "--sketch is not given")
        analysis: Any = values["analysis"] or "tight"
        return Hutchinson(values["probes"], secret=secret, rank=values["rank"], analysis=analysis)
    leave_out(values, ("rank",), "--sketch is given: part of the norm is exact then")
    if values["analysis"] == "envelope":
        allowed = "'tight' where --sketch is given, which the envelope cannot credit"
        raise ParameterError("analysis", "envelope", allowed)
    power_iteration = bool(values["power_iteration"])
    return HutchPlusPlus(values["probes"], values["sketch"], power_iteration=power_iteration, secret=secret)


def norms_label(norms: Norms) -> str:
    """The norm method in words, with who may see the probes."""
    if not isinstance(norms, (Hutchinson, HutchPlusPlus)):
        return "exact norms"
    probes = f"{norms.probes} {'secret' if norms.secret else 'public'} probes"
    sketch = f" and a sketch of {norms.sketch}" if isinstance(norms, HutchPlusPlus) else ""
    return f"{probes}{sketch}, {analysis_of(norms)} analysis"


def analysis_of(norms: Norms) -> str:
    """``exact``, ``tight`` or ``envelope``."""
    return "exact" if isinstance(norms, ExactNorms) else getattr(norms, "analysis", "tight")


def neighbours_of(values: dict[str, Any]) -> Neighbours:
    """The neighbouring relation."""
    relation = _RELATIONS[values["neighbours"] or "zero-out"]
    if isinstance(relation, AddRemove) and values.get("samples") is not None and values.get("sample_rate") is None:
        # (N0): this rate differs between neighbours, and the scale of the noise with it.
        allowed = "left out where --neighbours is add-remove: a rate B/N tells N; give --sample-rate, chosen without it"
        raise ParameterError("samples", values["samples"], allowed)
    if values["group"] is None:
        return relation
    if isinstance(relation, ReplaceOne):
        raise ParameterError("group", values["group"], "left out where --neighbours is replace-one")
    return Group(values["group"], relation)
