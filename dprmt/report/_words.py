"""Numbers as text, and records as columns."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from scipy import stats


def by_columns(records: list[Any], names: tuple[str, ...]) -> dict[str, list[Any]]:
    """Transpose records to columns, which is shorter in JSON."""
    return {name: [getattr(record, name) for record in records] for name in names}


def counted(count: int, one: str, many: str = "") -> str:
    """Return a number of things: "1 step", "2 steps", "0 matrices"."""
    return f"{count} {one if count == 1 else many or one + 's'}"


def matrices(count: int) -> str:
    """Return a number of them."""
    return counted(count, "matrix", "matrices")


def per_cent(value: float, digits: int = 1, *, sign: bool = False) -> str:
    """Return a share in per cent."""
    if not math.isfinite(value):
        return "none"
    return f"{number(100 * value, digits, sign=sign)} %"


def relative(value: float, digits: int = 1, *, sign: bool = False) -> str:
    """Return a relative finding in a sentence: per cent, two digits where decimals would be zeros, a factor above a
    whole.
    """
    if not math.isfinite(value):
        return "none"
    if abs(value) > 1:
        return f"{number(value, 1, sign=sign)} times"
    return f"{size(100 * value, digits, sign=sign)} %"


def size(value: float, digits: int, *, sign: bool = False) -> str:
    """Return a finding in a sentence, with so many decimals, or two digits where these would be zeros."""
    if value and not round(value, digits):
        return f"{value:{'+' if sign else ''}.1e}".replace("-", "−")
    return number(value, digits, sign=sign) if value else "0"


def effect(value: float) -> str:
    """Return a difference that may be tiny, with its sign: four decimals, or two digits where these would be zeros."""
    if value == 0 or abs(value) >= 1e-3:
        return number(value, 4, sign=True) if value else "0"
    return f"{value:+.1e}".replace("-", "−")


def interval_of_mean(values: Sequence[float]) -> tuple[float, float]:
    """Compute a 95 % interval by Student's t for independent values; NaN for fewer than two."""
    if len(values) < 2:
        return math.nan, math.nan
    mean, spread = float(np.mean(values)), float(np.std(values, ddof=1))
    half = float(stats.t.ppf(0.975, len(values) - 1)) * spread / math.sqrt(len(values))
    return mean - half, mean + half


def with_interval(values: Sequence[float]) -> str:
    """Return a mean and its interval."""
    low, high = interval_of_mean(values)
    mean = effect(float(np.mean(values)))
    return mean if math.isnan(low) else f"{mean} (95 % interval {effect(low)} to {effect(high)})"


def no_sign(values: Sequence[float]) -> bool:
    """Return whether the interval contains both signs. For one value it is unknown; values that are all 0 have no
    sign.
    """
    low, high = interval_of_mean(values)
    return low < 0 < high


def number(value: float, digits: int, *, sign: bool = False) -> str:
    """Return a number with a minus sign that is one, and none before zero."""
    rounded = round(value, digits) + 0.0  # -0.0 + 0.0 is 0.0
    return f"{rounded:{'+' if sign and rounded else ''}.{digits}f}".replace("-", "−")
