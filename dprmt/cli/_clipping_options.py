"""How per-sample norms are taken: from options to a mechanism, and to words."""

from __future__ import annotations

from typing import Any

from dprmt._validation import ParameterError
from dprmt.accounting import DPSGD, RandomizedClipping
from dprmt.cli._options import Option, choice, count, yes_or_no
from dprmt.cli._sampling_options import batch_keywords

_DEFAULTS = {
    "rank": None,
    "analysis": "tight",
    "probe_sharing": "batch",
    "sketch": None,
    "power_iteration": False,
}
"""Keywords of :class:`RandomizedClipping` beside its number of probes."""

CLIPPING = (
    Option(
        "--probes",
        count(low=2, high=10**5),
        "k, Gaussian probes per layer (>= 2); without it: exact norms",
        metavar="K",
    ),
    Option("--rank", count(), "d, only if every parameter's norm is estimated; used by the envelope", metavar="D"),
    Option("--analysis", choice("tight", "envelope"), "tight (default) or envelope (the published one)"),
    Option("--probe-sharing", choice("batch", "sample"), "batch (default) or sample: secret probes for every sample"),
    Option(
        "--sketch",
        count(low=3, high=10**4),
        "s, columns of the sketch of Hutch++ (>= 3); without it: Hutchinson",
        metavar="S",
    ),
    Option(
        "--power-iteration",
        yes_or_no,
        "yes if every sketch is of MᵀMS (3s + k products), else no (default)",
        metavar="{yes,no}",
    ),
)


def clipping_keywords(values: dict[str, Any]) -> dict[str, Any]:
    """Keywords for ``RandomizedClipping``; empty for exact norms."""
    if values["probes"] is not None:
        keywords = {name: default if values[name] is None else values[name] for name, default in _DEFAULTS.items()}
        return {"probes": values["probes"], **keywords}
    for name in _DEFAULTS:
        if values[name] is not None:
            raise ParameterError(name, values[name], "left out where --probes is not given")
    return {}


def mechanism(values: dict[str, Any]) -> DPSGD | RandomizedClipping:
    """The mechanism of one step."""
    keywords = clipping_keywords(values)
    kind: Any = RandomizedClipping if keywords else DPSGD
    return kind(values["noise_multiplier"], **batch_keywords(values), **keywords)


def clipping_details(values: dict[str, Any]) -> dict[str, Any]:
    """What an answer in JSON says of the analysis."""
    keywords = clipping_keywords(values)
    if not keywords:
        return {"analysis": "exact"}
    sketched = ("sketch", "power_iteration") if keywords["sketch"] is not None else ()
    return {name: keywords[name] for name in ("analysis", "probe_sharing", *sketched)}


def clipping_label(values: dict[str, Any]) -> str:
    """The same in words."""
    keywords = clipping_keywords(values)
    sampled = "" if values["sampling"] in (None, "poisson") else ", random allocation"
    if not keywords:
        return f"exact norms{sampled}"
    sharing = "secret probes per sample" if keywords["probe_sharing"] == "sample" else "probes shared by the batch"
    sketch = "" if keywords["sketch"] is None else f" and a sketch of {keywords['sketch']}"
    return f"{keywords['probes']} probes{sketch}, {keywords['analysis']} analysis, {sharing}{sampled}"
