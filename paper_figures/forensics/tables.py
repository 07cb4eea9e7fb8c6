"""Tables of generation: printed twice, counted, and rows that are the same."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import combinations
from operator import eq, gt

from paper_figures._published import Cell, Published
from paper_figures._reproduction import Row
from paper_figures._verdict import Reason
from paper_figures.forensics._check import Check, Reader, row, statement

METRICS = {"BLEU": 0.01, "ROUGE_L": 0.01, "METEOR": 0.001, "NIST": 0.01, "CIDEr": 0.01}
"""One unit of the last digit."""
LABELS = ("data", "model", "method")


def printed_twice(read: Reader) -> Sequence[Row]:
    """Table 2 of version 3 against Table 4 of version 1."""
    new, old = read("generation-50"), read("generation-50-v1")
    return [
        row(
            f"{', '.join(printed[name] for name in LABELS)}: {metric.replace('_', '-')}",
            old.number(metric, **{name: printed[name] for name in LABELS}),
            new.number(metric, **{name: printed[name] for name in LABELS}),
            margin=0.0,
            uses=[old.number(metric, **{name: printed[name] for name in LABELS})],
        )
        for printed in new.rows
        for metric in METRICS
    ]


def ahead(table: Published, compare: Callable[[float, float], bool] = gt) -> int:
    """In how many of the 50 combinations the denoised model's number is larger."""
    return sum(compare(denoised, baseline) for baseline, denoised in _pairs(table))


def _pairs(table: Published) -> Iterator[tuple[float, float]]:
    baseline, denoised = (
        [printed for printed in table.rows if printed["method"] == m] for m in ("baseline", "denoised")
    )
    for before, after in zip(baseline, denoised, strict=True):
        for metric in METRICS:
            yield before[metric], after[metric]


def counts(read: Reader) -> Sequence[Row]:
    """49 and 35 of 50 are ahead in the text."""
    rows = []
    for step in (50, 400):
        table, printed = read(f"generation-{step}"), read("generation-counts").number("ahead", step=step)
        ours, ties = ahead(table), ahead(table, eq)
        rows.append(row(f"step {step}: combinations ahead", ours, printed, margin=0.0))
        rows.append(Row(f"step {step}: combinations that are equal", ties))
        rows.append(row(f"step {step}: ahead or equal", ours + ties, printed, margin=0.0))
    printed = read("text-denoising").number("value", quantity="combinations ahead after 50 steps, of 50")
    rows.append(row("version 3, step 50: combinations ahead", ahead(read("generation-50")), printed, margin=0.0))
    return rows


def nearly_equal_rows(read: Reader) -> Sequence[Row]:
    """Pairs of rows, of different models or methods, whose metrics differ by at most one unit of the last digit."""
    rows = []
    for name in ("generation-50", "generation-400"):
        table = read(name)
        for first, second in combinations(range(len(table.rows)), 2):
            cells = [[Cell(table.rows[at][m], f"{name}.{at}.{m}") for m in METRICS] for at in (first, second)]
            units = max(abs(a - b) / unit for a, b, unit in zip(*cells, METRICS.values(), strict=True))
            if units < 1.5:
                who = " and ".join(", ".join(table.rows[at][label] for label in LABELS) for at in (first, second))
                claim = "more than 1: these are different models"
                label = f"{table.place}, {who}: largest difference in units of the last digit"
                rows.append(statement(label, units, claim, (1.5, float("inf")), [*cells[0], *cells[1]]))
        rows.append(Row(f"{table.place}: pairs of rows", len(table.rows) * (len(table.rows) - 1) / 2))
    return rows


CHECKS = (
    Check(
        "printed-twice",
        "Table 2 of version 3 is Table 4 of version 1",
        "Every entry of the one in the other.",
        printed_twice,
    ),
    Check(
        "counts",
        "Combinations in which the denoised model is ahead",
        "Counted in the tables, larger being better, and with those that are equal.",
        counts,
        (
            Reason(
                "tested",
                "with one entry that is equal in both rows counted as ahead, step 50 has the 49 of the text; at step"
                " 400 that leaves 34, one less than its 35.",
                "python -m paper_figures forensics counts",
            ),
        ),
    ),
    Check(
        "nearly-equal-rows",
        "Rows of two models that are the same",
        "All pairs of rows of a table; shown are those that differ by at most one unit of the last digit in all five"
        " metrics.",
        nearly_equal_rows,
        (
            Reason(
                "open",
                "the same run in two rows would look like this; of which of the two models it is, print does not show.",
            ),
        ),
    ),
)
