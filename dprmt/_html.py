"""Notebook representations: a sentence, small tables and plots, in the notebook's colours."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape

_CELL = "text-align:right;padding:.15em .8em .15em 0;border:0"
_WIDTH, _HEIGHT, _MARGIN = 346.0, 150.0, 40.0
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
    body = "".join(f"<tr>{''.join(_cell(text) for text in row)}</tr>" for row in rows)
    return f'<table style="border-collapse:collapse"><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>'


def _cell(text: str) -> str:
    return f'<td style="{_CELL};font-variant-numeric:tabular-nums">{escape(text)}</td>'


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
    points = {name: _finite(x, y) for name, (x, y) in curves.items()}
    everything = [point for found in points.values() for point in found]
    if not everything:
        return ""
    levels = {name: level for name, level in (levels or {}).items() if math.isfinite(level)}
    beside = 6.0 if dots else 0.0  # so that the first dot is not on the axis, where the largest singular value would be
    across = _axis([x for x, _ in everything], _MARGIN + beside, _WIDTH - 8)
    up = _axis([0.0, *(y for _, y in everything), *levels.values()], _HEIGHT - 22, 16)
    parts = [f"<title>{escape(title)}</title>", _frame(across, up, axes)]
    for ink, (name, found) in zip(_cycled(_INKS, len(points)), points.items(), strict=True):
        parts.append(_drawn(found, across, up, ink, dots=dots, name=name if len(points) > 1 else ""))
    parts += [_level(name, up(level)) for name, level in levels.items()]
    size = f'width="{_WIDTH:g}" height="{_HEIGHT:g}" viewBox="0 0 {_WIDTH:g} {_HEIGHT:g}"'
    style = "max-width:100%;height:auto;font:11px sans-serif;fill:currentColor"
    return f'<svg xmlns="http://www.w3.org/2000/svg" role="img" {size} style="{style}">{"".join(parts)}</svg>'


def _finite(x: Sequence[float], y: Sequence[float]) -> list[tuple[float, float]]:
    pairs = [(float(a), float(b)) for a, b in zip(x, y, strict=True)]
    return [(a, b) for a, b in pairs if math.isfinite(a) and math.isfinite(b)]


class _axis:  # noqa: N801  (a function with limits)
    """From values to places on the picture."""

    def __init__(self, values: Sequence[float], first: float, last: float) -> None:
        self.low, self.high = min(values), max(values)
        self.first, self.last = first, last

    def __call__(self, value: float) -> float:
        span = self.high - self.low
        share = (value - self.low) / span if span > 0 else 0.5
        return self.first + share * (self.last - self.first)


def _frame(across: _axis, up: _axis, names: tuple[str, str]) -> str:
    left, bottom = _MARGIN, _HEIGHT - 22
    middle = (left + _WIDTH) / 2
    axes = f'<path d="M{left:g} 8V{bottom:g}H{_WIDTH - 4:g}" fill="none" stroke="currentColor" stroke-opacity=".5"/>'
    texts = [
        (left, bottom + 14, "start", f"{across.low:.3g}"),
        (_WIDTH - 6, bottom + 14, "end", f"{across.high:.3g}"),
        (left - 3, bottom, "end", f"{up.low:.3g}"),
        (left - 3, 18.0, "end", f"{up.high:.3g}"),
        (middle, bottom + 14, "middle", names[0]),
        (middle, 10.0, "middle", names[1]),
    ]
    return axes + "".join(
        f'<text x="{x:g}" y="{y:g}" text-anchor="{anchor}">{escape(text)}</text>'
        for x, y, anchor, text in texts
        if text
    )


def _drawn(found: Sequence[tuple[float, float]], across: _axis, up: _axis, ink: str, *, dots: bool, name: str) -> str:
    places = [(across(x), up(y)) for x, y in found]
    if dots:
        drawn = "".join(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="2" fill="{ink}"/>' for x, y in places)
    else:
        line = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
        drawn = f'<polyline points="{line}" fill="none" stroke="{ink}" stroke-width="1.6"/>'
    x, y = places[-1] if places else (0.0, 0.0)
    label = (
        f'<text x="{x - 2:.1f}" y="{y - 4:.1f}" text-anchor="end" fill="{ink}">{escape(name)}</text>' if name else ""
    )
    return drawn + label


def _level(name: str, y: float) -> str:
    line = f'<path d="M{_MARGIN:g} {y:.1f}H{_WIDTH - 4:g}" stroke="currentColor" stroke-dasharray="4 3" opacity=".7"/>'
    return f'{line}<text x="{_WIDTH - 6:g}" y="{y - 3:.1f}" text-anchor="end" opacity=".8">{escape(name)}</text>'


def _cycled(inks: Sequence[str], count: int) -> list[str]:
    return [inks[place % len(inks)] for place in range(count)]
