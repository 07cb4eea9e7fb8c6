"""How per-sample norms are taken: from flat options to one of the library's values, and to words."""

from __future__ import annotations

from typing import Any

from dprmt._validation import ParameterError
from dprmt.accounting import ExactNorms, Hutchinson, HutchPlusPlus, Norms
from dprmt.cli._options import Option, choice, count, yes_or_no

NORMS = (
    Option(
        "--probes",
        count(low=2, high=10**5),
        "k, Gaussian probes per layer (>= 2), public unless --secret-probes; without it: exact norms",
        metavar="K",
    ),
    Option(
        "--sketch",
        count(low=3, high=10**4),
        "s, columns of the sketch of Hutch++ (>= 3); without it: Hutchinson",
        metavar="S",
    ),
    Option("--power-iteration", yes_or_no, "every sketch is of MᵀMS (3s + k products)", is_flag=True),
    Option("--secret-probes", yes_or_no, "every sample has probes of its own, which nobody sees", is_flag=True),
    Option("--rank", count(), "d, only if every parameter's norm is estimated; used by the envelope", metavar="D"),
    Option("--analysis", choice("tight", "envelope"), "tight (default) or envelope (the published one)"),
)


def norms_of(values: dict[str, Any]) -> Norms:
    """The value that the options describe."""
    if values["probes"] is None:
        _refuse(values, ("sketch", "power_iteration", "secret_probes", "rank", "analysis"), "--probes is not given")
        return ExactNorms()
    secret = bool(values["secret_probes"])
    if values["sketch"] is None:
        _refuse(values, ("power_iteration",), "--sketch is not given")
        analysis: Any = values["analysis"] or "tight"
        return Hutchinson(values["probes"], secret=secret, rank=values["rank"], analysis=analysis)
    _refuse(values, ("rank",), "--sketch is given: part of the norm is exact then")
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


def _refuse(values: dict[str, Any], names: tuple[str, ...], where: str) -> None:
    for name in names:
        if values[name]:
            value = "given" if values[name] is True else values[name]
            raise ParameterError(name, value, f"left out where {where}")
