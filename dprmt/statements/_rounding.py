"""Print bounds so that the printed number is still a bound."""

from __future__ import annotations

import math
from decimal import ROUND_CEILING, ROUND_FLOOR, Context, Decimal


def round_up(value: float, digits: int = 6) -> str:
    """The shortest decimal of ``digits`` significant digits that is not below ``value``.

    Parameters
    ----------
    value : float
        May be infinite.
    digits : int
        At least 1.

    Returns
    -------
    str
        It.

    Examples
    --------
    >>> round_up(4.6390002, 4), round_up(2.5, 4)
    ('4.64', '2.5')
    """
    return _rounded(value, digits, ROUND_CEILING)


def round_down(value: float, digits: int = 6) -> str:
    """The shortest decimal of ``digits`` significant digits that is not above ``value``.

    Parameters
    ----------
    value : float
        May be infinite.
    digits : int
        At least 1.

    Returns
    -------
    str
        It.

    Examples
    --------
    >>> round_down(4.63999, 4)
    '4.639'
    """
    return _rounded(value, digits, ROUND_FLOOR)


def _rounded(value: float, digits: int, rounding: str) -> str:
    if math.isinf(value):
        return "inf"
    rounded = Context(prec=digits, rounding=rounding).create_decimal(Decimal(value))
    return f"{float(rounded):.{digits}g}"
