"""Many answers to the same question: ε after each of many numbers of steps, or δ at each of many ε."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dprmt.accounting.basics import Array, Direction, PrivacyBounds, curve_html, curve_text

Counts = Sequence[int] | NDArray[np.integer[Any]]
Numbers = Sequence[float] | NDArray[np.floating[Any]]


@dataclass(frozen=True)
class PrivacyCurve:
    """Certified intervals around a privacy quantity at many points, each as in :class:`PrivacyBounds`.

    Attributes
    ----------
    at : ndarray, shape (n,)
        The numbers of steps at which ε was asked for, or the ε at which δ was.
    lower, estimate, upper : ndarray, shape (n,)
        The quantity at each point is between ``lower`` and ``upper``. Report ``upper``.
    direction : ndarray of str, shape (n,)
        The adjacency direction whose upper bound is the larger; "" where both are the same (replacement).
    is_narrow : ndarray of bool, shape (n,)
        Where the interval is as narrow as was asked.

    Examples
    --------
    >>> from dprmt.accounting import DPSGD
    >>> curve = DPSGD(1.0, 0.01).epsilon(steps=[10, 100, 1000], delta=1e-5)
    >>> bool((curve.lower <= curve.upper).all()), curve[2].upper < 1.83
    (True, True)
    >>> print(curve)
    3 certified bounds on epsilon at delta = 1e-05: at most 0.379... at steps = 10, at most 1.82... at steps = 1000
    """

    at: Array
    lower: Array
    estimate: Array
    upper: Array
    direction: NDArray[np.str_]
    is_narrow: NDArray[np.bool_]
    at_delta: float | None = None
    """The δ at which ε was asked for."""

    def __str__(self) -> str:
        return curve_text(self)

    def _repr_html_(self) -> str:
        return curve_html(self)

    def __len__(self) -> int:
        return int(self.at.size)

    def __getitem__(self, index: int) -> PrivacyBounds:
        names: dict[str, Direction] = {"remove": "remove", "add": "add"}
        return PrivacyBounds(
            float(self.lower[index]),
            float(self.estimate[index]),
            float(self.upper[index]),
            names.get(str(self.direction[index])),
            bool(self.is_narrow[index]),
            at_delta=self.at_delta,
            at_epsilon=float(self.at[index]) if self.at_delta is None else None,
        )

    def __iter__(self) -> Iterator[PrivacyBounds]:
        return (self[index] for index in range(len(self)))
