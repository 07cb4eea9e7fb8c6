"""DP-GRAPE against DP-Adam at equal ε: stored runs of ``grape_accuracy.py``."""

from __future__ import annotations

from pathlib import Path

from paper_figures._published import published
from paper_figures._reproduction import Found, Item, Row, Scale
from paper_figures.items._seeded_runs import SeededRuns

PAPER = published("grape-accuracy")
RUNS = SeededRuns("grape_accuracy.json")


def measure(scale: Scale, folder: Path) -> Found:
    baseline, *methods = RUNS.variants
    allowed = PAPER.number("value", quantity="points")
    rows = [Row(f"{baseline}: accuracy", float(RUNS.last(baseline).mean()), unit="%")]
    for method in methods:
        gain, error = RUNS.difference(method, baseline)
        label = f"{method}: points behind {baseline}, paired, ± {error:.2g}"
        rows.append(Row(label, -gain, claim=f"at most {allowed:g}", holds=-gain <= allowed))
    return Found(
        rows,
        differs="A network 64 wide, trained from random weights on docstrings; the paper's are ten times as wide.",
        model="RoBERTa-like, 64 wide",
        data=RUNS.recipe,
        seeds=RUNS.seeds,
    )


ITEM = Item("grape-accuracy", "DP-GRAPE against DP-Adam", measure, form_only=True)
