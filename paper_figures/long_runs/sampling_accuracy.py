"""Random allocation against Poisson sampling at equal ε: accuracy over seeds, and what chance alone would give.

Batches of 522 are a sixth of the docstrings, so Poisson's rate is 1/6 and an epoch of random allocation has six steps;
18 steps are three whole epochs. Each has the σ that its own analysis asks for. "Poisson again" is Poisson sampling with
other noise and coins from the same weights: its differences are those of chance.

Usage: ``python -m paper_figures study sampling-accuracy FOLDER [--recipe NAME] [--seeds 5] [--results OUT.json]``
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from paper_figures.long_runs._comparison import run_comparison
from paper_figures.studies import MetricCurve

VARIANTS = {
    "Poisson": {"privacy.sampling": "poisson"},
    "allocation": {"privacy.sampling": "allocation"},
    "Poisson again": {"privacy.sampling": "poisson"},
}


def table(curves: dict[str, MetricCurve]) -> None:
    """Each less Poisson at the end, paired by seed."""
    (_, poisson), *others = curves.items()
    for name, curve in others:
        gain = curve.shown[:, -1] - poisson.shown[:, -1]
        error = gain.std(ddof=1) / np.sqrt(len(gain)) if len(gain) > 1 else float("nan")
        print(f"{name} less Poisson: {gain.mean():+.1f} ± {error:.1f} points, by seed {np.round(gain, 1)}")


def main(arguments: Sequence[str]) -> None:
    """Carry out the command."""
    run_comparison(
        arguments,
        (__doc__ or "").splitlines()[0],
        VARIANTS,
        table,
        recipe="roberta-tiny-docstrings",
        seeds=5,
        changes={
            "evaluation.every": 6,
            "denoising.method": "none",
            "training.batch_size": 522,
            "training.steps": 18,
            "training.checkpoint_every": 18,
            "data.max_tokens": 32,
        },
        noise={"Poisson again": 1000},
    )
