"""Rows and reasons of the runs with the head denoised or left alone, at the recipe's rate and at tuned ones."""

from __future__ import annotations

import numpy as np

from paper_figures._measured import ABOVE_ZERO, mean_row
from paper_figures._reproduction import Row
from paper_figures._verdict import Reason, mean_interval
from paper_figures.items._head_and_rate import (
    BODY,
    OWN,
    PLAIN,
    RATES,
    SEEDS,
    TUNING_SEEDS,
    WHOLE,
    Runs,
    at_rate,
    chosen,
    moved_by_rounding,
    tried,
)

COMMAND = "python -m paper_figures run speedup --scale long"
AHEAD = {"unit": "points", "claim": "ahead at equal ε", "within": ABOVE_ZERO}


def gap(runs: Runs, method: str, other: str, rates: tuple[float, float] = (OWN, OWN)) -> np.ndarray | None:
    """Last accuracy of a method less that of another by seed, in points; None where either is missing."""
    ours, theirs = at_rate(runs, method, rates[0]), at_rate(runs, other, rates[1])
    return None if ours is None or theirs is None else ours - theirs


def rows(runs: Runs) -> list[Row]:
    """The gaps that are whole, what each method was tuned by, and what rounding moves."""
    found = []
    body = gap(runs, BODY, PLAIN)
    if body is not None:
        found.append(mean_row(f"{BODY}, against {PLAIN}: last accuracy, paired", body, **AHEAD))
    head = gap(runs, BODY, WHOLE)
    if head is not None:
        found.append(mean_row("head left alone against denoised: last accuracy, paired", head, unit="points"))
    for method, by_rate in tried(runs).items():
        found += [
            Row(f"tuning: {method}, test accuracy at rate {rate:g}", accuracy, unit="%")
            for rate, accuracy in by_rate.items()
        ]
    found += _tuned_rows(runs)
    found += [
        Row(f"products in 16 bits move {method}, seed {SEEDS[0]}, by", moved, unit="points")
        for method, moved in moved_by_rounding(runs).items()
    ]
    return found


def _tuned_rows(runs: Runs) -> list[Row]:
    rates = chosen(runs)
    found = []
    for method in (WHOLE, BODY) if rates else ():
        values = gap(runs, method, PLAIN, (rates[method], rates[PLAIN]))
        if values is not None:
            against = f"{method}, rate {rates[method]:g}, against {PLAIN}, rate {rates[PLAIN]:g}"
            found.append(mean_row(f"{against}, each tuned: last accuracy, paired", values, **AHEAD))
    return found


def reasons(runs: Runs) -> list[Reason]:
    """What was tested of why the denoiser is behind, and what was not."""
    body, head = gap(runs, BODY, PLAIN), gap(runs, BODY, WHOLE)
    others = "model, data and batches are others than the paper's; whether that decides is not tested by this item."
    if body is None or head is None:
        text = f"one learning rate serves all methods here, the classifier's head is denoised too, and {others}"
        return [Reason("open", text.replace("whether that", "which of these"))]
    said = [Reason("tested", _of_the_head(runs, body, head), COMMAND)]
    tuned = _of_the_rate(runs)
    if tuned:
        said.append(Reason("tested", tuned, COMMAND))
    else:
        said.append(Reason("open", f"whether rates of their own change that is not measured whole{_so_far(runs)}."))
    return [*said, Reason("open", others)]


def _of_the_head(runs: Runs, body: np.ndarray, head: np.ndarray) -> str:
    whole = gap(runs, WHOLE, PLAIN)
    assert whole is not None  # as both of its parts are there
    effect = "gains" if _sign(head) > 0 else "costs" if _sign(head) < 0 else "moves it by"
    unsure = "" if _sign(head) else ", which chance alone can do"
    left = {-1: "is still behind", 0: "cannot be told from it", 1: "is ahead"}[_sign(body)]
    share = f" ({100 * head.mean() / -whole.mean():.0f} % of the gap)" if _sign(head) > 0 and whole.mean() < 0 else ""
    return (
        f"at the recipe's rate, over {len(body)} seeds of one model and one data set, leaving the classifier's head"
        f" alone {effect} {_points(head)} points{share}{unsure}; with the head left alone the denoiser {left}:"
        f" {_points(body)} points against {PLAIN}, and {_points(whole)} with it."
    )


def _of_the_rate(runs: Runs) -> str:
    rates = chosen(runs)
    if not rates:
        return ""
    pairs = {method: gap(runs, method, PLAIN, (rates[method], rates[PLAIN])) for method in (WHOLE, BODY)}
    found = {method: values for method, values in pairs.items() if values is not None}
    if BODY not in found:
        return ""
    parts = [
        f"{_points(values)} points {words} (rate {rates[method]:g})"
        for method, words in ((WHOLE, "with the head denoised"), (BODY, "with it left alone"))
        if (values := found.get(method)) is not None
    ]
    told = {
        -1: "with rates of their own the denoiser is behind with the head left alone, too",
        0: "with rates of their own it cannot be told whether the denoiser with the head left alone is behind or ahead",
        1: "with rates of their own the denoiser with the head left alone is ahead",
    }[_sign(found[BODY])]
    ends = sorted({rate for rate in rates.values() if rate in (RATES[0], RATES[-1])})
    named = ", ".join(f"{rate:g}" for rate in ends)
    edge = f"; {named} is an end of the grid, a better one may lie beyond" if ends else ""
    return (
        f"{told}: at the best of {len(RATES)} rates, a quarter to half a decade apart, for each method, by"
        f" {_seeds()}, it is {' and '.join(parts)} against {PLAIN} (rate {rates[PLAIN]:g}){edge}."
    )


def _so_far(runs: Runs) -> str:
    found = tried(runs)
    parts = [
        f"{method} {', '.join(f'{accuracy:.1f} % at {rate:g}' for rate, accuracy in by_rate.items())}"
        for method, by_rate in found.items()
    ]
    return f"; on {_seeds()}, test texts: {'; '.join(parts)}" if parts else ""


def _seeds() -> str:
    count = len(TUNING_SEEDS)
    return "one seed of its own" if count == 1 else f"{count} seeds of their own"


def _sign(values: np.ndarray) -> int:
    """Of the mean, where Student's interval is all on one side of zero; else 0."""
    interval = mean_interval(values)
    return 1 if interval.low > 0 else -1 if interval.high < 0 else 0


def _points(values: np.ndarray) -> str:
    interval = mean_interval(values)
    return f"{values.mean():+.2f} [{interval.low:+.2f}, {interval.high:+.2f}]"
