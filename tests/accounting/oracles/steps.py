"""Mechanisms whose single step other packages are given, and our own bounds on it."""

from __future__ import annotations

from functools import lru_cache

from dprmt.accounting import DPSGD, Hutchinson, PrivacyBounds, compose
from dprmt.accounting.basics._bounds import Direction

RATE = 2000 / 67349
EXACT = DPSGD(1.0, RATE)
TIGHT = DPSGD(1.0, RATE, Hutchinson(32, secret=False))
MECHANISMS = {
    "exact": EXACT,
    "tight": TIGHT,
    "envelope": DPSGD(1.0, RATE, Hutchinson(32, secret=False, analysis="envelope")),
    "secret": DPSGD(1.0, RATE, Hutchinson(32, secret=True)),
    "few": DPSGD(1.0, RATE, Hutchinson(6, secret=False)),
    "q=1": DPSGD(3.0, 1.0, Hutchinson(16, secret=False)),
}
LARGEST = {"few": 50.0}  # else thousands, too many grid points
DIRECTIONS: tuple[Direction, ...] = ("remove", "add")


@lru_cache
def own_delta(name: str, epsilon: float) -> dict[Direction, PrivacyBounds]:
    """Return our own bounds on one step's δ, by direction."""
    return compose([(MECHANISMS[name], 1)]).delta_by_direction(epsilon, tolerance=0.05)
