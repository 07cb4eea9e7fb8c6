"""One look for all pictures made here: one colour and line a method, readable in grey and at column width."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

_DENOISED = {"color": "#0072B2", "linestyle": "-."}
STYLES: dict[str, dict[str, Any]] = {
    # norms, by analysis
    "exact": {"color": "#000000", "linestyle": "-"},
    "published": {"color": "#E69F00", "linestyle": "-."},
    "hutchinson": {"color": "#0072B2", "linestyle": "--"},
    "secret": {"color": "#56B4E9", "linestyle": (0, (1, 1.5))},
    "hutch++": {"color": "#D55E00", "linestyle": (0, (5, 1, 1, 1))},
    "hutch++ secret": {"color": "#009E73", "linestyle": (0, (3, 1))},
    # gradients
    "clean": {"color": "#000000", "linestyle": "-"},
    "clipped": {"color": "#999999", "linestyle": "-"},
    "noisy": {"color": "#D55E00", "linestyle": "--"},
    "denoised": _DENOISED,
    "denoised, norm kept": {"color": "#56B4E9", "linestyle": (0, (1, 1.5))},
    "blended": {"color": "#009E73", "linestyle": (0, (5, 1, 1, 1))},
    # optimizers
    "DP-GD": {"color": "#E69F00", "linestyle": (0, (1, 1.5))},
    "DP-GDM": {"color": "#56B4E9", "linestyle": "--"},
    "DP-Adam": {"color": "#000000", "linestyle": "-"},
    "DP-AdamBC": {"color": "#CC79A7", "linestyle": "-."},
    "DP-GRAPE": {"color": "#009E73", "linestyle": (0, (3, 1))},
    "naive DP-GaLore": {"color": "#D55E00", "linestyle": (0, (5, 1, 1, 1))},
}
"""Okabe and Ito's colours and a line each; a method keeps its own in every picture."""

LINES: tuple[dict[str, Any], ...] = tuple(
    {"color": color, "linestyle": line}
    for color, line in zip(
        ("#000000", "#0072B2", "#D55E00", "#009E73", "#CC79A7"),
        ("-", "--", "-.", (0, (1, 1.5)), (0, (5, 1, 1, 1))),
        strict=True,
    )
)
"""For curves that are no methods."""


def picture(path: Path, draw: Callable[[Any], object], panels: int = 1, rows: int = 1) -> str:
    """Draw ``rows`` times ``panels`` axes, save, and return the file's name; several axes come as one flat array."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(4.6 * panels, 3.6 * rows), layout="constrained")
    axes = figure.subplots(rows, panels, squeeze=False).ravel()
    draw(axes if len(axes) > 1 else axes[0])
    for ax in axes:
        ax.grid(not ax.images, **({} if ax.images else {"color": "0.9", "linewidth": 0.6}))
        ax.set_axisbelow(True)
        ax.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=150)
    return path.name
