"""Report sections on a run's telemetry: four questions, with a plot each."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from dprmt._validation import ParameterError
from dprmt.report._page import Picture, Section, Table
from dprmt.report._words import counted, matrices, number, per_cent

_MOST = 24  # layers of a picture
_WRAPPED = ("base_model.model.", "_module.", ".default")

Line = Mapping[str, Any]


def telemetry_sections(lines: Sequence[Line], truth: Sequence[Line] = ()) -> list[Section]:
    """Build the sections from a run's ``metrics.jsonl`` entries; ``truth`` has ``step`` and ``truth`` as in
    `TelemetryTruth`.
    """
    read = [{"step": line["step"], **line["telemetry"]} for line in lines if line.get("telemetry")]
    full = [line for line in read if "signal" in line]
    if not full:
        raise ParameterError("run", len(read), "one with telemetry, and some steps long")
    known = {line["step"]: line["truth"] for line in truth}
    return [_learning(read, known), _layers(full, known), _rate(full, known), _displacement(full, known)]


def measured_telemetry_sections(steps: Sequence[Line]) -> list[Section]:
    """Return the same of a run whose clean gradients were measured: predicted against measured; empty without a
    reading.
    """
    if not any("signal" in step["telemetry"] for step in steps):
        return []
    truth = [step for step in steps if "truth" in step]
    first, *others = telemetry_sections(steps, truth)
    crosses = "; the crosses, and what is measured, are from the clean gradients" if truth else ""
    said = (
        f"This and the following three sections are what {counted(len(steps), 'step')} of the recipe, without a"
        f" denoiser, show from released values alone{crosses}."
    )
    finding, *more = first.sentences
    return [replace(first, sentences=[finding, said, *more]), *others]


class _Curve:
    """An estimate with its interval along the readings, and the true values where all are known."""

    def __init__(self, lines: Sequence[Line], known: Mapping[int, Line], name: str, truth: str, least: float) -> None:
        self.steps = [line["step"] for line in lines]
        ends = {"value": math.inf, "low": least, "high": math.inf}  # in a file of lines, what is infinite is null
        self.columns = [[_number(line[name][end], at) for line in lines] for end, at in ends.items()]
        truths: list[Any] = [known.get(step, {}).get(truth) for step in self.steps]
        self.truth = None if None in truths else [float(value) for value in truths]
        self.numbers = {"steps": self.steps, **dict(zip(ends, self.columns, strict=True))}

    def measured(self, form: str) -> list[str]:
        """A sentence on the true values, if they are known."""
        if self.truth is None:
            return []
        held = sum(low <= true <= high for true, low, high in zip(self.truth, *self.columns[1:], strict=True))
        many = counted(len(self.truth), "reading")
        return [f"Measured on clean gradients: {_text(self.truth[-1], form)}; in the interval at {held} of {many}."]


def _learning(read: Sequence[Line], known: Mapping[int, Line]) -> Section:
    from dprmt.plots import plot_objective_change

    seen = [line for line in read if "change" in line and _finite(line["change"]["value"])]
    title = "Is it learning?"
    if not seen:
        z = next((line["z_window"] for line in reversed(read) if _finite(line.get("z_window"))), None)
        falls = "neither falls nor rises for all that is seen" if abs(z or 0) < 2 else "still falls"
        falls = "still rises" if (z or 0) <= -2 else falls
        slope = "" if z is None else f" Along the last updates it {falls} (z = {number(z, 1)})."
        why = (
            "The optimizer's answer to a gradient is not known (DP-GRAPE's is not), or a denoiser precedes it, or the"
            " run is too short."
        )
        return Section(title, [f"The change of the objective was not read.{slope}", why])
    curve = _Curve(seen, known, "change", "change", -math.inf)
    value, low, high = (column[-1] for column in curve.columns)
    verdict = "it is learning" if high < 0 else "it gets worse" if low > 0 else "not told from standing still"
    ends = f"{_text(value, '+.3g')} ({_text(low, '+.3g')} to {_text(high, '+.3g')})"
    said = [
        f"By step {curve.steps[-1]} the objective had changed by {ends}: {verdict}.",
        *curve.measured("+.3g"),
        "This is the work of the clipped gradients along the updates since the third step; where samples are clipped,"
        " that is not the loss. The band holds at all readings at once, with 95 %. What an update shares with its own"
        " batch makes the curve fall by up to half the rate times C²/L a step, even where nothing can be learnt.",
    ]

    def draw(ax: Any) -> None:
        plot_objective_change(curve.steps, *curve.columns, truth=curve.truth, ax=ax)

    alt = "Estimated change of the objective against the step, with its band"
    return Section(title, said, pictures=[Picture(draw, alt)], numbers=curve.numbers)


def _layers(full: Sequence[Line], known: Mapping[int, Line]) -> Section:
    from dprmt.plots import plot_signal_shares

    last = full[-1]
    ends = {name: (e["value"], e["low"], e["high"]) for name, e in last["signal"].items() if name != "*"}
    whole, loud = last["signal"]["*"], sum(low > 0 for _, low, _ in ends.values())
    order = sorted(ends, key=lambda name: (-ends[name][1], -ends[name][0]))[:_MOST]
    short, many = _short_names(ends), counted(len(ends), "layer")
    truth = known.get(last["step"], {}).get("signal", {})
    value, low, high = (_share(whole[end]) for end in ("value", "low", "high"))
    share = f"{value} ({low} to {high})" if whole["low"] > 0 else f"not told from noise, at most {high}"
    said = [
        f"In {loud} of {many} a signal is seen over the window that ends at step {last['step']}; in all layers together"
        f" the signal's share of the released gradient's squared norm is {share}.",
        "Of a layer in which none is seen every value of its interval is possible; what a step does to it is noise"
        " for all that was released.",
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


def _rate(full: Sequence[Line], known: Mapping[int, Line]) -> Section:
    from dprmt.plots import plot_rate_advice

    title, seen = "Is the rate too high or too low?", [line for line in full if "advice" in line]
    best = next((line["best_rate"] for line in reversed(full) if "best_rate" in line), None)
    one = []
    if best is not None:
        value, low, high = (_text(best[end], ".2g") for end in ("value", "low", "high"))
        one.append(
            f"For the next step alone, without regard to those after it, {value} would be best ({low} to {high}); under"
            " momentum that says little."
        )
    if not seen:
        return Section(title, ["It was not read: advice needs the objective's change, and begins at step 20.", *one])
    advice = [{"step": line["step"], **line["advice"]} for line in seen]
    curve = _Curve(advice, known, "factor", "displacement_factor", math.inf)
    said = [
        f"At step {curve.steps[-1]}: {advice[-1]['says']}.",
        *curve.measured(".2f"),
        "Read as a line search: made this factor longer or shorter, all that was done would have decreased the"
        " objective most. The rate is off in the same direction, by another factor. No option acts on it.",
        *one,
    ]

    def draw(ax: Any) -> None:
        plot_rate_advice(curve.steps, *curve.columns, truth=curve.truth, ax=ax)

    alt = "Factor by which all that was done should have been longer, against the step, with its interval"
    numbers = curve.numbers | {"factor": curve.columns[0], "rate": [one["rate"] for one in advice]}
    return Section(title, said, pictures=[Picture(draw, alt)], numbers=numbers)


def _displacement(full: Sequence[Line], known: Mapping[int, Line]) -> Section:
    from dprmt.plots import plot_displacement_spikes

    title, seen = "Since when can the displacement be seen?", [line for line in full if line.get("displacement")]
    names = [n for n in (seen[-1]["displacement"] if seen else {}) if all(n in line["displacement"] for line in seen)]
    if not names:
        why = "no parameter is a matrix, or all of them move in subspaces, as under DP-GRAPE"
        return Section(title, [f"The displacement was not read, or {why}."])
    steps, short = [line["step"] for line in seen], _short_names(names)
    at = {name: [(line["step"], line["displacement"][name]) for line in seen] for name in names}
    first = {name: next((step for step, reading in at[name] if reading["spikes"]), math.inf) for name in names}
    visible = {name: step for name, step in first.items() if _finite(step)}
    tops = {name: [_number(reading["top_over_edge"], 0.0) for _, reading in at[name]] for name in names}
    expected = {name: _expected(name, seen, known) for name in names} if known else {}
    soonest = min(first, key=lambda name: first[name])
    moved = f", first {short[soonest]}, seen at step {first[soonest]}" if visible else f", by step {steps[-1]}"
    said = [
        f"Of {matrices(len(names))} {len(visible) or 'none'} moved in a direction that stands out of the noise{moved}.",
        "A signal adds up like the number of steps, noise like its root: so every steady signal of low rank shows"
        " sooner or later. That nothing stands out does not say that nothing was learnt; a spread signal has no spike.",
    ]
    table = Table.of(
        "Largest singular value over the edge of the noise at the last reading, and the first reading with a spike.",
        sorted(names, key=lambda name: first[name])[:_MOST],
        {
            "matrix": lambda name: short[name],
            "over the edge": lambda name: f"{tops[name][-1]:.2f}",
            "seen at step": lambda name: f"{first[name]:g}" if name in visible else "not seen",
            "expected at step": lambda name: (
                "–" if not known else f"{expected[name]:g}" if _finite(expected[name]) else "later"
            ),
        },
    )

    def draw(ax: Any) -> None:
        shown = {short[name]: values for name, values in tops.items()}
        since, when = ({short[n]: s for n, s in marks.items()} for marks in (visible, expected))
        plot_displacement_spikes(steps, shown, since, predicted=when, ax=ax)

    alt = "Largest singular value of every matrix' displacement over the edge of its noise, against the step"
    numbers = {"steps": steps, "top_over_edge": tops, "first": first, "expected": expected}
    return Section(title, said, tables=[table], pictures=[Picture(draw, alt)], numbers=numbers)


def _expected(name: str, seen: Sequence[Line], known: Mapping[int, Line]) -> float:
    # The first step at which as many steps had passed as the mean clean gradient until then needs.
    times = ((step, known[step]["predicted"][name]) for step in (line["step"] for line in seen) if step in known)
    return next((float(step) for step, needed in times if needed is not None and step >= needed), math.inf)


def _number(value: float | None, otherwise: float) -> float:
    return otherwise if value is None else float(value)


def _finite(value: Any) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)


def _short_names(names: Iterable[str]) -> dict[str, str]:
    short = {}
    for name in names:
        text = name
        for part in _WRAPPED:
            text = text.replace(part, "")
        short[name] = text if len(text) <= 44 else "…" + text[-43:]
    return short if len(set(short.values())) == len(short) else {name: name for name in short}


def _text(value: float | None, form: str) -> str:
    if value is None or not math.isfinite(value):
        return "−∞" if value == -math.inf else "∞"
    return format(value, form).replace("-", "−")
