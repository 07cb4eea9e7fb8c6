"""Notebook representations: a sentence, small tables and plots, in the notebook's colours."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from html import escape
from itertools import cycle
from math import isfinite

_CELL = "text-align:right;padding:.15em .8em .15em 0;border:0"
_WIDTH, _HEIGHT, _MARGIN, _BOTTOM = 346.0, 150.0, 40.0, 128.0  # pixels
_INKS = ("#0072b2", "#d55e00", "#009e73")  # colours that most colour-blind readers distinguish, on light and on dark


def block(*parts: str) -> str:
    """Return parts of a representation, one under the other."""
    return f'<div class="dprmt">{"".join(parts)}</div>'


def sentence(text: str) -> str:
    """Return a line of text."""
    return f'<p style="margin:.3em 0">{escape(text)}</p>'


def table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table of texts, numbers to the right.

    Examples
    --------
    >>> "<td" in table(["lower", "upper"], [["3.8", "<4"]]) and "&lt;4" in table([], [["<4"]])
    True
    """
    head = "".join(f'<th style="{_CELL}">{escape(text)}</th>' for text in headings)
    number = f"{_CELL};font-variant-numeric:tabular-nums"
    cells = ("".join(f'<td style="{number}">{escape(text)}</td>' for text in row) for row in rows)
    body = "".join(f"<tr>{row}</tr>" for row in cells)
    return f'<table style="border-collapse:collapse"><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>'


def picture(
    curves: Mapping[str, tuple[Sequence[float], Sequence[float]]],
    *,
    levels: Mapping[str, float] | None = None,
    dots: bool = False,
    axes: tuple[str, str] = ("", ""),
    title: str = "",
) -> str:
    """Draw curves or dots over one pair of axes, with labelled horizontal lines, as SVG; values that are not finite
    are skipped.

    ``axes``: labels of the horizontal and the vertical axis.

    Examples
    --------
    >>> drawn = picture({"top": ([1, 2, 3], [3.0, 1.0, 0.5])}, levels={"edge": 2.0}, title="three values")
    >>> drawn.count("<polyline"), "edge" in drawn, picture({"none": ([], [])})
    (1, True, '')
    """
    points = {name: [(a, b) for a, b in zip(x, y, strict=True) if isfinite(a + b)] for name, (x, y) in curves.items()}
    if not any(points.values()):
        return ""
    levels = {name: level for name, level in (levels or {}).items() if isfinite(level)}
    xs, ys = zip(*(point for found in points.values() for point in found), strict=True)
    # With dots, the first is not on the axis, where the largest singular value would be.
    across = _scale(xs, _MARGIN + (6.0 if dots else 0.0), _WIDTH - 8)
    up = _scale([0.0, *ys, *levels.values()], _BOTTOM, 16)
    middle = (_MARGIN + _WIDTH) / 2
    parts = [
        f"<title>{escape(title)}</title>",
        f'<path d="M{_MARGIN:g} 8V{_BOTTOM:g}H{_WIDTH - 4:g}" fill="none" stroke="currentColor" stroke-opacity=".5"/>',
        _text(_MARGIN, _BOTTOM + 14, "start", f"{min(xs):.3g}"),
        _text(_WIDTH - 6, _BOTTOM + 14, "end", f"{max(xs):.3g}"),
        _text(_MARGIN - 3, _BOTTOM, "end", f"{min(0.0, *ys, *levels.values()):.3g}"),
        _text(_MARGIN - 3, 18.0, "end", f"{max(0.0, *ys, *levels.values()):.3g}"),
        _text(middle, _BOTTOM + 14, "middle", axes[0]),
        _text(middle, 10.0, "middle", axes[1]),
    ]
    for ink, (name, found) in zip(cycle(_INKS), points.items(), strict=False):
        places = [(across(x), up(y)) for x, y in found]
        if dots:
            parts += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="2" fill="{ink}"/>' for x, y in places]
        else:
            line = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
            parts.append(f'<polyline points="{line}" fill="none" stroke="{ink}" stroke-width="1.6"/>')
        if places and len(points) > 1:
            parts.append(_text(places[-1][0] - 2, places[-1][1] - 4, "end", name, ink))
    for name, level in levels.items():
        dashed = f'd="M{_MARGIN:g} {up(level):.1f}H{_WIDTH - 4:g}" stroke="currentColor" stroke-dasharray="4 3"'
        parts += [f'<path {dashed} opacity=".7"/>', _text(_WIDTH - 6, up(level) - 3, "end", name)]
    size = f'width="{_WIDTH:g}" height="{_HEIGHT:g}" viewBox="0 0 {_WIDTH:g} {_HEIGHT:g}"'
    style = "max-width:100%;height:auto;font:11px sans-serif;fill:currentColor"
    return f'<svg xmlns="http://www.w3.org/2000/svg" role="img" {size} style="{style}">{"".join(parts)}</svg>'


def _scale(values: Sequence[float], first: float, last: float) -> Callable[[float], float]:
    """Return the function from values to places on the picture."""
    low, span = min(values), max(values) - min(values)
    return lambda value: first + ((value - low) / span if span > 0 else 0.5) * (last - first)


def _text(x: float, y: float, anchor: str, text: str, ink: str = "currentColor") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="{ink}">{escape(text)}</text>'
