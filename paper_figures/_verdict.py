"""When a number of ours may be called reproduced, and what a reason must say of itself."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

Verdict = Literal["reproduced", "compatible, wide", "differs"]
WORST: tuple[Verdict, ...] = ("differs", "compatible, wide", "reproduced")
Kind = Literal["tested", "open"]


@dataclass(frozen=True)
class Interval:
    """A closed interval; both ends are there, and may be infinite."""

    low: float
    high: float

    def __post_init__(self) -> None:
        if not self.low <= self.high:
            raise ValueError(f"an interval needs low <= high, got {self.low} and {self.high}")


def judge(ours: Interval, theirs: Interval) -> Verdict:
    """Reproduced if ours lies within theirs, compatible if both merely meet.

    Examples
    --------
    >>> judge(Interval(1.0, 1.2), Interval(0.9, 1.3))
    'reproduced'
    >>> judge(Interval(1.0, 1.4), Interval(0.9, 1.3))
    'compatible, wide'
    >>> judge(Interval(1.4, 1.5), Interval(0.9, 1.3))
    'differs'
    """
    if theirs.low <= ours.low and ours.high <= theirs.high:
        return "reproduced"
    return "differs" if ours.high < theirs.low or ours.low > theirs.high else "compatible, wide"


def mean_interval(values: Sequence[float] | np.ndarray, level: float = 0.95) -> Interval:
    """Student's interval of the mean of independent values.

    The whole line where nothing is known of their spread: of one value, and of values that are all the same.
    """
    from scipy.stats import t

    found = np.asarray(values, dtype=float)
    if len(found) < 2 or not np.isfinite(found).all() or np.ptp(found) == 0:
        return Interval(-math.inf, math.inf)
    reach = t.ppf(0.5 + level / 2, len(found) - 1) * found.std(ddof=1) / math.sqrt(len(found))
    return Interval(float(found.mean() - reach), float(found.mean() + reach))


def share_interval(hits: int, of: int, level: float = 0.95) -> Interval:
    """Clopper and Pearson's interval of a probability, from independent trials."""
    from scipy.stats import binomtest

    if not of:
        return Interval(0.0, 1.0)
    found = binomtest(hits, of).proportion_ci(level)
    return Interval(float(found.low), float(found.high))


@dataclass(frozen=True)
class Reason:
    """Why a row differs: tested, and by which command, or open."""

    kind: Kind
    text: str
    command: str = ""

    def __post_init__(self) -> None:
        if self.kind not in ("tested", "open"):
            raise ValueError(f"a reason is tested or open, got {self.kind!r}")
        if (self.kind == "tested") != bool(self.command):
            raise ValueError("a tested reason names its command, and an open one has none")

    def sentence(self) -> str:
        """For the page."""
        return f"Tested (`{self.command}`): {self.text}" if self.kind == "tested" else f"Open: {self.text}"
