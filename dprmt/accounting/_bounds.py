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

    def __iter__(self) -> Iterator[float]:
        return iter((self.lower, self.estimate, self.upper))

    def as_dict(self) -> dict[str, float]:
        """The three numbers by name.

        Returns
        -------
        dict
            For JSON.
        """
        return {"lower": self.lower, "estimate": self.estimate, "upper": self.upper}


def worst_of(by_direction: dict[Direction, PrivacyBounds]) -> PrivacyBounds:
    """The larger of both directions, named after the one whose upper bound is larger.

    Returns
    -------
    PrivacyBounds
        Bounds on the maximum.
    """
    name = max(by_direction, key=lambda direction: by_direction[direction].upper)
    return PrivacyBounds(
        lower=max(bounds.lower for bounds in by_direction.values()),
        estimate=max(bounds.estimate for bounds in by_direction.values()),
        upper=by_direction[name].upper,
        direction=name,
    )
