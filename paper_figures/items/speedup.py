"""Accuracy with and without denoising at equal ε, in the form of Table 1, on the recipe that needs no download.

``denoising_speedup.py`` trains, resumably, and writes ``results/denoising_speedup.json``.
"""

from __future__ import annotations

from pathlib import Path

from paper_figures._reproduction import Found, Item, Row, Scale
from paper_figures.items._seeded_runs import SeededRuns

RUNS = SeededRuns("denoising_speedup.json")


def measure(scale: Scale, folder: Path) -> Found:
    baseline, *methods = RUNS.variants
    rows = [Row(f"{baseline}: last accuracy", float(RUNS.last(baseline).mean()), unit="%")]
    for method in methods:
        gain, error = RUNS.difference(method, baseline)
        rows.append(
            Row(
                f"{method} against {baseline}: last accuracy, paired, ± {error:.2g}",
                gain,
                unit="points",
                claim="ahead at equal ε",
                holds=gain > 2 * error,
            )
        )
    return Found(
        rows,
        differs="A sentence encoder on Python's docstrings instead of RoBERTa on GLUE; every matrix is denoised, the"
        " classifier's head included.",
        model="all-MiniLM-L6-v2 with LoRA",
        data=RUNS.recipe,
        seeds=RUNS.seeds,
    )


ITEM = Item("speedup", "Accuracy with and without denoising", measure, form_only=True)
