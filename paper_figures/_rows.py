"""Rows as tables of the pages."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

from paper_figures._reproduction import Row
from paper_figures._states import WORST

BOLD = {"differs": "**differs**"}


def table_of(rows: Sequence[Row]) -> list[str]:
    """One line a row: ours with its interval, theirs with its margin, and the verdict."""
    lines = ["| quantity | ours | interval | published | margin | verdict |", "|---|---|---|---|---|---|"]
    for row in rows:
        verdict = row.verdict()
        unit = f" {row.unit}" if row.unit else ""
        ours = "none" if math.isnan(row.ours) else f"{row.ours:.4g}{unit}"
        printed = row.claim or ("–" if row.published is None else f"{row.published:.6g}")
        cells = (
            row.label.replace("|", "∣"),
            ours,
            _interval(row),
            printed,
            "–" if row.margin is None else f"{row.margin:.3g}",
            "–" if verdict is None else BOLD.get(verdict, verdict),
        )
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def _interval(row: Row) -> str:
    if row.interval is None:
        return "–"
    low, high = row.interval
    if low == high:
        return "exact"
    return f"{_end(low)} … {_end(high)}"


def _end(value: float) -> str:
    return f"{value:.4g}" if math.isfinite(value) else ("-∞" if value < 0 else "∞")


def verdict_counts(rows: Sequence[Row]) -> str:
    """In words, best first."""
    counted = Counter(row.verdict() for row in rows)
    found = [f"{counted[verdict]} {verdict}" for verdict in reversed(WORST) if counted[verdict]]
    return ", ".join(found) or "shown"
