"""Terminals: words where their encoding lacks Greek letters, tables, and a sign of life while an answer takes long."""

from __future__ import annotations

import codecs
import importlib.util
import io
import sys
import threading
import unicodedata
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import zip_longest

_HANDLER = "dprmt.spelled"
_PATIENCE = 1.0  # seconds before anything shows
_SPELLED = {
    "α": "alpha",
    "δ": "delta",
    "ε": "epsilon",
    "κ": "kappa",
    "λ": "lambda",
    "ρ": "rho",
    "σ": "sigma",
    "≤": "<=",
    "≥": ">=",
    "≈": "~",
    "·": "*",
    "×": "x",
    "−": "-",
    "–": "-",
    "…": "...",
    "√": "sqrt",
    "‖": "||",
    "²": "^2",
    "’": "'",
}


def spelled(text: str, encoding: str) -> str:
    """The text as an encoding can have it.

    Examples
    --------
    >>> spelled("ε ≤ 1 · σ²", "ascii"), spelled("ε ≤ 1 · σ²", "cp1252"), spelled("ε", "utf-8")
    ('epsilon <= 1 * sigma^2', 'epsilon <= 1 · sigma²', 'ε')
    """
    return text.encode(encoding, errors=_HANDLER).decode(encoding)


def speak_any_encoding() -> None:
    """Let stdout and stderr spell what they cannot encode."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper) and stream.errors == "strict":
            stream.reconfigure(errors=_HANDLER)


@contextmanager
def waiting(what: str) -> Iterator[None]:
    """Say, on a terminal's stderr and after a second, what is being waited for; elsewhere nothing."""
    if not sys.stderr.isatty() or importlib.util.find_spec("rich") is None:
        yield
        return
    from rich.console import Console

    status = Console(stderr=True).status(what)
    timer = threading.Timer(_PATIENCE, status.start)
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        timer.join()
        status.stop()


def _spell(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    return "".join(_SPELLED.get(letter, "?") for letter in error.object[error.start : error.end]), error.end


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
        room = max(8, width - sum(sizes[:-1]) - 2 * (len(sizes) - 1))
        sizes[-1] = min(sizes[-1], room)
        for row in filled[1:]:
            row[-1] = _shortened(row[-1], sizes[-1], "." if spelled("…", encoding) != "…" else "…")
    filled.insert(1, ["-" * size for size in sizes])
    lines = ("  ".join(_to_the_right(*cell) for cell in zip(row, sizes, strict=True)) for row in filled)
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


codecs.register_error(_HANDLER, _spell)
