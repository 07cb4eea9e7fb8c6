"""Exact against randomized clipping at the same ε (arXiv:2605.24879): each method has the σ that its analysis asks for.

Usage: ``python paper_figures/randomized_clipping_accuracy.py FOLDER [--seeds 3] [--jobs 2] [--plot OUT.png]``
"""

from __future__ import annotations

from _comparison import run_comparison
from studies import AccuracyCurve

VARIANTS = {
    "exact": {"privacy.clipping": "ghost"},
    "Hutchinson, secret probes": {"privacy.clipping": "hutchinson"},
    "Hutch++, secret probes": {"privacy.clipping": "hutch++"},
}


def table(curves: dict[str, AccuracyCurve]) -> None:
    exact = curves["exact"].mean[-1]
    for name, curve in curves.items():
        print(f"{name}: {100 * curve.mean[-1]:.1f} %, {100 * (curve.mean[-1] - exact):+.1f} points against exact")


if __name__ == "__main__":
    run_comparison(
        __doc__.splitlines()[0],
        VARIANTS,
        table,
        recipe="roberta-tiny-docstrings",
        seeds=3,
        changes={"evaluation.every": 5, "denoising.method": "none"},
    )
