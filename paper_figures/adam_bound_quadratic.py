"""Appendix I of arXiv:2510.01137v3 as an experiment: decrease in one step against cosine, on a real layer's curvature.

Usage: ``python paper_figures/adam_bound_quadratic.py OUT.png``

The layer is the first one of a small network on scikit-learn's digits. Proposition I.1 is not true as printed; drawn
are the corrected bound (dashes), the printed one (crosses) and that in the geometry of the preconditioner (points).
"""

from __future__ import annotations

import sys

import numpy as np

from dprmt.plots import plot_step_improvement, save_picture
from quadratic import StepRecord, digits_layer, one_step_improvements

LABELS = {"adam": "DP-Adam", "adambc": "DP-AdamBC", "denoised": "DP-Adam, denoised"}
COLUMNS = ("cosine", "weighted_cosine", "improvement", "weighted_bound", "bound", "printed_bound")
WIDTHS = (8, 10, 10, 9, 9, 9, 9)


def columns(records: list[StepRecord], method: str) -> dict[str, np.ndarray]:
    """The numbers of one method."""
    chosen = [record for record in records if record.method == method]
    return {name: np.array([getattr(record, name) for record in chosen]) for name in COLUMNS}


def main(path: str) -> None:
    """Draw one panel per method and print means by noise level."""
    records = one_step_improvements(digits_layer())

    def draw(axes: np.ndarray) -> None:
        for ax, (method, label) in zip(np.ravel(axes), LABELS.items(), strict=True):
            plot_step_improvement({label: columns(records, method)}, ax=ax)
            ax.set_xlim(-0.05, 1.0)

    save_picture(path, draw, size=(16.0, 4.8), panels=(1, 3))
    titles = ("cosine", "cosine_P", "decrease", "bound_P", "bound", "printed", "premise")
    print(f"{'signal':>7}  {'method':<18}" + "".join(f"{title:>{w}}" for title, w in zip(titles, WIDTHS, strict=True)))
    for signal in sorted({record.signal for record in records}):
        for method, label in LABELS.items():
            chosen = [record for record in records if (record.signal, record.method) == (signal, method)]
            means = [float(np.mean([getattr(record, name) for record in chosen])) for name in COLUMNS]
            holds = float(np.mean([record.printed_bound_applies for record in chosen]))
            cells = "".join(f"{mean:>{width}.3f}" for mean, width in zip(means, WIDTHS[:-1], strict=True))
            print(f"{signal:>7g}  {label:<18}{cells}{holds:>{WIDTHS[-1]}.0%}")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        raise SystemExit("usage: python paper_figures/adam_bound_quadratic.py OUT.png")
    main(sys.argv[1])
