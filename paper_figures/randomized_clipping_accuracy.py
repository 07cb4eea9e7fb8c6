"""Exact against randomized clipping at equal ε (arXiv:2605.24879): each method has the σ that its analysis asks for.

Shared probes, the paper's own setting. "published charge" is Hutchinson with the noise that the published analysis asks
for; the others use this package's. All estimate the same layers with k = 16 probes; Hutch++ has a sketch of 16 besides.

Usage: ``python paper_figures/randomized_clipping_accuracy.py FOLDER [--seeds 5] [--jobs 2] [--plot OUT.png]``
"""

from __future__ import annotations

import argparse
from typing import Any

import numpy as np

from _comparison import run_comparison
from dprmt.accounting import calibrate_noise_multiplier
from dprmt.training.harness import dry_run
from dprmt.training.recipes import load_recipe
from studies import MetricCurve

PROBES = 16
SHARED = {"privacy.clipping": "hutchinson", "privacy.probes": PROBES, "privacy.probe_sharing": "batch"}


def variants(options: argparse.Namespace) -> dict[str, dict[str, Any]]:
    """By what the noise is calibrated with."""
    steps = {} if options.steps is None else {"training.steps": options.steps}
    recipe = load_recipe(options.recipe).with_changes(SHARED | steps)
    sample_rate = dry_run(recipe).sample_rate
    published = calibrate_noise_multiplier(
        recipe.privacy.target_epsilon,
        recipe.privacy.delta,
        sample_rate,
        recipe.training.steps,
        probes=PROBES,
        analysis="envelope",
    )
    return {
        "exact": {"privacy.clipping": "ghost"},
        "Hutchinson, published charge": SHARED
        | {"privacy.target_epsilon": None, "privacy.noise_multiplier": published},
        "Hutchinson, tight": SHARED,
        "Hutch++": SHARED | {"privacy.clipping": "hutch++", "privacy.sketch": PROBES},
    }


def table(curves: dict[str, MetricCurve]) -> None:
    exact = curves["exact"].shown[:, -1]
    for name, curve in curves.items():
        last = curve.shown[:, -1]
        gain = last - exact
        error = gain.std(ddof=1) / np.sqrt(len(gain)) if len(gain) > 1 else float("nan")
        against = f"{gain.mean():+.1f} ± {error:.1f} points against exact, paired"
        print(f"{name}: {curve.metric.name} {last.mean():.1f}, {against}")


if __name__ == "__main__":
    run_comparison(
        __doc__.splitlines()[0],
        variants,
        table,
        recipe="roberta-tiny-docstrings",
        seeds=5,
        changes={"evaluation.every": 5, "denoising.method": "none"},
    )
