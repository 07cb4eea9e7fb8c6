"""Terminals: words where their encoding lacks Greek letters, and tables."""

from __future__ import annotations

import codecs
import io
import sys
from collections.abc import Sequence
from itertools import zip_longest

_HANDLER = "dprmt.spelled"
_LETTERS = {"α": "alpha", "δ": "delta", "ε": "epsilon", "κ": "kappa", "λ": "lambda", "ρ": "rho", "σ": "sigma"}
_SIGNS = {"≤": "<=", "≥": ">=", "≈": "~", "·": "*", "×": "x", "−": "-", "–": "-", "…": "...", "√": "sqrt"}
_SPELLED = {**_LETTERS, **_SIGNS, "‖": "||", "²": "^2", "’": "'"}


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


def _spell(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    return "".join(_SPELLED.get(letter, "?") for letter in error.object[error.start : error.end]), error.end


def text_table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Lines of a table; rows may end early.

    Examples
    --------
    >>> print(text_table(["top", "name"], [["1.5", "layers.0.query"], ["0.25", "bias"]]), end="")
     top            name
    ----  --------------
     1.5  layers.0.query
    0.25            bias
    """
    # As the output will have them: a letter that it lacks is a word there.
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    square = zip_longest(*zip_longest(headings, *rows, fillvalue=""), fillvalue="")
    filled = [[spelled(cell, encoding) for cell in row] for row in square]
    sizes = [max(map(len, column)) for column in zip(*filled, strict=True)]
    filled.insert(1, ["-" * size for size in sizes])
    lines = ("  ".join(cell.rjust(size) for cell, size in zip(row, sizes, strict=True)) for row in filled)
    return "".join(line.rstrip() + "\n" for line in lines)


codecs.register_error(_HANDLER, _spell)
