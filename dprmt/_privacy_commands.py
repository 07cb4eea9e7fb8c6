"""The commands ``epsilon``, ``noise``, ``delta`` and ``tradeoff``."""

from __future__ import annotations

import argparse
import json
import math
import sys
from typing import Any

import numpy as np

from dprmt._options import Option, Parser, choice, count, read_options, real
from dprmt._pictures import check_picture_name, save_picture
from dprmt._rounding import round_down, round_up
from dprmt._validation import ParameterError
from dprmt.accounting import (
    DPSGD,
    Composition,
    PrivacyBounds,
    RandomizedClipping,
    calibrate_noise_multiplier,
    clt_mu,
    compose,
)

_NOISE = Option("--noise-multiplier", real(low=1e-3, high=1e6), "σ, noise in units of the clipping norm", required=True)
_RATE = Option("--sample-rate", real(low=1e-9, high=1.0), "q, in [1e-9, 1]", required=True)
_STEPS = Option("--steps", count(high=10**9), "T, an integer in [1, 1e9]", required=True)
_DELTA = Option("--delta", real(low=1e-290, high=1.0, high_open=True), "δ, in [1e-290, 1)", required=True)
_EPSILON = Option("--epsilon", real(low=0.0, high=1e9), "ε, in [0, 1e9]", required=True)
_TARGET = Option("--epsilon", real(low=0.0, low_open=True), "target ε, > 0", required=True)
_CLIPPING = (
    Option("--probes", count(low=2, high=10**5), "k, Gaussian probes per layer (>= 2); without it: exact norms"),
    Option("--rank", count(), "d, only if every parameter's norm is estimated; used by the envelope"),
    Option("--analysis", choice("tight", "envelope"), "tight (default) or envelope (the published one)"),
    Option("--probe-sharing", choice("batch", "sample"), "batch (default) or sample: secret probes for every sample"),
)
_POINTS = Option("--points", count(low=2, high=100_001), "number of false positive rates (default 101)", default=101)

_OPTIONS = {
    "epsilon": (_NOISE, _RATE, _STEPS, _DELTA, *_CLIPPING),
    "noise": (_TARGET, _RATE, _STEPS, _DELTA, *_CLIPPING),
    "delta": (_NOISE, _RATE, _STEPS, _EPSILON, *_CLIPPING),
    "tradeoff": (_NOISE, _RATE, _STEPS, *_CLIPPING, _POINTS),
}


def add_commands(commands: argparse._SubParsersAction[Parser]) -> None:
    """Declare the four commands."""
    summaries = {
        "epsilon": "ε of a training run at δ",
        "noise": "the smallest noise multiplier for a target (ε, δ)",
        "delta": "δ of a training run at ε",
        "tradeoff": "the trade-off curve of a training run (f-DP), as csv, JSON or picture",
    }
    runs = {"epsilon": run_epsilon, "noise": run_noise, "delta": run_delta, "tradeoff": run_tradeoff}
    for name, summary in summaries.items():
        parser = commands.add_parser(name, help=summary, description=summary, allow_abbrev=False)
        for option in _OPTIONS[name]:
            option.add_to(parser)
        parser.add_argument("--json", action="store_true", help="one JSON object on stdout and nothing else")
        if name == "tradeoff":
            parser.add_argument("--plot", metavar="FILE", help="write a picture (png, pdf or svg)")
        parser.set_defaults(run=runs[name])


def run_epsilon(namespace: argparse.Namespace) -> None:
    """``dprmt epsilon``."""
    values = _values("epsilon", namespace)
    run = _run(values)
    by_direction = run.epsilon_by_direction(values["delta"])
    worst = run_worst(by_direction)
    document = {"epsilon": _finite(worst), **_details(worst, by_direction, values)}
    _print(namespace, document, _sentences("ε", worst, f"δ = {values['delta']:g}", by_direction, values))


def run_delta(namespace: argparse.Namespace) -> None:
    """``dprmt delta``."""
    values = _values("delta", namespace)
    by_direction = _run(values).delta_by_direction(values["epsilon"])
    worst = run_worst(by_direction)
    document = {"delta": _finite(worst), **_details(worst, by_direction, values)}
    _print(namespace, document, _sentences("δ", worst, f"ε = {values['epsilon']:g}", by_direction, values))


def run_noise(namespace: argparse.Namespace) -> None:
    """``dprmt noise``."""
    values = _values("noise", namespace)
    options = {name: values[name] for name in ("rank", "analysis", "probe_sharing") if values[name] is not None}
    try:
        sigma = calibrate_noise_multiplier(
            values["epsilon"], values["delta"], values["sample_rate"], values["steps"], values["probes"], **options
        )
    except ParameterError as error:
        name = "epsilon" if error.name == "target_epsilon" else error.name
        raise ParameterError(name, error.value, error.allowed) from None
    by_direction = _run({**values, "noise_multiplier": sigma}).epsilon_by_direction(values["delta"])
    worst = run_worst(by_direction)
    document = {"noise_multiplier": sigma, "epsilon": _finite(worst), **_details(worst, by_direction, values)}
    lines = [f"noise multiplier = {round_up(sigma)}"]
    lines += _sentences("ε", worst, f"δ = {values['delta']:g}", by_direction, values)
    _print(namespace, document, lines)


