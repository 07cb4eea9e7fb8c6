"""What the runs amount to: how many intervals held the truth, when spikes came, what nulls looked like."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from dprmt.report import Table

STATISTICS = {
    "signal": "signal, all layers",
    "layers": "signal, by layer",
    "z": "slope along the last update",
    "change": "change of the objective",
    "rate_factor": "best rate of a step",
    "curvature": "curvature",
    "factor": "factor of the displacement",
}
_NORMAL = 1.959964  # z of 95 %
Values = Mapping[str, Mapping[str, Any]]


def coverage(values: Values) -> Table:
    """Of every kind of runs: readings whose interval of 95 % held what the clean gradients say, of all of them."""
    rows = []
    for kind, runs in _by_kind(values).items():
        hits = {name: [hit for run in runs for hit in _hits(run, name)] for name in STATISTICS}
        rows.append([kind, str(len(runs)), *(_share(hits[name]) for name in STATISTICS)])
    return Table(
        "Readings whose interval held the truth, in per cent, and how many there were.",
        ["runs", "number", *STATISTICS.values()],
        rows,
    )


def _by_kind(values: Values) -> dict[str, list[Mapping[str, Any]]]:
    kinds: dict[str, list[Mapping[str, Any]]] = {}
    for name, run in values.items():
        kinds.setdefault(name.rpartition(", seed ")[0], []).append(run)
    return kinds


def _hits(run: Mapping[str, Any], name: str) -> Iterable[bool]:
    if name == "z":
        return [abs(z - truth) <= _NORMAL for z, truth in zip(run["z"], run["z_truth"], strict=True)]
    if name == "layers":
        return [_held(entry) for layers in run["layers"] for entry in layers.values()]
    return [_held(reading[name]) for reading in run["readings"] if name in reading]


def _held(entry: Sequence[float | None]) -> bool:
    # Truth, low, value, high; what is infinite is nothing.
    truth, low, _, high = entry
    at = math.inf if truth is None else truth
    slack = 1e-3 * abs(at) if math.isfinite(at) else 0.0  # four digits are kept
    return (-math.inf if low is None else low) <= at + slack and at - slack <= (math.inf if high is None else high)


def _share(hits: Sequence[bool]) -> str:
    return f"{100 * sum(hits) / len(hits):.1f} ({len(hits)})" if hits else "–"


def first_spikes(values: Values) -> Table:
    """Of every kind: matrices by when their first spike was seen and when the clean gradients' mean predicts it."""
    rows = []
    for kind, runs in _by_kind(values).items():
        matrices = [_first(lines) for run in runs for lines in run["spikes"].values()]
        both = [(seen, due) for seen, due in matrices if math.isfinite(seen) and math.isfinite(due)]
        ratios = sorted(seen / due for seen, due in both)
        middle = f"{ratios[len(ratios) // 2]:.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f})" if ratios else "–"
        only = [
            sum(math.isfinite(a) > math.isfinite(b) for a, b in order)
            for order in (matrices, [m[::-1] for m in matrices])
        ]
        rows.append([kind, str(len(matrices)), str(len(both)), middle, *map(str, only)])
    header = [
        "runs",
        "matrices",
        "seen and predicted",
        "seen over predicted step, median (range)",
        "only seen",
        "only predicted",
    ]
    return Table(
        "First spikes of displacements within the run, against the time that the clean gradients predict.", header, rows
    )


def _first(lines: Sequence[Sequence[Any]]) -> tuple[float, float]:
    seen = next((float(step) for step, spikes, *_ in lines if spikes), math.inf)
    due = next((float(step) for step, _, _, needed in lines if needed is not None and step >= needed), math.inf)
    return seen, due


def nulls(values: Values) -> Table:
    """What the last reading of every run says: of data, of shuffled labels, and of none."""
    rows = []
    for kind, runs in _by_kind(values).items():
        ends = [run["readings"][-1] for run in runs]
        rows.append(
            [
                kind,
                _mean(run["losses"][0] for run in runs),
                _mean(run["losses"][-1] for run in runs),
                _mean(end["change"][2] for end in ends if "change" in end),
                f"{sum(map(_falls, ends))} of {len(ends)}",
                f"{sum(end['signal'][1] > 0 for end in ends)} of {len(ends)}",
                _mean(end["signal"][2] for end in ends),
                _advice(ends),
            ]
        )
    header = [
        "runs",
        "loss at first",
        "at last",
        "change read",
        "seen to learn",
        "signal seen",
        "signal share",
        "advice",
    ]
    return Table("The last readings. The losses are private ones of the batches.", header, rows)


def _falls(end: Mapping[str, Any]) -> bool:
    high = end["change"][3] if "change" in end else None
    return high is not None and high < 0


def _mean(values: Iterable[float | None]) -> str:
    known = [value for value in values if value is not None]
    return f"{sum(known) / len(known):.3f}" if known else "–"


def _advice(ends: Sequence[Mapping[str, Any]]) -> str:
    said = [end["advice"] for end in ends if "advice" in end]
    return ", ".join(f"{word}: {said.count(word)}" for word in dict.fromkeys(said)) or "–"
