"""GLUE: speed-ups from steps, steps and speed-ups from accuracies, and one version's accuracies beside the other's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from paper_figures._published import Cell, Published
from paper_figures._reproduction import Row
from paper_figures._verdict import Reason
from paper_figures.forensics._check import Check, Reader, row, statement

NAMES = {"SST": "SST-2"}
"""A task of version 1 by its name in version 3, where the two differ."""
METHODS = ("baseline", "denoised")
SHARES = {90: 0.9, 95: 0.95}
HALF = 0.05
"""Half a unit of the last digit of an accuracy."""


def speedups_of_steps(read: Reader) -> Sequence[Row]:
    """Version 1: steps of the baseline over steps of the denoised run, less 1."""
    table, rows = read("steps-to-reference"), []
    for printed in table.rows:
        where = {name: printed[name] for name in ("task", "model")}
        for share in SHARES:
            if f"speedup_{share}" not in printed:
                continue
            slow, fast = (table.number(f"{name}_steps_{share}", **where) for name in METHODS)
            found = table.number(f"speedup_{share}", **where)
            label = f"{printed['task']}, {printed['model']}: speed-up to {share} % of the reference"
            rows.append(row(label, 100 * (slow / fast - 1), found, margin=0.5, uses=[slow, fast], unit="%"))
    return rows


def steps_of_accuracies(read: Reader) -> Sequence[Row]:
    """Version 1's steps to a share of the reference, in the range that accuracies at steps 200 and 400 leave."""
    steps, glue, rows = read("steps-to-reference"), read("speedup"), []
    for printed in steps.rows:
        where = {name: printed[name] for name in ("task", "model")}
        for method in METHODS:
            last = steps.number(method, **where)
            early, spread = (_at(glue, where, 200, column) for column in (method, f"{method}_spread"))
            for share, factor in SHARES.items():
                wanted = factor * printed["reference"]
                label = f"{printed['task']}, {printed['model']}, {method}: steps to {wanted:.4g} %"
                within, claim = _range(wanted, early, 2 * spread + HALF)
                column = f"{method}_steps_{share}"
                if column not in printed:
                    claim = "never, so below it at step 400"
                    rows.append(statement(f"{label}; accuracy at step 400", last, claim, (0.0, wanted), [last]))
                    continue
                number = steps.number(column, **where)
                if within != (0.0, 400.0):
                    rows.append(statement(label, number, claim, within, [number, early]))
                label = f"{label}; accuracy at step 400"
                rows.append(statement(label, last + HALF, "at least that", (wanted, 100.0), [last], unit="%"))
    return rows


def _range(wanted: float, early: float, reach: float) -> tuple[tuple[float, float], str]:
    if wanted <= early - reach:
        return (0.0, 200.0), f"at most 200: {early:g} % there"
    if wanted > early + reach:
        return (200.0, 400.0), f"200 to 400: {early:g} % at 200"
    return (0.0, 400.0), "at most 400"


def versions(read: Reader) -> Sequence[Row]:
    """Last accuracies of version 1 beside the means of version 3."""
    old, new, rows = read("steps-to-reference"), read("speedup"), []
    for printed in old.rows:
        where = {name: printed[name] for name in ("task", "model")}
        for method in METHODS:
            mean, spread = (_at(new, where, 400, column) for column in (method, f"{method}_spread"))
            label = f"{printed['task']}, {printed['model']}, {method}: accuracy at step 400, mean of version 3"
            ends = (mean - HALF, mean + HALF)
            old_number = old.number(method, **where)
            rows.append(row(label, mean, old_number, margin=2 * spread + HALF, ends=ends, uses=[mean], unit="%"))
    return rows


def speedups_of_accuracies(read: Reader) -> Sequence[Row]:
    """Table 1's speed-ups in the range that its accuracies leave a curve that rises ever more slowly."""
    table, rows = read("speedup"), []
    for where in _models(table):
        accuracies = {(m, step): _at(table, where, step, m) for m in METHODS for step in (200, 400)}
        label = f"{where['task']}, {where['model']}"
        early, late = accuracies["denoised", 200], accuracies["denoised", 400]
        if early > accuracies["baseline", 200]:
            found = _at(table, where, 200, "speedup")
            uses = [found, accuracies["baseline", 200], early]
            rows.append(statement(f"{label}: speed-up at step 200", found, "> 0, ahead there", (1e-9, 100), uses))
        wanted = accuracies["baseline", 400]
        uses = [wanted, early, late]
        if not _has(table, where, 400):
            behind = f"{label}, no speed-up at step 400: baseline less denoised there"
            rows.append(statement(behind, wanted - late, "> 0", (1e-9, 100.0), uses, unit="points"))
            continue
        found = _at(table, where, 400, "speedup")
        ends = [50 * (1 - _share(wanted + a, early + b, late + c)) for a in SLACK for b in SLACK for c in SLACK]
        claim = f"from {max(min(ends), 0):.3g}, on the line from step 200 to 400, to {max(50.0, *ends):.3g}"
        within = (min(ends), max(50.0, *ends))
        rows.append(statement(f"{label}: speed-up at step 400", found, claim, within, [found, *uses]))
    return rows


