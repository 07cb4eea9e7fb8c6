"""The answer to a privacy question: an interval and a best guess inside it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal

Direction = Literal["remove", "add"]


@dataclass(frozen=True)
class PrivacyBounds:
    """A certified interval around a privacy quantity (ε or δ). Unpacks as ``lower, estimate, upper``.

    Attributes
    ----------
    lower : float
        The quantity is at least this.
    estimate : float
        A guess between the bounds; carries no guarantee.
    upper : float
        The quantity is at most this. Report this one.
    direction : {"remove", "add"} or None
        The adjacency direction that decides, where that is known.
    is_narrow : bool
        Whether the interval is as narrow as was asked. Where it is not, the bounds hold all the same, and
        ``estimate`` is kept near ``upper``.

    Examples
    --------
    >>> bounds = PrivacyBounds(lower=0.99, estimate=1.0, upper=1.01)
    >>> lower, estimate, upper = bounds
    >>> lower <= estimate <= upper
    True
    """

    lower: float
    estimate: float
    upper: float
    direction: Direction | None = field(default=None, compare=False)
    is_narrow: bool = field(default=True, compare=False)

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
    """The larger of both directions, named after the one whose upper bound is larger."""
    name = max(by_direction, key=lambda direction: by_direction[direction].upper)
    lower = max(bounds.lower for bounds in by_direction.values())
    return PrivacyBounds(
        lower=lower,
        estimate=max(bounds.estimate for bounds in by_direction.values()),
        upper=by_direction[name].upper,
        direction=name,
        is_narrow=all(bounds.is_narrow or bounds.upper <= lower for bounds in by_direction.values()),
    )
