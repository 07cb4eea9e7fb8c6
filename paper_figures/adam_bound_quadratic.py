"""Appendix I of arXiv:2510.01137v3 as an experiment: decrease in one step against cosine, on a real layer's curvature.

Usage: ``python paper_figures/adam_bound_quadratic.py OUT.png [ROWS.json]``; the rows that it prints are kept in
``results/adam_bound_quadratic.json``.

The layer is the first one of a small network on scikit-learn's digits. Proposition I.1 is not true as printed; drawn
are the corrected bound (dashes), the printed one (crosses) and that in the geometry of the preconditioner (points).
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from dprmt.plots import plot_step_improvement, save_picture
from quadratic import StepRecord, digits_layer, one_step_improvements

LABELS = {"adam": "DP-Adam", "adambc": "DP-AdamBC", "denoised": "DP-Adam, denoised"}
TITLES = {
    "cosine": "cosine",
    "weighted_cosine": "cosine_P",
    "improvement": "decrease",
    "weighted_bound": "bound_P",
    "bound": "bound",
    "printed_bound": "printed",
    "printed_bound_applies": "premise",
}


def columns(records: list[StepRecord], method: str) -> dict[str, np.ndarray]:
    """The numbers of one method."""
    chosen = [record for record in records if record.method == method]
    return {name: np.array([getattr(record, name) for record in chosen]) for name in TITLES}


def means(records: list[StepRecord], signal: float, method: str) -> dict[str, float | str]:
    """Over the draws of one method at one noise level."""
    chosen = [record for record in records if (record.signal, record.method) == (signal, method)]
    values = {name: round(float(np.mean([getattr(record, name) for record in chosen])), 6) for name in TITLES}
    return {"signal": signal, "method": LABELS[method], **values}


def line(row: Mapping[str, float | str]) -> str:
    """A row in print."""
    cells = "".join(f"{row[name]:>10.3f}" for name in list(TITLES)[:-1])
    return f"{row['signal']:>7g}  {row['method']:<18}{cells}{row['printed_bound_applies']:>9.0%}"


def main(path: str, kept: str | None = None) -> None:
    """Draw one panel per method, and print and keep means by noise level."""
    records = one_step_improvements(digits_layer())

    def draw(axes: np.ndarray) -> None:
        for ax, (method, label) in zip(np.ravel(axes), LABELS.items(), strict=True):
            plot_step_improvement({label: columns(records, method)}, ax=ax)
            ax.set_xlim(-0.05, 1.0)

    save_picture(path, draw, size=(16.0, 4.8), panels=(1, 3))
    rows = [means(records, signal, name) for signal in sorted({r.signal for r in records}) for name in LABELS]
    *titles, last = TITLES.values()
    print(f"{'signal':>7}  {'method':<18}" + "".join(f"{title:>10}" for title in titles) + f"{last:>9}")
    print("\n".join(line(row) for row in rows))
    if kept is not None:
        Path(kept).write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    if len(sys.argv) not in (2, 3):
        raise SystemExit("usage: python paper_figures/adam_bound_quadratic.py OUT.png [ROWS.json]")
    main(*sys.argv[1:])
