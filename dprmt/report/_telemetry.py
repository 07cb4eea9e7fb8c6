"""Report sections on a run's telemetry: two questions, with a plot each."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from dprmt._validation import ParameterError
from dprmt.plots import plot_signal_shares
from dprmt.report._page import Picture, Section, along_steps
from dprmt.report._words import counted, layer_name, number, per_cent

Line = Mapping[str, Any]


def telemetry_sections(lines: Sequence[Line], truth: Mapping[str, float] | None = None) -> list[Section]:
    """Build the sections from a run's ``metrics.jsonl`` entries; ``truth`` has the last reading's shares of signal from
    the clean gradients.
    """
    full = [{"step": line["step"], **line["telemetry"]} for line in lines if "signal" in line.get("telemetry", {})]
    if not full:
        raise ParameterError("run", len(full), "one with telemetry, and some steps long")
    return [_learning(full), _layers(full[-1], truth or {})]


def _learning(full: Sequence[Line]) -> Section:
    title, read = "Is it learning?", [line for line in full if "z_window" in line]
    if not read:
        return Section(title, ["The slope was not read: the run is too short, or DP-GRAPE releases projections only."])
    steps, zs = [line["step"] for line in read], [line["z_window"] for line in read]
    verdict = "has no slope that stands out of the noise"
    if abs(zs[-1]) >= 2:
        verdict = "still falls" if zs[-1] > 0 else "rises, so the learning rate is too high"
    said = [
        f"Along the updates before step {steps[-1]} the objective {verdict} (z = {number(zs[-1], 1)}).",
        "z is the slope along the window's updates in units of its noise; without a slope it is standard normal. It is"
        " the slope of clipped gradients, which is not that of the loss where samples are clipped.",
    ]

    def draw(ax: Any) -> None:
        ax.axhspan(-2, 2, color="0.92", label="noise, in 95 % of readings")
        ax.plot(steps, zs, ".-", color="#0072b2", label="updates of the window")
        along_steps(ax, "z: above, the objective falls")

    picture = Picture(draw, "Slope along the updates of each window, in units of its noise, against the step")
    return Section(title, said, pictures=[picture], numbers={"steps": steps, "z_window": zs})


def _layers(last: Line, truth: Mapping[str, float]) -> Section:
    ends = {name: (e["value"], e["low"], e["high"]) for name, e in last["signal"].items() if name != "*"}
    whole, loud = last["signal"]["*"], sum(low > 0 for _, low, _ in ends.values())
    order = sorted(ends, key=lambda name: (-ends[name][1], -ends[name][0]))[:24]
    short, many = _short_names(ends), counted(len(ends), "layer")
    value, low, high = (_share(whole[end]) for end in ("value", "low", "high"))
    share = f"{value} ({low} to {high})" if whole["low"] > 0 else f"not told from noise, at most {high}"
    said = [
        f"In {loud} of {many} a signal is seen over the window that ends at step {last['step']}; in all layers together"
        f" the signal's share of the released gradient's squared norm is {share}.",
    ]
    if truth:
        held = sum(low <= truth[name] <= high for name, (_, low, high) in ends.items())
        said.append(f"Measured on clean gradients: {held} of {many} inside the interval of 95 %.")
    if len(order) < len(ends):
        said.append(f"The picture has the {len(order)} layers with the strongest signal.")

    def draw(ax: Any) -> None:
        shown = {short[name]: ends[name] for name in order}
        plot_signal_shares(shown, truth={short[name]: truth[name] for name in order} if truth else None, ax=ax)

    picture = Picture(draw, "Share of the signal in each layer's released gradient, with intervals")
    return Section("Which layers are noise?", said, pictures=[picture], numbers={"signal": ends, "whole": whole})


def _share(value: float) -> str:
    return per_cent(min(value, 1.0)) if value >= 5e-4 else "less than 0.1 %"


def _short_names(names: Iterable[str]) -> dict[str, str]:
    short = {name: layer_name(name) for name in names}
    return short if len(set(short.values())) == len(short) else {name: name for name in short}