SLACK = (-HALF, HALF)


def _share(wanted: float, early: float, late: float) -> float:
    # How far along the line between steps 200 and 400 the wanted accuracy lies.
    return min((wanted - early) / (late - early), 1.0) if late > early else 1.0


def in_words(read: Reader) -> Sequence[Row]:
    """What the text says of the tables."""
    table, steps = read("speedup"), read("steps-to-reference")
    words, old_words = read("text-denoising"), read("text-denoising-v1")
    rows = []
    for step in (200, 400):
        chosen = [_at(table, where, step, "speedup") for where in _models(table) if _has(table, where, step)]
        for name, pick in (("least", min), ("largest", max)):
            label = f"{name} speed-up at step {step}"
            rows.append(row(label, pick(chosen), words.number("value", quantity=label), margin=0.0, unit="%"))
    saved = max(_at(table, where, 200, "epsilon_saved") for where in _models(table))
    label = "largest ε saved at step 200"
    rows.append(row(label, saved, words.number("value", quantity=label), margin=0.0))
    all_speedups = [printed[f"speedup_{share}"] for printed in steps.rows for share in SHARES if _both(printed, share)]
    for name, pick in (("least", min), ("largest", max)):
        label = f"{name} improvement in steps"
        rows.append(row(label, pick(all_speedups), old_words.number("value", quantity=label), margin=0.0, unit="%"))
    higher = sum(printed["denoised"] > printed["baseline"] for printed in steps.rows)
    label = "last accuracies that are higher, of eight"
    return [*rows, row(label, higher, old_words.number("value", quantity=label), margin=0.0)]


def _both(printed: Mapping[str, Any], share: int) -> bool:
    return f"speedup_{share}" in printed


def _models(table: Published) -> list[dict[str, Any]]:
    return [{name: printed[name] for name in ("task", "model")} for printed in table.rows if printed["step"] == 200]


def _row(table: Published, where: Mapping[str, Any], step: int) -> Mapping[str, Any]:
    task = NAMES.get(where["task"], where["task"])
    (found,) = (
        printed
        for printed in table.rows
        if (printed["task"], printed["model"], printed["step"]) == (task, where["model"], step)
    )
    return found


def _has(table: Published, where: Mapping[str, Any], step: int) -> bool:
    return "speedup" in _row(table, where, step)


def _at(table: Published, where: Mapping[str, Any], step: int, column: str) -> Cell:
    task = NAMES.get(where["task"], where["task"])
    return table.number(column, task=task, model=where["model"], step=step)


CHECKS = (
    Check(
        "speedups-of-steps",
        "Tables 2 and 3 of version 1: speed-ups from steps",
        "Steps of the baseline over those of the denoised run, less 1.",
        speedups_of_steps,
    ),
    Check(
        "steps-of-accuracies",
        "Tables 2 and 3 of version 1: steps from accuracies",
        "The accuracy that is asked for is a share of the reference. Where version 3's mean at step 200 is above it by"
        " more than two spreads, the steps are at most 200, where it is as far below, more; and at step 400 it is"
        " reached exactly if a number of steps is printed.",
        steps_of_accuracies,
        (
            Reason(
                "open",
                "version 1 prints one run of each, and its baseline needed 250 steps on SST for what version 3's has at"
                " step 200 on average.",
            ),
        ),
    ),
    Check(
        "versions",
        "Accuracies at step 400, version 1 against version 3",
        "The mean of version 3 against the number of version 1, margin two of version 3's spreads.",
        versions,
        (Reason("open", "version 1 does not say how many runs a number is of, nor what was changed since."),),
    ),
    Check(
        "speedups-of-accuracies",
        "Table 1 of version 3: speed-ups from accuracies",
        "The denoised run has the baseline's last accuracy after step 200, unless it has it there already: the speed-up"
        " at step 400 is at most 50 %. If accuracy rises ever more slowly, it is at least that on the line from step"
        " 200 to 400. Last digits give slack.",
        speedups_of_accuracies,
    ),
    Check("glue-in-words", "GLUE in words", "Least and largest entries of the tables, and a count.", in_words),
)
