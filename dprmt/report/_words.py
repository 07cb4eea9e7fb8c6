"""Numbers as text, and records as columns."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Any

import numpy as np
from scipy.special import stdtrit


def layer_name(name: str) -> str:
    """Return the name of a layer without those of its wrappers and of the only adapter, and its end if it is long."""
    bare = re.sub(r"base_model\.model\.|_module\.|\.default|\.modules_to_save", "", name)
    return bare if len(bare) <= 50 else f"…{bare[-49:]}"


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
    return f"{number(100 * value, digits, sign=sign)} %" if math.isfinite(value) else "none"


def effect(value: float) -> str:
    """Return a difference that may be tiny, with its sign: four decimals, or two digits where these would be zeros."""
    if value and abs(value) < 1e-3:
        return f"{value:+.1e}".replace("-", "−")
    return number(value, 4, sign=True) if value else "0"


def with_interval(values: Sequence[float]) -> str:
    """Return the mean of independent values, and its 95 % interval by Student's t if there are two or more."""
    mean, count = float(np.mean(values)), len(values)
    if count < 2:
        return effect(mean)
    half = float(stdtrit(count - 1, 0.975) * np.std(values, ddof=1)) / math.sqrt(count)
    return f"{effect(mean)} (95 % interval {effect(mean - half)} to {effect(mean + half)})"


def number(value: float, digits: int, *, sign: bool = False) -> str:
    """Return a number with a minus sign that is one, and none before zero."""
    rounded = round(value, digits) + 0.0  # -0.0 + 0.0 is 0.0
    return f"{rounded:{'+' if sign and rounded else ''}.{digits}f}".replace("-", "−")
