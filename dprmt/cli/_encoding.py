"""Output on terminals whose encoding lacks Greek: words in place of the letters, never a traceback."""

from __future__ import annotations

import codecs
import io
import sys

_HANDLER = "dprmt.spelled"
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


def _spell(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    return "".join(_SPELLED.get(letter, "?") for letter in error.object[error.start : error.end]), error.end


codecs.register_error(_HANDLER, _spell)