def run_tradeoff(namespace: argparse.Namespace) -> None:
    """``dprmt tradeoff``."""
    values = _values("tradeoff", namespace)
    if namespace.plot is not None:
        check_picture_name("dprmt tradeoff", namespace.plot)
    # Denser where curves bend: near both ends.
    alpha = (1.0 - np.cos(np.linspace(0.0, np.pi, values["points"]))) / 2.0
    band = _run(values).trade_off(alpha)
    if namespace.plot is not None:
        from dprmt.plots import plot_trade_off

        mu = None
        if values["probes"] is None:
            mu = clt_mu(values["noise_multiplier"], values["sample_rate"], values["steps"])
        save_picture(namespace.plot, lambda ax: plot_trade_off({_label(values): band}, gaussian_mu=mu, ax=ax))
    columns = {"alpha": band.alpha, "lower": band.lower, "estimate": band.estimate, "upper": band.upper}
    document = {**{name: column.tolist() for name, column in columns.items()}, "analysis": _analysis(values)}
    rows = zip(*columns.values(), strict=True)
    lines = [",".join(columns), *(",".join(f"{number:.9g}" for number in row) for row in rows)]
    if namespace.plot is not None and not namespace.json:
        lines = [f"wrote {namespace.plot}"]
    _print(namespace, document, lines)


def _values(command: str, namespace: argparse.Namespace) -> dict[str, Any]:
    values = read_options(namespace, _OPTIONS[command])
    for name in ("rank", "analysis", "probe_sharing"):
        if values["probes"] is None and values[name] is not None:
            raise ParameterError(name, values[name], "left out where --probes is not given")
    return values


def _run(values: dict[str, Any]) -> Composition:
    sigma, rate = values["noise_multiplier"], values["sample_rate"]
    if values["probes"] is None:
        return compose([(DPSGD(sigma, rate), values["steps"])])
    mechanism = RandomizedClipping(
        sigma,
        rate,
        values["probes"],
        rank=values["rank"],
        analysis=values["analysis"] or "tight",
        probe_sharing=values["probe_sharing"] or "batch",
    )
    return compose([(mechanism, values["steps"])])


def run_worst(by_direction: dict[Any, PrivacyBounds]) -> PrivacyBounds:
    """The larger of both directions.

    Returns
    -------
    PrivacyBounds
        With its direction.
    """
    from dprmt.accounting._bounds import worst_of

    return worst_of(by_direction)


def _finite(bounds: PrivacyBounds) -> dict[str, float | None]:
    """JSON has no infinity: ``null`` says that nothing finite could be certified."""
    return {name: value if math.isfinite(value) else None for name, value in bounds.as_dict().items()}


def _analysis(values: dict[str, Any]) -> str:
    return "exact" if values["probes"] is None else values["analysis"] or "tight"


def _label(values: dict[str, Any]) -> str:
    if values["probes"] is None:
        return "exact norms"
    sharing = "secret probes per sample" if values["probe_sharing"] == "sample" else "probes shared by the batch"
    return f"{values['probes']} probes, {_analysis(values)} analysis, {sharing}"


def _details(worst: PrivacyBounds, by_direction: dict[Any, PrivacyBounds], values: dict[str, Any]) -> dict[str, Any]:
    details = {
        "direction": worst.direction,
        "by_direction": {name: _finite(bounds) for name, bounds in by_direction.items()},
        "analysis": _analysis(values),
    }
    if values["probes"] is not None:
        details["probe_sharing"] = values["probe_sharing"] or "batch"
    return details


def _sentences(
    symbol: str,
    worst: PrivacyBounds,
    at: str,
    by_direction: dict[Any, PrivacyBounds],
    values: dict[str, Any],
) -> list[str]:
    lines = [f"{symbol} <= {round_up(worst.upper)} at {at}  ({_label(values)})"]
    if math.isinf(worst.upper):
        lines = [f"no finite {symbol} could be certified at {at}  ({_label(values)})"]
    for name, bounds in by_direction.items():
        decides = "  <- decides" if name == worst.direction else ""
        lines.append(f"  {name:<7}{round_down(bounds.lower)} <= {symbol} <= {round_up(bounds.upper)}{decides}")
    return lines


def _print(namespace: argparse.Namespace, document: dict[str, Any], lines: list[str]) -> None:
    if namespace.json:
        lines = [json.dumps(document, allow_nan=False)]
    sys.stdout.write("\n".join(lines) + "\n")
