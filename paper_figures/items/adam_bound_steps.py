"""Appendix I of arXiv:2510.01137v3 as an experiment: decrease in one step against cosine, on a real layer's curvature.

The layer is the first one of a small network on scikit-learn's digits. Proposition I.1 is not true as printed; drawn
are the corrected bound (dashes), the printed one (crosses) and that in the geometry of the preconditioner (points).
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from dprmt.plots._style import legend_below
from paper_figures._measured import exact_row
from paper_figures._picture import STYLES, picture
from paper_figures._pieces import Pieces
from paper_figures._reproduction import Found, Item, Row, Scale
from paper_figures.quadratic import StepRecord, digits_layer, one_step_improvements

LABELS = {"adam": "DP-Adam", "adambc": "DP-AdamBC", "denoised": "DP-Adam, denoised"}
COLUMNS = (
    "cosine",
    "weighted_cosine",
    "improvement",
    "weighted_bound",
    "bound",
    "printed_bound",
    "printed_bound_applies",
)
"""Of `quadratic.StepRecord`."""
LOOKS: tuple[tuple[str, str, str, dict[str, Any]], ...] = (
    ("cosine", "improvement", "decrease", {"marker": "o", "markersize": 5, "markerfacecolor": "none"}),
    ("cosine", "bound", "bound, corrected", {"marker": "_", "markersize": 9, "markeredgewidth": 1.6}),
    ("cosine", "printed_bound", "bound as printed", {"marker": "x", "markersize": 4, "markeredgewidth": 0.8}),
    ("weighted_cosine", "weighted_bound", "bound in P's geometry", {"marker": ".", "markersize": 3}),
)


def measure(scale: Scale, folder: Path) -> Found:
    pieces = Pieces(folder, "adam-bound-steps", scale)
    records = one_step_improvements(digits_layer())
    rows = pieces.measure({"means": lambda: means(records)})["means"]

    def draw(axes: np.ndarray) -> None:
        for ax, (method, label) in zip(axes, LABELS.items(), strict=True):
            for cosine, column, name, look in LOOKS:
                points = ([getattr(r, at) for r in records if r.method == method] for at in (cosine, column))
                ax.plot(*points, linestyle="none", label=name, color=STYLES[label.split(",")[0]]["color"], **look)
            ax.axhline(0.0, color="0.5", linewidth=1.0)
            ax.set(title=label, xlabel="cosine of the direction with the gradient", xlim=(-0.05, 1.0))
            legend_below(ax)
        axes[0].set_ylabel("decrease of the loss in one step,\nin units of ‖g‖²/(2λ_max)")

    return Found(
        [
            Row("rows of noise level and method", len(rows)),
            _never_above(rows, "bound", "the corrected bound"),
            _never_above(rows, "weighted_bound", "the bound in the preconditioner's geometry"),
            Row("of them with the corrected bound positive", sum(row["bound"] > 0 for row in rows)),
            Row("of them with the other one positive", sum(row["weighted_bound"] > 0 for row in rows)),
            Row("least share of draws that meet the printed premise", min(r["printed_bound_applies"] for r in rows)),
        ],
        differs="A layer of a small network; means over draws, in units of what a clean step guarantees.",
        model="one layer's curvature on scikit-learn's digits",
        pictures=[picture(folder / "adam-bound-steps.png", draw, panels=3)],
        earlier_seconds=pieces.earlier_seconds,
    )


def _never_above(rows: Sequence[dict[str, float]], bound: str, name: str) -> Row:
    above = sum(row[bound] > row["improvement"] for row in rows)
    return exact_row(f"of them with {name} above the decrease", above, claim="none", within=(0, 0))


def means(records: Sequence[StepRecord]) -> list[dict[str, float | str]]:
    """Over the draws, by noise level and method."""
    signals = sorted({record.signal for record in records})
    return [_mean(records, signal, method) for signal in signals for method in LABELS]


def _mean(records: Sequence[StepRecord], signal: float, method: str) -> dict[str, float | str]:
    chosen = [record for record in records if (record.signal, record.method) == (signal, method)]
    values = {name: round(float(np.mean([getattr(record, name) for record in chosen])), 6) for name in COLUMNS}
    return {"signal": signal, "method": LABELS[method], **values}


ITEM = Item("adam-bound-steps", "One step of Adam against its bounds", measure, scales=("paper",))
