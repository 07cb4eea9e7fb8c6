"""Peak memory of a step of DP-GRAPE against DP-Adam: counted for the whole models, measured on one layer of each."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from paper_figures._measured import exact_row
from paper_figures._pieces import Pieces
from paper_figures._published import published
from paper_figures._reproduction import Found, Item, Row, Scale
from paper_figures._verdict import Reason

PAPER = published("grape-memory")
METHODS = ("DP-Adam", "DP-GRAPE")


def measure(scale: Scale, folder: Path) -> Found:
    from benchmarks.grape import FULL, QUICK

    number = {case.name: at for at, case in enumerate(FULL)}
    cases = QUICK[:2] if scale == "small" else FULL[:2]
    pieces = Pieces(folder, "grape-memory", scale)
    found = pieces.measure(
        {
            f"{case.name}, {method}": lambda case=case, method=method: _apart(number[case.name], method, scale)  # type: ignore[misc]
            for case in cases
            for method in METHODS
        }
    )
    smallest, largest = (PAPER.number("value", quantity=f"memory saved, {end}") for end in ("smallest", "largest"))
    against: dict[str, Any] = {
        "claim": f"{smallest:g} to {largest:g} %, to 1 point",
        "within": (smallest - 1, largest + 1),
        "cells": (smallest.key, largest.key),
    }
    rows = []
    for case in cases:
        adam, grape = (found[f"{case.name}, {method}"] for method in METHODS)
        where = f"{case.name}, {case.layers} layers, B = {case.batch}, T = {case.tokens}, r = {case.rank}"
        saved = 100 * (1 - grape["peak"] / adam["peak"])
        rows.append(exact_row(f"{where}: measured peak saved", saved, unit="%", **against))
        formed = 100 * (1 - grape["formed"] / adam["formed"])
        rows.append(Row(f"{where}: per-sample gradients saved", formed, unit="%"))
    return Found(
        rows,
        differs="Bytes of live tensors on a CPU, random weights, embeddings frozen; which printed number is of which"
        " model is not in the notes.",
        reasons=[
            Reason(
                "open",
                "the paper's batches and ranks for each model are not in the notes; all layers instead of one are"
                " `python -m paper_figures run grape-memory --scale paper`.",
            )
        ],
        model=", ".join(case.name for case in cases),
        earlier_seconds=pieces.earlier_seconds,
    )


def _apart(number: int, method: str, scale: Scale) -> dict[str, Any]:
    from benchmarks.grape import measure_one_apart

    return measure_one_apart(number, method, full=scale == "paper")


ITEM = Item("grape-memory", "Peak memory of DP-GRAPE against DP-Adam", measure, scales=("small", "paper"))
