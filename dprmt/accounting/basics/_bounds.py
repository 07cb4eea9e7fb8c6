"""The answer to a privacy question: an interval and a best guess inside it; answers as text and in a notebook."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, fields
from decimal import ROUND_CEILING, ROUND_FLOOR
from typing import Any, Literal

import numpy as np

from dprmt import _html
from dprmt._rounding import fixed, round_down, round_up


def bounds_html(bounds: Any) -> str:
    """Return the sentence, and the numbers, rounded so that the ends stay bounds."""
    numbers = [
        ["lower", round_down(bounds.lower)],
        ["estimate", f"{bounds.estimate:.6g}"],
        ["upper", round_up(bounds.upper)],
    ]
    return _html.block(_html.sentence(str(bounds)), _html.table(["", _symbol(bounds)], numbers))


def curve_html(curve: Any) -> str:
    """Return a sentence, and some rows."""
    symbol, over = ("ε", "steps") if curve.at_delta is not None else ("δ", "ε")
    at = "" if curve.at_delta is None else f" at δ = {curve.at_delta:g}"
    rows = [[f"{curve.at[i]:g}", round_down(curve.lower[i]), round_up(curve.upper[i])] for i in _spread(len(curve))]
    said = f"{len(curve)} certified bounds on {symbol}{at}"
    return _html.block(_html.sentence(said), _html.table([over, f"{symbol} ≥", f"{symbol} ≤"], rows))


def band_html(band: Any) -> str:
    """Return a sentence, and some rows."""
    alpha, lower = np.ravel(band.alpha), np.ravel(band.lower)
    order = np.argsort(alpha)
    upper = np.ravel(band.upper)
    rows = [[f"{alpha[i]:g}", round_down(lower[i]), round_up(upper[i])] for i in order[_spread(alpha.size)]]
    said = "Smallest false negative rate β of any test with false positive rate α: certified from below"
    return _html.block(_html.sentence(said), _html.table(["α", "β ≥", "β ≤"], rows))


def curve_text(curve: Any) -> str:
    """Return its first and last bound, as a sentence in letters that every terminal has."""
    symbol, over = ("epsilon", "steps") if curve.at_delta is not None else ("delta", "epsilon")
    at = "" if curve.at_delta is None else f" at delta = {curve.at_delta:g}"
    ends = sorted({0, len(curve) - 1}) if len(curve) else []
    said = [f"at most {round_up(curve.upper[i])} at {over} = {curve.at[i]:g}" for i in ends]
    bounds = "bound" if len(curve) == 1 else "bounds"
    return f"{len(curve)} certified {bounds} on {symbol}{at}{': ' if said else ''}{', '.join(said)}"


def band_text(band: Any) -> str:
    """Return the band where it is in the middle, as a sentence in letters that every terminal has."""
    alpha, lower, upper = np.ravel(band.alpha), np.ravel(band.lower), np.ravel(band.upper)
    rates = "rate" if alpha.size == 1 else "rates"
    said = f"trade-off function at {alpha.size} false positive {rates}"
    if not alpha.size:
        return said
    i = int(np.argsort(alpha)[alpha.size // 2])
    between = f"between {round_down(lower[i])} and {round_up(upper[i])}"
    return f"{said}: at {alpha[i]:g} the smallest false negative rate is {between}"


def value_html(value: Any) -> str:
    """Return a value that describes a run: its parts by name."""
    rows = [[field.name.replace("_", " "), repr(getattr(value, field.name))] for field in fields(value)]
    return _html.block(_html.table([type(value).__name__, ""], rows))


def phases_html(phases: Sequence[tuple[Any, int]]) -> str:
    """Format the phases of a composition and their steps."""
    rows = [[repr(mechanism), str(steps)] for mechanism, steps in phases]
    return _html.block(_html.table(["phase", "steps"], rows))


def _symbol(bounds: Any) -> str:
    if bounds.at_delta is not None:
        return "ε"
    return "δ" if bounds.at_epsilon is not None else ""


def _spread(count: int, rows: int = 6) -> list[int]:
    # Places that are spread evenly, the last one among them.
    return sorted({round((place + 1) * count / rows) - 1 for place in range(rows)} - {-1}) if count else []


Direction = Literal["remove", "add"]
Side = Literal["upper", "lower"]
_DECIDES = {"remove": "removing", "add": "adding"}


@dataclass(frozen=True)
class PrivacyBounds:
    """A certified interval around a privacy quantity (ε or δ). Unpacks as ``lower, estimate, upper``.

    It prints as a sentence whose numbers are rounded outward. ``float(bounds)`` is the end that is safe to report, and
    ``f"{bounds:.2f}"`` is this end rounded outward, so the printed number holds. The safe end is ``upper``, except for
    an attacker's error, where it is ``lower``. ``pandas.DataFrame([bounds])`` has named columns.

    Attributes
    ----------
    lower : float
        Certified lower bound on the quantity.
    estimate : float
        An estimate between the bounds, without guarantee.
    upper : float
        Certified upper bound on the quantity. Report this one, unless ``safe`` is "lower".
    direction : {"remove", "add"} or None
        The adjacency direction that decides. None if it is unknown, or if both are equal (replacement).
    is_narrow : bool
        Whether the interval is as narrow as requested. If not, the bounds still hold, and ``estimate`` is close to
        ``upper``.
    at_delta, at_epsilon : float or None
        The δ at which ε was computed, or the ε at which δ was computed. None if you made the bounds yourself.
    safe : {"upper", "lower"}
        The end to report: "lower" for an attacker's error, which more privacy makes larger.

    Examples
    --------
    >>> bounds = PrivacyBounds(lower=0.99, estimate=1.0, upper=1.0101)
    >>> lower, estimate, upper = bounds
    >>> lower <= estimate <= upper
    True
    >>> float(bounds), f"ε ≤ {bounds:.2f}"
    (1.0101, 'ε ≤ 1.02')
    >>> print(bounds)
    between 0.99 and 1.0101
    """

    lower: float
    estimate: float
    upper: float
    direction: Direction | None = field(default=None, compare=False)
    is_narrow: bool = field(default=True, compare=False)
    at_delta: float | None = field(default=None, compare=False, repr=False)
    at_epsilon: float | None = field(default=None, compare=False, repr=False)
    safe: Side = field(default="upper", compare=False, repr=False)

    @property
    def ndim(self) -> int:
        """Number of axes, 0: one answer. pandas would take what can be unpacked for a row of numbers without names."""
        return 0

    def __float__(self) -> float:
        return self.upper if self.safe == "upper" else self.lower

    def __str__(self) -> str:
        # In letters that every terminal has: a program that prints its answer must not end on an encoding.
        interval = f"between {round_down(self.lower)} and {round_up(self.upper)}"
        if self.at_delta is not None:
            interval = f"epsilon is {interval} at delta = {self.at_delta:g}"
        elif self.at_epsilon is not None:
            interval = f"delta is {interval} at epsilon = {self.at_epsilon:g}"
        return interval if self.direction is None else f"{interval}; {_DECIDES[self.direction]} a sample decides"

    def _repr_html_(self) -> str:
        return bounds_html(self)

    def __format__(self, spec: str) -> str:
        if not spec:
            return str(self)
        return fixed(float(self), spec, ROUND_CEILING if self.safe == "upper" else ROUND_FLOOR)

    def __iter__(self) -> Iterator[float]:
        return iter((self.lower, self.estimate, self.upper))

    def as_dict(self) -> dict[str, float | bool]:
        """Return the three numbers by name, and whether the interval is as narrow as asked.

        Returns
        -------
        dict
            For JSON.
        """
        return {"lower": self.lower, "estimate": self.estimate, "upper": self.upper, "is_narrow": self.is_narrow}
