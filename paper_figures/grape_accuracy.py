"""DP-GRAPE against DP-Adam on the offline recipe (arXiv:2506.15588: within a point), full fine-tuning, equal ε.

Usage: ``python paper_figures/grape_accuracy.py FOLDER [--seeds N] [--jobs N] [--ranks R …] [--refresh-every F …] …``

The network is 64 wide, so ranks of 16 and 32 keep a quarter and a half of its square layers. With F = 100 the subspace
stays the same over the 60 steps.
"""

from __future__ import annotations

import argparse
import math
from typing import Any

from _comparison import run_comparison
from studies import MetricCurve

GRAPE = {"optimizer.name": "grape", "optimizer.weight_decay": 0.0}


def variants(options: argparse.Namespace) -> dict[str, dict[str, Any]]:
    """DP-Adam, and DP-GRAPE of every rank with every F."""
    projected = {
        f"DP-GRAPE, r = {rank}, F = {every}": GRAPE | {"optimizer.rank": rank, "optimizer.refresh_every": every}
        for rank in options.ranks
        for every in options.refresh_every
    }
    return {"DP-Adam": {"optimizer.name": "adam", "optimizer.weight_decay": 0.0}} | projected


def table(curves: dict[str, MetricCurve]) -> None:
    """DP-GRAPE less DP-Adam at the end, paired by seed."""
    (_, adam), *others = curves.items()
    for name, grape in others:
        gaps = grape.shown[:, -1] - adam.shown[:, -1]
        error = gaps.std(ddof=1) / math.sqrt(len(gaps)) if len(gaps) > 1 else math.nan
        by_seed = " ".join(f"{gap:+.1f}" for gap in gaps)
        print(f"{name} less DP-Adam: {gaps.mean():+.1f} points, standard error {error:.1f}, by seed {by_seed}")


if __name__ == "__main__":
    run_comparison(
        __doc__.splitlines()[0],
        variants,
        table,
        recipe="roberta-tiny-docstrings",
        seeds=5,
        changes={"evaluation.every": 5, "denoising.method": "none"},
        more_options={
            "--ranks": {"type": int, "nargs": "+", "default": [16, 32]},
            "--refresh-every": {"type": int, "nargs": "+", "default": [10, 100], "metavar": "F"},
        },
    )
