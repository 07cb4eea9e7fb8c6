"""Plots as SVG inside the page, in the page's colours, one drawing per panel."""

from __future__ import annotations

import io
import re
from html import escape
from typing import Any

_SIZE = (6.0, 4.1)  # inches of a panel
_POINTS = 72  # units of SVG in an inch
_GREY = re.compile(r"#([0-9a-f]{2})\1\1\b")
_COLOURS = {
    "#0072b2": "blue",
    "#d55e00": "red",
    "#009e73": "green",
    "#cc79a7": "pink",
    "#e69f00": "amber",
    "#56b4e9": "sky",
}
_NAMES = re.compile(r'(\bid="|href="#|url\(#)')


def drawn_panels(draw: Any, panels: int, alt: str, prefix: str) -> str:
    """Draw one SVG for each panel, so that they stack on a narrow page."""
    import numpy as np
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    with rc_context({"svg.fonttype": "none", "svg.hashsalt": prefix, "figure.dpi": _POINTS}):
        figures = [Figure(figsize=_SIZE, dpi=_POINTS, layout="constrained") for _ in range(panels)]
        axes = [figure.subplots() for figure in figures]
        draw(axes[0] if panels == 1 else np.array(axes, dtype=object))
        return "".join(_svg(figure, alt, f"{prefix}-{number}-") for number, figure in enumerate(figures))


def along_steps(ax: Any, ylabel: str) -> None:
    """Prepare axes and legend of curves with one point per step."""
    ax.set(xlabel="step", ylabel=ylabel)
    ax.locator_params(axis="x", integer=True)
    ax.grid(True, color="0.9", linewidth=0.6)
    ax.set_axisbelow(True)
    ax.spines[["top", "right"]].set_visible(False)
    ax.legend(frameon=False)


def _svg(figure: Any, alt: str, prefix: str) -> str:
    stream = io.StringIO()
    figure.patch.set_alpha(0.0)
    for ax in figure.axes:
        ax.patch.set_alpha(0.0)
    nothing = dict.fromkeys(("Date", "Creator", "Format", "Type"))
    figure.savefig(stream, format="svg", metadata=nothing)
    text = stream.getvalue()
    body = text[text.index(">", text.index("<svg")) + 1 :]
    body = re.sub(r"<metadata>.*?</metadata>", "", body, flags=re.DOTALL).replace("xlink:href", "href")
    body = _NAMES.sub(rf"\g<1>{prefix}", _themed(body))
    width, height = (side * _POINTS for side in figure.get_size_inches())
    label = f'role="img" aria-label="{escape(alt, quote=True)}"'
    return f'<svg {label} viewBox="0 0 {width:g} {height:g}">{body}'


def _themed(body: str) -> str:
    # Greys between the page's text and its background, the palette as the page's variables.
    for colour, name in _COLOURS.items():
        body = body.replace(colour, f"var(--{name})")
    body = _GREY.sub(lambda match: _mixed(int(match[1], 16) / 255), body)
    return re.sub(r"font: ([^;\"]*?)'[^;\"]*", r"font: \1system-ui, sans-serif", body)


def _mixed(lightness: float) -> str:
    return f"color-mix(in srgb, var(--text) {round(100 * (1 - lightness))}%, var(--back))"
