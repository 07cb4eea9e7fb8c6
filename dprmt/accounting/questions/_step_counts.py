"""ε after each of many numbers of equal steps: one discretization and one transform for a block of them."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dprmt.accounting.basics._bounds import Direction, PrivacyBounds, Side
from dprmt.accounting.basics._numbers import Array
from dprmt.accounting.composition._compose import DeltaCurve, Question, best_tilt, composed, window
from dprmt.accounting.composition._solve import MOST_POINTS, TAIL_SHARE, InconsistentBoundsError, levels, step_laws
from dprmt.accounting.pairs._pairs import LossPMF, Schedule, Step
from dprmt.accounting.pairs._renyi import ends_stay_apart


@dataclass
class Brackets:
    """Bounds on ε at increasing numbers of steps; ε grows with them, so each bound serves its neighbours.

    ``counts``: integers; ``floor``: a bound that the answer has to exceed to be of interest.
    """

    counts: NDArray[np.int64]
    tolerance: float
    floor: Array

    def __post_init__(self) -> None:
        self.lower, self.upper = np.zeros(self.counts.size), np.full(self.counts.size, np.inf)
        self.asked = np.zeros(self.counts.size, dtype=bool)

    def add(self, where: NDArray[np.int64], lower: Array, upper: Array) -> None:
        """Store bounds, and update the bounds of other numbers of steps."""
        self.lower[where] = np.maximum(self.lower[where], lower)
        self.upper[where] = np.minimum(self.upper[where], upper)
        self.lower = np.maximum.accumulate(self.lower)
        self.upper = np.minimum.accumulate(self.upper[::-1])[::-1]
        if np.any(self.lower > self.upper * (1.0 + 1e-9) + 1e-300):
            raise InconsistentBoundsError("bounds after different numbers of steps contradict each other: report this")

    def add_one(self, place: int, bounds: PrivacyBounds) -> None:
        """Take over the bounds at one place."""
        self.add(np.array([place]), np.array([bounds.lower]), np.array([bounds.upper]))

    def width(self) -> Array:
        """Compute widths in units of the tolerance."""
        with np.errstate(invalid="ignore"):
            value: Array = (self.upper - self.lower) / (self.tolerance * np.maximum(1.0, self.upper))
        return np.where(np.isfinite(self.upper), value, np.inf)

    def open(self) -> NDArray[np.int64]:
        """Mark bounds that are wider than requested, and could decide."""
        return np.flatnonzero((self.width() > 1.0) & (self.upper > self.floor))

    def next_place(self) -> int | None:
        """Choose the next single number: in the middle of the open ones, until the rest follows from these."""
        todo, width = self.open(), self.width()
        todo = todo[~self.asked[todo]]
        known = np.flatnonzero(self.asked)
        if known.size and todo.size:  # not between two that were asked, unless wider than those
            right = np.minimum(np.searchsorted(known, todo), known.size - 1)
            left = np.maximum(right - 1, 0)
            near = np.maximum(width[known[left]], width[known[right]])
            between = (known[left] < todo) & (todo < known[right])
            todo = todo[~(between & (width[todo] <= 1.5 * near))]  # where those are wide, so is what is between
        if not todo.size:
            return None
        run = np.split(todo, np.flatnonzero(np.diff(todo) > 1) + 1)[0]
        place = int(run[run.size // 2] if known.size else todo[-1])
        self.asked[place] = True
        return place


def by_blocks(step: Step, brackets: Brackets, delta: float, direction: Direction) -> None:
    """Narrow brackets block by block, as far as this goes: one tilt serves all numbers of steps of a block."""
    todo, tail = brackets.open(), TAIL_SHARE * delta / int(brackets.counts[-1])
    while todo.size:
        here = 2 * brackets.counts[todo] >= brackets.counts[todo[-1]]
        _refine_block(step, delta, direction, tail, brackets, todo[here])
        todo = todo[~here]


def _refine_block(
    step: Step, delta: float, direction: Direction, tail: float, brackets: Brackets, block: NDArray[np.int64]
) -> None:
    """Halve the mesh until the block's ends are narrow, or gain too little; only then solve all of it."""
    alone, asked, most = [(step, 1)], Question(delta), int(brackets.counts[block[-1]])
    for level in levels(alone, asked, brackets.tolerance):
        ends = np.unique(block[[0, -1]])
        at_level = _AtLevel(alone, delta, *step_laws(step, most, asked, direction, level, tail))
        before = brackets.width()[ends]
        if not at_level.solve(brackets, ends):
            return
        after = brackets.width()[ends]
        if np.any((after > 1.0) & (after < 0.8 * before)) and not ends_stay_apart(alone):
            continue
        block = np.intersect1d(block, brackets.open())
        while block.size and at_level.solve(brackets, block):
            rest = np.intersect1d(block, brackets.open())
            is_done, block = rest.size > 0.9 * block.size, rest
            if is_done:
                break
        if not block.size or np.any(after > 1.0):
            return


@dataclass(frozen=True)
class _AtLevel:
    """Discrete losses of a step from above and from below, bounds on its total variation and on its loss's drift."""

    alone: Schedule
    delta: float
    laws: dict[Side, LossPMF]
    variation: float
    drift: float

    def solve(self, brackets: Brackets, block: NDArray[np.int64]) -> bool:
        """Narrow some brackets of the block, each by a transform; False where this would be too long."""
        counts, asked = brackets.counts[block], Question(self.delta)
        places = np.unique(np.linspace(0, counts.size - 1, 33).round().astype(np.int64))
        upper, lower = np.full(counts.size, np.inf), np.zeros(counts.size)
        for side, found in (("upper", upper), ("lower", lower)):
            law = self.laws[side]  # type: ignore[index]
            if not law.mass.any():
                return False
            middle = round(math.sqrt(float(counts[0]) * float(counts[-1])))
            tilt = best_tilt([(law, middle)], asked)[0]
            if window([(law, int(counts[-1]))], tilt).size > MOST_POINTS:
                return False
            for place in places:
                laws = [(law, int(counts[place]))]
                loss = composed(laws, tilt, window(laws, tilt))
                found[place] = DeltaCurve(asked, loss).epsilon(self.delta, side)  # type: ignore[arg-type]
        if ends_stay_apart(self.alone):
            brackets.asked[block[places]] = True
        drift = self.drift * counts
        trivial = self.variation * counts <= self.delta * (1.0 - 1e-9)  # even δ(0) is no larger
        upper = np.where(trivial, 0.0, np.where(upper > 0, upper + drift, upper))
        brackets.add(block, np.where(trivial, 0.0, np.maximum(lower - drift, 0.0)), upper)
        return True
