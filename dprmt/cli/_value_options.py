"""How norms are taken, whose privacy, what else is released: from flat options to the library's values."""

from __future__ import annotations

from typing import Any

from dprmt._validation import ParameterError, did_you_mean
from dprmt.accounting import (
    AddRemove,
    ApproximateRelease,
    ExactNorms,
    GaussianRelease,
    Group,
    Hutchinson,
    HutchPlusPlus,
    LaplaceRelease,
    Neighbours,
    Norms,
    Release,
    ReplaceOne,
    ZeroOut,
)
from dprmt.cli._options import Option, choice, count, grouped, leave_out, yes_or_no

NORMS = grouped(
    "how norms are taken",
    Option(
        "--probes",
        count(low=2, high=10**5),
        "k, Gaussian probes per layer (>= 2), secret or public; else exact norms",
        metavar="K",
    ),
    Option(
        "--sketch",
        count(low=3, high=10**4),
        "s, columns of the sketch of Hutch++ (>= 3); without it: Hutchinson",
        metavar="S",
    ),
    Option("--power-iteration", yes_or_no, "every sketch is of MᵀMS (3s + k products)", is_flag=True),
    Option("--secret-probes", yes_or_no, "every sample has separate probes, which no one ever sees", is_flag=True),
    Option("--public-probes", yes_or_no, "one matrix of probes per layer and step, which may be known", is_flag=True),
    Option("--rank", count(), "d, only if every parameter's norm is estimated; used by the envelope", metavar="D"),
    Option(
        "--analysis", choice("tight", "envelope"), "tight (default) or envelope (the published one)", metavar="KIND"
    ),
)


def norms_of(values: dict[str, Any]) -> Norms:
    """The value that the options describe."""
    if values["probes"] is None:
        leave_out(
            values,
            ("sketch", "power_iteration", "secret_probes", "public_probes", "rank", "analysis"),
            "--probes is not given",
        )
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
        raise ParameterError(
            "analysis", "envelope", "'tight' where --sketch is given, which the envelope cannot credit"
        )
    power_iteration = bool(values["power_iteration"])
    return HutchPlusPlus(values["probes"], values["sketch"], power_iteration=power_iteration, secret=secret)


def norms_label(norms: Norms) -> str:
    """The value in words; they say who may see the probes."""
    if not isinstance(norms, (Hutchinson, HutchPlusPlus)):
        return "exact norms"
    probes = f"{norms.probes} {'secret' if norms.secret else 'public'} probes"
    sketch = f" and a sketch of {norms.sketch}" if isinstance(norms, HutchPlusPlus) else ""
    return f"{probes}{sketch}, {analysis_of(norms)} analysis"


def analysis_of(norms: Norms) -> str:
    """``exact``, ``tight`` or ``envelope``."""
    return "exact" if isinstance(norms, ExactNorms) else getattr(norms, "analysis", "tight")


_RELATIONS = {relation.kind: relation for relation in (ZeroOut(), AddRemove(), ReplaceOne())}
_RELEASES = {"gaussian": (GaussianRelease, 1), "laplace": (LaplaceRelease, 1), "approximate": (ApproximateRelease, 2)}
_FORM = "gaussian:SIGMA, laplace:SCALE or approximate:EPSILON:DELTA, in units of what neighbours can change"

NEIGHBOURS = grouped(
    "whose privacy",
    Option(
        "--neighbours",
        choice(*_RELATIONS),
        "zero-out (default: one sample has no gradient), add-remove (if rate and divisor are chosen without the number"
        " of samples) or replace-one",
        metavar="KIND",
    ),
    Option(
        "--group",
        count(high=1000),
        "up to M samples of one person change at once; in [1, 1000]",
        metavar="M",
    ),
)


def neighbours_of(values: dict[str, Any]) -> Neighbours:
    """The value that the options describe."""
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


def _read_releases(name: str, texts: Any) -> tuple[Release, ...]:
    return tuple(_read_release(name, text) for text in texts)


def _read_release(name: str, text: str) -> Release:
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


def _read_beside(name: str, text: str) -> tuple[Release, ...]:
    return _read_releases(name, text.split("+"))


BESIDE = Option(
    "--beside",
    _read_beside,
    "gaussian:SIGMA, a noisy sum of the same batches such as a count, in units of what one sample adds; several: A+B",
    metavar="RELEASE",
)
"""What every step releases of its batch in addition to the clipped sum."""
ALSO = Option(
    "--also",
    _read_releases,
    "gaussian:SIGMA, laplace:SCALE or approximate:EPSILON:DELTA; repeatable",
    metavar="RELEASE",
    is_list=True,
)
"""Releases beside the run."""
