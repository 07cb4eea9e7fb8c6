"""Numbers as text that is still a bound."""

from __future__ import annotations

import math
from decimal import Context, Decimal


def outward(value: float, rounding: str) -> str:
    """Six significant digits, rounded away from the interval's inside by a word of :mod:`decimal`."""
    if not math.isfinite(value):
        return str(value)
    return f"{float(Context(prec=6, rounding=rounding).create_decimal(Decimal(repr(float(value))))):g}"
