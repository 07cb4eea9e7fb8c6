"""Values of relations from elsewhere: inside the library's answers, as the page prints them, and one refuted.

They come from Fourier sums with a mesh of 2e-4 of the losses of rank-one gradients: the truth where norms are exact,
what one gradient attains where they are estimated, and, for public probes, what tails multiplied by the number of
samples cost.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Literal

import pytest

from dprmt.accounting import DPSGD, ExactNorms, Group, Hutchinson, PrivacyBounds, ReplaceOne

PAGE = Path(__file__).parents[2] / "docs" / "theory" / "neighbours.md"
BEGIN, END = "<!-- check values: begin -->", "<!-- check values: end -->"
ROWS = PAGE.read_text(encoding="utf-8").partition(BEGIN)[2].partition(END)[0].strip().splitlines()[2:]
Q = 2000 / 67349


@dataclass(frozen=True)
class Value:
    """ε of a run as it was computed elsewhere.

    ``way``: of both directions the larger one, or adding. ``is_worst``: whether the value is the worst case itself, or
    what one gradient attains. ``loose``: what multiplied tails cost. ``refuted``: an upper end below the value that
    ``dprmt verify`` proves.
    """

    mechanism: DPSGD
    value: float
    steps: int = 400
    delta: float = 1e-5
    way: Literal["both", "add"] = "both"
    is_worst: bool = True
    loose: float = math.inf
    refuted: float | None = None

    def bounds(self) -> PrivacyBounds:
        """What the library answers."""
        if self.way == "add":
            return self.mechanism.epsilon_by_direction(steps=self.steps, delta=self.delta)["add"]
        return self.mechanism.epsilon(steps=self.steps, delta=self.delta)

    def agrees(self, bounds: PrivacyBounds) -> bool:
        """Inside, up to the digits that were kept; a bound of estimates may exceed what is attained."""
        digit = 0.5 * 10 ** (math.floor(math.log10(self.value)) - 4)
        above = self.value <= bounds.upper + digit and (bounds.upper < self.loose or self.loose == math.inf)
        return above and (not self.is_worst or bounds.lower - digit <= self.value)


VALUES = (
    Value(DPSGD(1.0, Q, neighbours=ReplaceOne()), 5.8132),
    Value(DPSGD(0.779078, Q, neighbours=ReplaceOne()), 8.9788),
    Value(DPSGD(2.0, 0.01, neighbours=ReplaceOne()), 1.37454, 1000, 1e-6),
    Value(DPSGD(1.0, 1e-3, neighbours=ReplaceOne()), 2.83967, 100_000, refuted=2.83785),
    *(Value(DPSGD(1.0, Q, neighbours=Group(m)), value) for m, value in ((2, 8.4882), (4, 19.7522), (8, 49.104))),
    *(Value(DPSGD(1.0, Q, neighbours=Group(m)), v, way="add") for m, v in ((2, 5.674), (4, 12.521), (8, 28.547))),
    Value(DPSGD(1.0, Q, Hutchinson(32, secret=True), ReplaceOne()), 6.1175, is_worst=False),
    Value(DPSGD(1.0, Q, Hutchinson(32, secret=True), Group(2)), 9.1778, is_worst=False),
    Value(DPSGD(1.0, Q, Hutchinson(32, secret=True), Group(4)), 21.271, is_worst=False),
    Value(DPSGD(1.0, Q, Hutchinson(32, secret=False), ReplaceOne()), 6.424, is_worst=False, loose=7.368),
    Value(DPSGD(1.0, Q, Hutchinson(128, secret=False), ReplaceOne()), 5.928, is_worst=False, loose=6.367),
    Value(DPSGD(1.0, Q, Hutchinson(32, secret=False), Group(2)), 10.076, is_worst=False),
    Value(DPSGD(1.0, Q, Hutchinson(32, secret=False), Group(4)), 22.80, is_worst=False),
)


@cache
def answer(value: Value) -> PrivacyBounds:
    return value.bounds()


@pytest.mark.parametrize("value", VALUES, ids=lambda value: f"{value.mechanism}, {value.way}")
def test_a_value_from_elsewhere_is_inside(value: Value) -> None:
    """Up to its last digit; within 1e-3 unless the coupling of public probes is bounded, or curves are."""
    bounds = answer(value)
    assert value.agrees(bounds) is (value.refuted is None)
    if not isinstance(value.mechanism.norms, ExactNorms) and isinstance(value.mechanism.neighbours, Group):
        assert bounds.lower <= value.value
        assert not bounds.is_narrow
        return
    is_coupled = getattr(value.mechanism.norms, "secret", True) is False
    assert bounds.upper - bounds.lower <= (5e-3 if is_coupled else 1e-3) * bounds.upper


def test_the_page_prints_what_is_computed() -> None:
    assert len(ROWS) == len(VALUES)
    for row, value in zip(ROWS, VALUES, strict=True):
        cells, bounds = [cell.strip() for cell in row.strip("|").split("|")], answer(value)
        assert f"{value.value:g}" in cells[3]
        lower, upper, width = map(float, cells[4:7])
        assert lower <= bounds.upper * (1 + 1e-4)
        assert bounds.lower <= upper * (1 + 1e-4)
        assert width == (
            pytest.approx((upper - lower) / upper, abs=1e-2 * width + 1e-4) if upper < math.inf else math.inf
        )
        assert cells[7].startswith("yes" if value.refuted is None else "**no**")
