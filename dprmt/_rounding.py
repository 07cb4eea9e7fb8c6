"""Print a bound as a number that is still a bound: the one place of the package that rounds for readers."""

from __future__ import annotations

import math
from decimal import ROUND_CEILING, ROUND_FLOOR, Context, Decimal, localcontext


def round_up(value: float, digits: int = 6) -> str:
    """Return the shortest decimal of ``digits`` significant digits that is not below ``value``.

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
    """Return the shortest decimal of ``digits`` significant digits that is not above ``value``.

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


def fixed(value: float, spec: str, rounding: str) -> str:
    """Compute ``format(value, spec)`` with a rounding mode of :mod:`decimal`."""
    if not math.isfinite(value):
        return format(value, spec)
    with localcontext(rounding=rounding):
        return format(_decimal(value), spec)


def _rounded(value: float, digits: int, rounding: str) -> str:
    if not math.isfinite(value):
        return str(float(value))
    return f"{float(Context(prec=digits, rounding=rounding).create_decimal(_decimal(value))):.{digits}g}"


def _decimal(value: float) -> Decimal:
    """Return the shortest decimal that is this float: 0.1 for .1, which lies above 1/10 by 5e-18; 0 for -0.0."""
    return Decimal(repr(float(value) + 0.0))
