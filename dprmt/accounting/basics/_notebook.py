"""What answers and runs show of themselves in a notebook."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from typing import Any

import numpy as np

from dprmt import _html
from dprmt._rounding import round_down, round_up

_ROWS = 6  # of a table beside a picture


def bounds_html(bounds: Any) -> str:
    """The sentence, and the numbers, rounded so that the ends stay bounds."""
    numbers = [
        ["lower", round_down(bounds.lower)],
        ["estimate", f"{bounds.estimate:.6g}"],
        ["upper", round_up(bounds.upper)],
    ]
    return _html.block(_html.sentence(str(bounds)), _html.table(["", _symbol(bounds)], numbers))


def curve_html(curve: Any) -> str:
    """A picture of the upper bounds, and some rows."""
    symbol, over = ("ε", "steps") if curve.at_delta is not None else ("δ", "ε")
    at = "" if curve.at_delta is None else f" at δ = {curve.at_delta:g}"
    upper = {"upper": (curve.at.tolist(), curve.upper.tolist())}
    picture = _html.picture(upper, axes=(over, f"{symbol} ≤"), title=f"{symbol} against {over}")
    rows = [[f"{curve.at[i]:g}", round_down(curve.lower[i]), round_up(curve.upper[i])] for i in _spread(len(curve))]
    said = f"{len(curve)} certified bounds on {symbol}{at}, upper ones drawn"
    return _html.block(_html.sentence(said), picture, _html.table([over, f"{symbol} ≥", f"{symbol} ≤"], rows))


def band_html(band: Any) -> str:
    """A picture of the lower bound, which is the safe one, and some rows."""
    alpha, lower = np.ravel(band.alpha), np.ravel(band.lower)
    order = np.argsort(alpha)
    below = {"lower": (alpha[order].tolist(), lower[order].tolist())}
    picture = _html.picture(below, axes=("α", "β ≥"), title="β against α")
    upper = np.ravel(band.upper)
    rows = [[f"{alpha[i]:g}", round_down(lower[i]), round_up(upper[i])] for i in order[_spread(alpha.size)]]
    said = "Smallest false negative rate β of any test with false positive rate α: certified from below"
    return _html.block(_html.sentence(said), picture, _html.table(["α", "β ≥", "β ≤"], rows))


def curve_text(curve: Any) -> str:
    """Its first and last bound, as a sentence in letters that every terminal has."""
    symbol, over = ("epsilon", "steps") if curve.at_delta is not None else ("delta", "epsilon")
    at = "" if curve.at_delta is None else f" at delta = {curve.at_delta:g}"
    ends = sorted({0, len(curve) - 1}) if len(curve) else []
    said = [f"at most {round_up(curve.upper[i])} at {over} = {curve.at[i]:g}" for i in ends]
    bounds = "bound" if len(curve) == 1 else "bounds"
    return f"{len(curve)} certified {bounds} on {symbol}{at}{': ' if said else ''}{', '.join(said)}"


def band_text(band: Any) -> str:
    """The band where it is in the middle, as a sentence in letters that every terminal has."""
    alpha, lower, upper = np.ravel(band.alpha), np.ravel(band.lower), np.ravel(band.upper)
    rates = "rate" if alpha.size == 1 else "rates"
    said = f"trade-off function at {alpha.size} false positive {rates}"
    if not alpha.size:
        return said
    i = int(np.argsort(alpha)[alpha.size // 2])
    between = f"between {round_down(lower[i])} and {round_up(upper[i])}"
    return f"{said}: at {alpha[i]:g} the smallest false negative rate is {between}"


def value_html(value: Any) -> str:
    """A value that describes a run: its parts by name."""
    rows = [[field.name.replace("_", " "), repr(getattr(value, field.name))] for field in fields(value)]
    return _html.block(_html.table([type(value).__name__, ""], rows))


def phases_html(phases: Sequence[tuple[Any, int]]) -> str:
    """Phases of a composition and their steps."""
    rows = [[repr(mechanism), str(steps)] for mechanism, steps in phases]
    return _html.block(_html.table(["phase", "steps"], rows))


def _symbol(bounds: Any) -> str:
    if bounds.at_delta is not None:
        return "ε"
    return "δ" if bounds.at_epsilon is not None else ""


def _spread(count: int) -> list[int]:
    # Places that are spread evenly, the last one among them.
    return sorted({round((place + 1) * count / _ROWS) - 1 for place in range(_ROWS)} - {-1}) if count else []
