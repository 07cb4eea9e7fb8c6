"""Notebook representations: a sentence and small tables, in the notebook's colours."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

_CELL = "text-align:right;padding:.15em .8em .15em 0;border:0"


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
