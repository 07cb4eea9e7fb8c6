"""A method against Adam: the paired difference of test accuracies, and what may be said of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from paper_figures._verdict import Interval, mean_interval

MARGIN = 0.5
"""Points of accuracy within which two methods are called equal; set before anything was run."""

Reading = Literal["equal in every run", "equal within the margin", "better", "worse", "cannot tell"]


@dataclass(frozen=True)
class Compared:
    """Points of test accuracy more than Adam's: their mean over seeds, its interval, and what it says."""

    mean: float
    interval: Interval
    reading: Reading


def compared(method: Sequence[float], adam: Sequence[float], of: int = 1) -> Compared:
    """Compare accuracies by seed, in shares of 1.

    ``of``: how many comparisons are made side by side. All their intervals hold at once with 95 % (Bonferroni).
    Values that agree in every run have no spread, and an interval of no length.

    Examples
    --------
    >>> compared([0.92, 0.93, 0.91, 0.92], [0.90, 0.91, 0.89, 0.91]).reading
    'better'
    >>> compared([0.92, 0.93], [0.92, 0.93]).reading
    'equal in every run'
    """
    difference = 100 * (np.asarray(method, dtype=float) - np.asarray(adam, dtype=float))
    mean = float(difference.mean())
    if not difference.any():
        return Compared(0.0, Interval(0.0, 0.0), "equal in every run")
    interval = mean_interval(difference, 1 - 0.05 / of)
    return Compared(mean, interval, _reading(interval))


def _reading(interval: Interval) -> Reading:
    if interval.low >= -MARGIN and interval.high <= MARGIN:
        return "equal within the margin"
    if interval.low > 0:
        return "better"
    return "worse" if interval.high < 0 else "cannot tell"
