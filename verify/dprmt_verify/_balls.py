"""Balls and integers: Arb's numbers, each a midpoint and a radius that is proved to hold the truth."""

from flint import arb, fmpz

ZERO, ONE = arb(0), arb(1)


def integer_above(ball: arb, bits: int) -> fmpz:
    """The least integer that is at least 2^bits times all of a ball, and at least 0."""
    return max(-floor(-ball * arb(2) ** bits), fmpz(0))


def integer_below(ball: arb, bits: int) -> fmpz:
    """The largest integer that is at most 2^bits times all of a ball, or 0."""
    return max(floor(ball * arb(2) ** bits), fmpz(0))


def floor(ball: arb) -> fmpz:
    """The largest integer that is at most all of a ball."""
    integer = ball.lower().floor().unique_fmpz()
    if integer is None:
        raise ArithmeticError("a ball has no finite end")
    return integer


def one_floor(ball: arb) -> int:
    """The largest integer that is at most a number, if it is the same one for all of a ball."""
    if floor(ball) != floor(ball.upper()):
        raise ArithmeticError("a ball lies on both sides of an integer")
    return int(floor(ball))


def normal_above(x: arb) -> arb:
    """P(N > x) of a standard normal N."""
    return (x / arb(2).sqrt()).erfc() / 2


def normal_density(x: arb) -> arb:
    """Of a standard normal."""
    return (-x * x / 2).exp() / (2 * arb.pi()).sqrt()
