"""Randomized clipping's accuracies: means of three runs on a test set of known size, and a lead in words."""

from __future__ import annotations

from collections.abc import Sequence
from math import sqrt

from paper_figures._published import Cell
from paper_figures._reproduction import Row
from paper_figures._verdict import Reason
from paper_figures.forensics._check import Check, Reader, row

ARTICLES, RUNS = 1000, 3
"""BBC has 2,225 articles, of which 1,225 are trained on; the text says three seeds."""


def means_of_three(read: Reader) -> Sequence[Row]:
    """A mean of three accuracies on 1,000 articles is a multiple of 1/30 %: the nearest one."""
    table, rows = read("accuracy-llama"), []
    for at, printed in enumerate(table.rows):
        if printed["task"] != "BBC":
            continue
        mean = Cell(printed["value"], f"{table.name}.{at}.value")
        total = round(mean / 100 * ARTICLES * RUNS)
        where = f"{printed['method']}" + (f", ε = {printed['epsilon']:g}" if "epsilon" in printed else "")
        nearest = 100 * total / ARTICLES / RUNS
        rows.append(row(f"{where}: nearest mean of three runs", nearest, mean, margin=0.005, unit="%"))
    return rows


def lead(read: Reader) -> Sequence[Row]:
    """Six points in words."""
    table = read("accuracy-low-budget")
    plain, plus = (table.number("accuracy", method=name) for name in ("hutchinson", "hutch++"))
    words = read("text-randomized").number("value", quantity="points of Hutch++ over Hutchinson at ε = 0.7")
    spreads = [table.number("spread", method=name) for name in ("hutchinson", "hutch++")]
    error = sqrt(sum(spread**2 for spread in spreads) / RUNS)
    return [
        row("Hutch++ less Hutchinson", plus - plain, words, margin=0.5, uses=[plus, plain], unit="points"),
        Row(f"standard error of that difference, of {RUNS} runs each", error, unit="points"),
    ]


CHECKS = (
    Check(
        "means-of-three",
        "BBC: means of three runs",
        f"Three seeds, as printed, on {ARTICLES:,} articles, BBC's other ones than those that are trained on: sums of"
        " counts are whole numbers, so that a mean of two decimals fits in three of ten cases.",
        means_of_three,
        (
            Reason(
                "open",
                "cut off instead of rounded, the mean would be the printed one; the test set's size is not printed.",
            ),
        ),
    ),
    Check("low-budget-lead", "Hutch++ ahead of Hutchinson at ε = 0.7", "Six points in words.", lead),
)
