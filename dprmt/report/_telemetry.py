"""Report sections on a run's telemetry: four questions, with a plot each."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from dprmt._validation import ParameterError
from dprmt.report._page import Picture, Section, Table
from dprmt.report._words import counted, matrices, number, per_cent

_MOST = 24  # layers of a picture
_WRAPPED = ("base_model.model.", "_module.", ".default")

Line = Mapping[str, Any]
Numbers = list[float]


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
    said = (
        f"This and the following three sections are what {counted(len(steps), 'step')} of the recipe, without a"
        " denoiser, say of themselves from released values alone"
    )
    beside = "; the crosses, and what is measured, are from the clean gradients." if truth else "."
    finding, *more = first.sentences
    return [replace(first, sentences=[finding, said + beside, *more]), *others]


def _learning(read: Sequence[Line], known: Mapping[int, Line]) -> Section:
    from dprmt.plots import plot_objective_change

    seen = [line for line in read if "change" in line and _finite(line["change"]["value"])]
    title = "Is it learning?"
    if not seen:
        why = (
            "The optimizer's answer to a gradient is not known (DP-GRAPE's is not), or a denoiser stands before it, or"
        )
        last = next((line["z_window"] for line in reversed(read) if _finite(line.get("z_window"))), None)
        falls = "" if last is None else f" {_slopes(last)}"
        return Section(title, [f"The change of the objective was not read.{falls}", f"{why} the run is too short."])
    columns = _columns(seen, "change")
    value, low, high = (column[-1] for column in columns)
    sentence = (
        f"By step {seen[-1]['step']} the objective had changed by {_signed(value)} ({_signed(low)} to {_signed(high)})"
    )
    verdict = "it is learning" if high < 0 else "it gets worse" if low > 0 else "not told from standing still"
    measured = _truths(seen, known, "change")
    said = [f"{sentence}: {verdict}."]
    if measured:
        held = sum(a <= t <= b for t, a, b in zip(measured, *columns[1:], strict=True))
        said.append(
            f"Measured on clean gradients: {_signed(measured[-1])}; in the band at {held} of"
            f" {counted(len(measured), 'reading')}."
        )
    said.append(
        "This is the work of the clipped gradients along the updates since the third step; where samples are clipped,"
        " that is not the loss. The band holds at all readings at once, with 95 %. What an update shares with its own"
        " batch makes the curve fall by up to half the rate times C²/L a step, even where nothing can be learnt."
    )
    steps = [line["step"] for line in seen]

    def draw(ax: Any) -> None:
        plot_objective_change(steps, *columns, truth=measured or None, ax=ax)

    alt = "Estimated change of the objective against the step, with its band"
    numbers = {"steps": steps, "value": columns[0], "low": columns[1], "high": columns[2]}
    return Section(title, said, pictures=[Picture(draw, alt)], numbers=numbers)


def _layers(full: Sequence[Line], known: Mapping[int, Line]) -> Section:
    from dprmt.plots import plot_signal_shares

    last = full[-1]
    ends = {name: (e["value"], e["low"], e["high"]) for name, e in last["signal"].items() if name != "*"}
    whole, loud = last["signal"]["*"], [name for name, (_, low, _) in ends.items() if low > 0]
    order = sorted(ends, key=lambda name: (-ends[name][1], -ends[name][0]))[:_MOST]
    short = _short_names(ends)
    truth = known.get(last["step"], {}).get("signal", {})
    said = [
        f"In {len(loud)} of {counted(len(ends), 'layer')} a signal is seen over the window that ends at step"
        f" {last['step']}; in all layers together {_whole_share(whole)}.",
        "Of a layer in which none is seen every value of its interval is possible; what a step does to it is noise"
        " for all that was released.",
    ]
    if truth:
        held = sum(low <= truth[name] <= high for name, (_, low, high) in ends.items())
        said.append(
            f"Measured on clean gradients: {held} of {counted(len(ends), 'layer')} inside the interval of 95 %."
        )
    if len(order) < len(ends):
        said.append(f"The picture has the {len(order)} layers with the strongest signal.")

    def draw(ax: Any) -> None:
        shown = {short[name]: ends[name] for name in order}
        plot_signal_shares(shown, truth={short[name]: truth[name] for name in order} if truth else None, ax=ax)

    alt = "Share of the signal in each layer's released gradient, with intervals"
    return Section(
        "Which layers are noise?", said, pictures=[Picture(draw, alt)], numbers={"signal": ends, "whole": whole}
    )


def _whole_share(share: Mapping[str, float]) -> str:
    of = "of the released gradient's squared norm"
    if share["low"] <= 0:
        return f"no signal is told from noise: it is {_small_share(share['high'], 'at most ')} {of}"
    ends = f"{_small_share(share['low'])} to {_small_share(share['high'])}"
    return f"{_small_share(share['value'])} {of} is signal ({ends})"


def _small_share(value: float, before: str = "") -> str:
    return f"{before}{per_cent(min(value, 1.0))}" if value >= 5e-4 else "less than 0.1 %"


def _rate(full: Sequence[Line], known: Mapping[int, Line]) -> Section:
    from dprmt.plots import plot_rate_advice

    title, seen = "Is the rate too high or too low?", [line for line in full if "advice" in line]
    best = next((line["best_rate"] for line in reversed(full) if "best_rate" in line), None)
    one = ""
    if best is not None and best["low"] == 0 and not _finite(best["high"]):
        one = "For the next step alone every rate may be the best, for all that was released."
    elif best is not None and _finite(best["value"]):
        one = (
            f"For the next step alone, without regard to those after it, {_rate_of(best['value'])} would be best"
            f" ({_rate_of(best['low'])} to {_rate_of(best['high'])}); under momentum that says little."
        )
    if not seen:
        return Section(
            title,
            ["It was not read: advice needs the objective's change, and begins at step 20.", *filter(None, [one])],
        )
    columns = _columns([line["advice"] for line in seen], "factor")
    steps, measured = [line["step"] for line in seen], _truths(seen, known, "displacement_factor")
    last = seen[-1]["advice"]
    said = [f"At step {steps[-1]}: {last['says']}."]
    if measured:
        held = sum(a <= t <= b for t, a, b in zip(measured, *columns[1:], strict=True))
        said.append(
            f"Measured on clean gradients: {_factor(measured[-1])}; in the interval at {held} of"
            f" {counted(len(measured), 'reading')}."
        )
    said += [
        "Read as a line search: made this factor longer or shorter, all that was done would have decreased the"
        " objective most. The rate is off in the same direction, by another factor. No option acts on it.",
        *filter(None, [one]),
    ]

    def draw(ax: Any) -> None:
        plot_rate_advice(steps, *columns, truth=measured or None, ax=ax)

    alt = "Factor by which all that was done should have been longer, against the step, with its interval"
    numbers = {"steps": steps, "rate": [line["advice"]["rate"] for line in seen], "factor": columns[0]}
    numbers |= {"low": columns[1], "high": columns[2]}
    return Section(title, said, pictures=[Picture(draw, alt)], numbers=numbers)


def _displacement(full: Sequence[Line], known: Mapping[int, Line]) -> Section:
    from dprmt.plots import plot_displacement_spikes

    title, seen = "Since when can the displacement be seen?", [line for line in full if line.get("displacement")]
    names = [n for n in (seen[-1]["displacement"] if seen else {}) if all(n in line["displacement"] for line in seen)]
    if not names:
        why = "no parameter is a matrix, or all of them move in subspaces, as under DP-GRAPE"
        return Section(title, [f"The displacement was not looked at, or {why}."])
    steps, short = [line["step"] for line in seen], _short_names(names)
    first = {
        name: next((line["step"] for line in seen if line["displacement"][name]["spikes"]), math.inf) for name in names
    }
    visible = {name: step for name, step in first.items() if _finite(step)}
    tops = {name: [_number(line["displacement"][name]["top_over_edge"], 0.0) for line in seen] for name in names}
    expected = _expected(seen, known, names)
    if visible:
        soonest = min(visible, key=lambda name: visible[name])
        sentence = (
            f"Of {matrices(len(names))} {len(visible)} moved in a direction that stands out of the noise, first"
            f" {short[soonest]}, seen at step {visible[soonest]}."
        )
    else:
        sentence = (
            f"Of {matrices(len(names))} looked at none has moved in a direction that stands out of the noise, by step"
            f" {steps[-1]}."
        )
    said = [
        sentence,
        "A signal adds up like the number of steps, noise like its root: so every steady signal of low rank shows"
        " sooner or later. That nothing stands out does not say that nothing was learnt; a spread signal has no spike.",
    ]
    rows = [
        [
            short[n],
            f"{tops[n][-1]:.2f}",
            f"{visible[n]:g}" if n in visible else "not seen",
            _when(expected.get(n), expected),
        ]
        for n in sorted(names, key=lambda n: first[n])[:_MOST]
    ]
    table = Table(
        "Largest singular value over the edge of the noise at the last reading, and the first reading with a spike.",
        ["matrix", "over the edge", "seen at step", "expected at step"],
        rows,
    )

    def draw(ax: Any) -> None:
        shown = {short[name]: values for name, values in tops.items()}
        since, when = ({short[n]: s for n, s in marks.items()} for marks in (visible, expected if known else {}))
        plot_displacement_spikes(steps, shown, since, predicted=when, ax=ax)

    alt = "Largest singular value of every matrix' displacement over the edge of its noise, against the step"
    numbers = {"steps": steps, "top_over_edge": tops, "first": first, "expected": expected}
    return Section(title, said, tables=[table], pictures=[Picture(draw, alt)], numbers=numbers)


def _expected(seen: Sequence[Line], known: Mapping[int, Line], names: Sequence[str]) -> dict[str, float]:
    # The first step at which as many steps had passed as the mean clean gradient until then needs.
    found = {}
    for name in names if known else ():
        times = [(line["step"], known[line["step"]]["predicted"][name]) for line in seen if line["step"] in known]
        found[name] = next((float(step) for step, needed in times if needed is not None and step >= needed), math.inf)
    return found


def _when(step: float | None, expected: Mapping[str, float]) -> str:
    if not expected:
        return "–"
    return "later" if step is None or not _finite(step) else f"{step:g}"


def _columns(lines: Sequence[Line], name: str) -> list[Numbers]:
    value = [_number(line[name]["value"], math.inf) for line in lines]
    low = [_number(line[name]["low"], -math.inf if name == "change" else math.inf) for line in lines]
    high = [_number(line[name]["high"], math.inf) for line in lines]
    return [value, low, high]


def _number(value: float | None, otherwise: float) -> float:
    # In a file of lines, what is infinite is nothing.
    return otherwise if value is None else float(value)


def _finite(value: Any) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)


def _truths(lines: Sequence[Line], known: Mapping[int, Line], name: str) -> Numbers:
    found = [known.get(line["step"], {}).get(name) for line in lines]
    numbers = [float(value) for value in found if value is not None]
    return numbers if len(numbers) == len(found) else []


def _slopes(z: float) -> str:
    if abs(z) < 2:
        return f"Along the last updates it neither falls nor rises for all that is seen (z = {number(z, 1)})."
    return f"Along the last updates it still {'falls' if z > 0 else 'rises'} (z = {number(z, 1)})."


def _short_names(names: Any) -> dict[str, str]:
    short = {}
    for name in names:
        text = name
        for part in _WRAPPED:
            text = text.replace(part, "")
        short[name] = text if len(text) <= 44 else "…" + text[-43:]
    return short if len(set(short.values())) == len(short) else {name: name for name in names}


def _signed(value: float) -> str:
    return "∞" if value == math.inf else "−∞" if value == -math.inf else f"{value:+.3g}".replace("-", "−")


def _rate_of(value: float | None) -> str:
    return "∞" if value is None or not math.isfinite(value) else f"{value:.2g}"


def _factor(value: float) -> str:
    return "∞" if not math.isfinite(value) else f"{value:.2f}"
