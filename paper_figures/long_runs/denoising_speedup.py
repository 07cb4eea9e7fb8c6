"""Table 1 of arXiv:2510.01137v3 in its form: accuracy with and without denoising, steps and ε saved.

"denoised" is the paper's denoiser, "blended" that of ``docs/theory/sure_denoiser.md``; both of every matrix,
output layers included, which recipes leave alone by default. What of it is the head's: ``python -m paper_figures run
speedup --scale long``.

The paper's own rows are RoBERTa on GLUE (``--recipe roberta-base-sst2``, a GPU and the hub); the default is the
offline recipe.

Usage: ``python -m paper_figures study denoising-speedup FOLDER [--seeds 5] [--jobs 2] [--plot OUT.png]
[--results OUT.json]``
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from paper_figures import shrinkers  # noqa: F401 (registers "blend")
from paper_figures.long_runs._comparison import run_comparison
from paper_figures.studies import MetricCurve, null_speedups, speedups

VARIANTS: dict[str, dict[str, Any]] = {
    "DP-LoRA": {"denoising.method": "none"},
    "denoised": {"denoising.method": "paper", "denoising.exclude": ()},
    "blended": {"denoising.method": "blend", "denoising.exclude": ()},
}


def table(curves: dict[str, MetricCurve]) -> None:
    (first, baseline), *methods = curves.items()
    last = len(baseline.steps) - 1
    milestones = [int(baseline.steps[last // 2]), int(baseline.steps[last])]
    if len(baseline.values) > 1:
        for null in null_speedups(baseline, milestones):
            saved = f"speedup {100 * null.mean:.1f} ± {100 * null.spread:.1f} %, {null.never:.0%} never reach it"
            print(f"step {null.step}: {first} against itself, half of the runs against the others: {saved}")
    for name, method in methods:
        for row in speedups(baseline, method, milestones):
            ours, theirs = (baseline.metric.shown(*score) for score in (row.method, row.baseline))
            saved = "never reaches it"
            if row.speedup is not None:
                saved = f"at step {row.steps_needed:.1f}: speedup {100 * row.speedup:.1f} %, Δε {row.epsilon_saved:.2f}"
            print(f"step {row.step}: {first} {theirs}, {name} {ours}; the baseline's {baseline.metric.name} {saved}")


def main(arguments: Sequence[str]) -> None:
    """Carry out the command."""
    run_comparison(
        arguments,
        (__doc__ or "").splitlines()[0],
        VARIANTS,
        table,
        recipe="minilm-docstrings",
        seeds=5,
        changes={"evaluation.every": 2},
    )
