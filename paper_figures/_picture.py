"""One look for all pictures made here: one colour and line a method, readable in grey and at column width."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

STYLES: dict[str, dict[str, Any]] = {
    "exact": {"color": "#000000", "linestyle": "-"},
    "published": {"color": "#E69F00", "linestyle": "-."},
    "hutchinson": {"color": "#0072B2", "linestyle": "--"},
    "secret": {"color": "#56B4E9", "linestyle": (0, (1, 1.5))},
    "hutch++": {"color": "#D55E00", "linestyle": (0, (5, 1, 1, 1))},
    "hutch++ secret": {"color": "#009E73", "linestyle": (0, (3, 1))},
}
"""Okabe and Ito's colours; a method keeps its own everywhere."""


def picture(path: Path, draw: Callable[[Any], object], panels: int = 1) -> str:
    """Draw ``panels`` axes side by side, save, and return the file's name."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(4.6 * panels, 3.6), layout="constrained")
    axes = figure.subplots(1, panels, squeeze=False)[0]
    draw(axes if panels > 1 else axes[0])
    for ax in axes:
        ax.grid(True, color="0.9", linewidth=0.6)
        ax.set_axisbelow(True)
        ax.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=150)
    return path.name
