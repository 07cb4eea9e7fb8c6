"""Terminals: words where their encoding lacks Greek letters, and a sign of life while an answer takes long."""

from __future__ import annotations

import codecs
import importlib.util
import io
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

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


codecs.register_error(_HANDLER, _spell)
