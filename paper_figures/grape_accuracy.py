"""DP-GRAPE against DP-Adam on the offline recipe (arXiv:2506.15588: within a point), full fine-tuning, equal ε.

Usage: ``python paper_figures/grape_accuracy.py FOLDER [--seeds 5] [--jobs 2] [--plot OUT.png]``
"""

from __future__ import annotations

import math

from _comparison import run_comparison

from dprmt.training.validation import AccuracyCurve

VARIANTS = {
    "DP-Adam": {"optimizer.name": "adam", "optimizer.weight_decay": 0.0},
    "DP-GRAPE, r = 16": {"optimizer.name": "grape", "optimizer.rank": 16, "optimizer.weight_decay": 0.0},
}


def table(curves: dict[str, AccuracyCurve]) -> None:
    adam, grape = curves.values()
    gaps = 100 * (grape.accuracy[:, -1] - adam.accuracy[:, -1])
    error = gaps.std(ddof=1) / math.sqrt(len(gaps)) if len(gaps) > 1 else math.nan
    by_seed = " ".join(f"{gap:+.1f}" for gap in gaps)
    print(f"DP-GRAPE less DP-Adam: {gaps.mean():+.1f} points, standard error {error:.1f}, by seed {by_seed}")


if __name__ == "__main__":
    run_comparison(
        __doc__.splitlines()[0],
        VARIANTS,
        table,
        recipe="roberta-tiny-docstrings",
        seeds=5,
        changes={"evaluation.every": 5, "denoising.method": "none"},
    )
