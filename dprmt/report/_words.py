"""Numbers as text, and records as columns."""

from __future__ import annotations

import math
from typing import Any


def by_columns(records: list[Any], names: tuple[str, ...]) -> dict[str, list[Any]]:
    """Records as columns, which is shorter in JSON."""
    return {name: [getattr(record, name) for record in records] for name in names}


def per_cent(value: float, digits: int = 1, *, sign: bool = False) -> str:
    """A share in per cent."""
    if not math.isfinite(value):
        return "none"
    return f"{number(100 * value, digits, sign=sign)} %"


def number(value: float, digits: int, *, sign: bool = False) -> str:
    """A number with a minus sign that is one, and none before zero."""
    rounded = round(value, digits) + 0.0  # -0.0 + 0.0 is 0.0
    return f"{rounded:{'+' if sign and rounded else ''}.{digits}f}".replace("-", "−")
