"""What the page shows of the stored runs: sentences, tables and a picture."""

from __future__ import annotations

from statistics import fmean
from typing import Any

from dprmt.report import Table
from paper_figures._picture import COLORS, MARKERS
from paper_figures.automatic_rate._cells import CELLS, SHORT
from paper_figures.automatic_rate._sums import (
    Values,
    by_problem,
    findings,
    learnable,
    regrets,
    seeds_of,
    summary,
    warnings,
)

_SHOWN = {"retroactive": "retroactive, each run", "one rate": "one fixed rate", "linear": "best linearly decayed"}


def text(values: Values) -> str:
    """Sentences and tables."""
    seeds = sorted(len(seeds_of(values, cell)) for cell in CELLS)
    parts = [
        f"{len(values)} stored runs, of {_from_to(seeds[0], seeds[-1])} seeds a problem.",
        "",
        *(f"- {sentence}" for sentence in findings(values)),
    ]
    short = summary(values, SHORT)
    tables = [summary(values), by_problem(values), Table("The same in runs of 25 steps.", short.header, short.rows)]
    for table in (*tables, by_problem(values, SHORT), warnings(values)):
        rows = [table.header, ["---"] * len(table.header), *table.rows]
        parts += ["", f"*{table.caption}*", "", *("| " + " | ".join(row) + " |" for row in rows)]
    return "\n".join(parts)


def _from_to(first: int, last: int) -> str:
    return f"{first}" if first == last else f"{first} to {last}"


def draw(axes: Any, values: Values) -> None:
    """Regret of every run of the rule, problem by problem, beside that of rates that somebody has to choose."""
    cells = learnable(values, CELLS)
    axes.figure.set_size_inches(7.6, 7.4)
    for number, (rule, label) in enumerate(_SHOWN.items()):
        xs, ys = [], []
        for place, cell in enumerate(cells):
            found = regrets(values, cell, rule)
            points = found if rule == "retroactive" else [fmean(found)]
            xs += points
            ys += [place + 0.25 * (number - 1)] * len(points)
        size = 8 if rule == "retroactive" else 22
        axes.scatter(xs, ys, s=size, color=COLORS[number], marker=MARKERS[number], label=label, linewidths=0)
    axes.axvspan(-5, 5, color="0.93", zorder=0)
    axes.axvline(0, color="0.6", linewidth=0.8, zorder=0)
    axes.set_xscale("symlog", linthresh=5)
    axes.set_xticks([-100, -10, -5, 0, 5, 10, 100], ["-100", "-10", "-5", "0", "5", "10", "100"])
    names = [f"{cell.task}, {cell.optimizer}, σ = {cell.noise_multiplier:g}" for cell in cells]
    axes.set_yticks(range(len(cells)), names, fontsize=6.5)
    axes.set_ylim(len(cells) - 0.4, -0.6)
    axes.set_xlabel("regret against the best fixed rate of the grid, per cent; within 5 % is grey")
    axes.legend(loc="upper center", bbox_to_anchor=(0.4, -0.06), ncol=3)
