"""One look for all pictures made here: one colour and line a method, readable in grey and at column width."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

_WIDTHS = (4.6, 8.0, 10.2, 11.2, 12.0)  # inches, by the number of panels in a row: no letter too small on a page
_FONTS = {"font.size": 9.0, "legend.fontsize": 8.0, "legend.handlelength": 3.2, "axes.titlesize": 9.5}
_DENOISED = {"color": "#D55E00", "linestyle": "-."}
STYLES: dict[str, dict[str, Any]] = {
    # norms, by analysis
    "exact": {"color": "#000000", "linestyle": "-"},
    "published": {"color": "#E69F00", "linestyle": "-."},
    "hutchinson": {"color": "#0072B2", "linestyle": "--"},
    "secret": {"color": "#56B4E9", "linestyle": (0, (1, 1.5))},
    "hutch++": {"color": "#D55E00", "linestyle": (0, (10, 2))},
    "hutch++ secret": {"color": "#009E73", "linestyle": (0, (3, 1))},
    # gradients, as in dprmt.plots
    "clean": {"color": "#000000", "linestyle": "-"},
    "clipped": {"color": "#999999", "linestyle": "-"},
    "noisy": {"color": "#0072B2", "linestyle": "--"},
    "denoised": _DENOISED,
    "denoised, norm kept": {"color": "#E69F00", "linestyle": (0, (1, 1.5))},
    "blended": {"color": "#009E73", "linestyle": "-"},
    # optimizers
    "DP-GD": {"color": "#E69F00", "linestyle": (0, (1, 1.5))},
    "DP-GDM": {"color": "#56B4E9", "linestyle": "--"},
    "DP-Adam": {"color": "#000000", "linestyle": "-"},
    "DP-AdamBC": {"color": "#CC79A7", "linestyle": "-."},
    "DP-GRAPE": {"color": "#009E73", "linestyle": (0, (3, 1))},
    "noise, then Gaussian projection": {"color": "#E69F00", "linestyle": "--"},
    "naive DP-GaLore": {"color": "#D55E00", "linestyle": (0, (5, 1, 1, 1))},
}
"""Okabe and Ito's colours and a line each; a method keeps its own in every picture."""

COLORS = ("#000000", "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
"""For data sets, shapes and settings, one of each."""

LINES: tuple[dict[str, Any], ...] = tuple(
    {"color": color, "linestyle": line}
    for color, line in zip(COLORS, ("-", "--", "-.", (0, (1, 1.5)), (0, (5, 1, 1, 1))), strict=False)
)
"""For curves that are no methods."""


def picture(path: Path, draw: Callable[[Any], object], panels: int = 1, rows: int = 1) -> str:
    """Draw ``rows`` times ``panels`` axes, save, and return the file's name; several axes come as one flat array."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    with rc_context(_FONTS):
        width = _WIDTHS[panels - 1]
        figure = Figure(figsize=(width, rows * (0.8 * width / panels + 0.4)), layout="constrained")
        axes = figure.subplots(rows, panels, squeeze=False).ravel()
        draw(axes if len(axes) > 1 else axes[0])
        for ax in axes:
            ax.grid(not ax.images, **({} if ax.images else {"color": "0.9", "linewidth": 0.6}))
            ax.set_axisbelow(True)
            ax.spines[["top", "right"]].set_visible(False)
        figure.savefig(path, dpi=150)
    return path.name


def draw_band(ax: Any, x: Sequence[float], values: np.ndarray, label: str, style: Mapping[str, Any]) -> None:
    """Mean over the seeds, ``values`` of shape (seeds, len(x)), with a band of one standard deviation."""
    mean = values.mean(0)
    ax.plot(x, mean, label=label, **style)
    if len(values) > 1:
        spread = values.std(0, ddof=1)
        ax.fill_between(x, mean - spread, mean + spread, color=style["color"], alpha=0.15, linewidth=0)
