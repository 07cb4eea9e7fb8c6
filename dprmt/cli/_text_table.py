"""Tables of plain text: columns to the right, a rule under the headings, no wider than they need to be."""

from __future__ import annotations

import sys
import unicodedata
from collections.abc import Sequence
from itertools import zip_longest

from dprmt.cli._terminal import spelled

_GAP = 2


def text_table(headings: Sequence[str], rows: Sequence[Sequence[str]], *, width: int | None = None) -> str:
    """Lines of a table; rows may end early.

    With a ``width`` the last column, the one of names, is cut at its front, where names are alike, so that no line
    is longer, as far as the other columns leave it eight characters.

    Examples
    --------
    >>> print(text_table(["top", "name"], [["1.5", "layers.0.query"], ["0.25", "bias"]], width=14), end="")
     top      name
    ----  --------
     1.5  …0.query
    0.25      bias
    """
    # As the output will have them: a letter that it lacks is a word there.
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    square = zip_longest(*zip_longest(headings, *rows, fillvalue=""), fillvalue="")
    filled = [[spelled(cell, encoding) for cell in row] for row in square]
    sizes = [max(map(_columns, column)) for column in zip(*filled, strict=True)]
    if width is not None and len(sizes) > 1:
        room = max(8, width - sum(sizes[:-1]) - _GAP * (len(sizes) - 1))
        sizes[-1] = min(sizes[-1], room)
        for row in filled[1:]:
            row[-1] = _shortened(row[-1], sizes[-1], "." if spelled("…", encoding) != "…" else "…")
    filled.insert(1, ["-" * size for size in sizes])
    lines = ((" " * _GAP).join(_to_the_right(*cell) for cell in zip(row, sizes, strict=True)) for row in filled)
    return "".join(line.rstrip() + "\n" for line in lines)


def _columns(text: str) -> int:
    # Of a terminal: Chinese takes two for a character, an accent on its own none.
    return sum(0 if unicodedata.combining(c) else 1 + (unicodedata.east_asian_width(c) in "WF") for c in text)


def _to_the_right(text: str, size: int) -> str:
    return " " * (size - _columns(text)) + text


def _shortened(text: str, size: int, sign: str) -> str:
    if _columns(text) <= size:
        return text
    while _columns(text) > size - 1:
        text = text[1:]
    return f"{sign}{text}"
