"""The answer to a privacy question: an interval and a best guess inside it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from decimal import ROUND_CEILING, ROUND_FLOOR
from typing import Literal

from dprmt._rounding import fixed, round_down, round_up
from dprmt.accounting.basics._notebook import bounds_html

Direction = Literal["remove", "add"]
Side = Literal["upper", "lower"]
_DECIDES = {"remove": "removing", "add": "adding"}


@dataclass(frozen=True)
class PrivacyBounds:
    """A certified interval around a privacy quantity (ε or δ). Unpacks as ``lower, estimate, upper``.

    It prints as a sentence whose numbers are rounded outward. ``float(bounds)`` is the end that is safe to report, and
    ``f"{bounds:.2f}"`` is this end rounded outward, so that what is printed holds. The safe end is ``upper``, but
    ``lower`` for an attacker's error. ``pandas.DataFrame([bounds])`` has named columns.

    Attributes
    ----------
    lower : float
        The quantity is at least this.
    estimate : float
        A guess between the bounds; carries no guarantee.
    upper : float
        The quantity is at most this. Report this one, unless ``safe`` says "lower".
    direction : {"remove", "add"} or None
        The adjacency direction that decides; None where it is unknown, or where both are the same (replacement).
    is_narrow : bool
        Whether the interval is as narrow as was asked. Where it is not, the bounds hold all the same, and
        ``estimate`` is kept near ``upper``.
    at_delta, at_epsilon : float or None
        The δ at which ε was asked for, or the ε at which δ was. None in bounds that were made by hand.
    safe : {"upper", "lower"}
        The end to report: "lower" of an attacker's error, which more privacy makes larger.

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
        """The three numbers by name, and whether the interval is as narrow as asked.

        Returns
        -------
        dict
            For JSON.
        """
        return {"lower": self.lower, "estimate": self.estimate, "upper": self.upper, "is_narrow": self.is_narrow}


def worst_of(by_direction: dict[Direction, PrivacyBounds]) -> PrivacyBounds:
    """Bounds on the larger of both directions, named after the one whose upper bound is larger.

    Parameters
    ----------
    by_direction : dict
        As from ``epsilon_by_direction``.

    Returns
    -------
    PrivacyBounds
        As narrow as the direction that decides, and not narrow where none certainly does.

    Formal guarantees
    -----------------
    The larger quantity lies between the larger lower end and the larger upper end.

    Examples
    --------
    >>> worst_of({"remove": PrivacyBounds(1.0, 1.1, 1.2), "add": PrivacyBounds(0.0, 0.5, 1.3, is_narrow=False)})
    PrivacyBounds(lower=1.0, estimate=1.1, upper=1.3, direction='add', is_narrow=False)
    """
    name = max(by_direction, key=lambda direction: by_direction[direction].upper)
    lower = max(bounds.lower for bounds in by_direction.values())
    alike = len(set(by_direction.values())) == 1 and by_direction[name].direction is None  # samples are replaced
    return PrivacyBounds(
        lower=lower,
        estimate=max(bounds.estimate for bounds in by_direction.values()),
        upper=by_direction[name].upper,
        direction=None if alike else name,
        is_narrow=by_direction[name].is_narrow or all(b.is_narrow or b.upper <= lower for b in by_direction.values()),
        at_delta=by_direction[name].at_delta,
        at_epsilon=by_direction[name].at_epsilon,
    )
