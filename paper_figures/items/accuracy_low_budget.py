"""Exact against randomized clipping at equal ε: stored runs of ``randomized_clipping_accuracy.py``."""

from __future__ import annotations

from pathlib import Path

from paper_figures._reproduction import Found, Item, Row, Scale
from paper_figures.items._seeded_runs import SeededRuns

RUNS = SeededRuns("randomized_clipping_accuracy.json")


def measure(scale: Scale, folder: Path) -> Found:
    exact, *methods = RUNS.variants
    rows = [Row(f"{exact}: accuracy", float(RUNS.last(exact).mean()), unit="%")]
    for method in methods:
        gain, error = RUNS.difference(method, exact)
        label = f"{method} against {exact}, paired, ± {error:.2g}"
        rows.append(Row(label, gain, unit="points", claim="within two errors of 0", holds=abs(gain) <= 2 * error))
    return Found(
        rows,
        differs="A small network on docstrings at ε = 6.7 with 16 shared probes (and a sketch of 16); the paper trains"
        " Llama-3.2-1B on BBC at ε = 0.7 with 32.",
        model="RoBERTa-like, 64 wide",
        data=RUNS.recipe,
        seeds=RUNS.seeds,
        pictures=["accuracy-low-budget.png"],
    )


ITEM = Item("accuracy-low-budget", "Exact against randomized clipping at equal ε", measure, form_only=True)
