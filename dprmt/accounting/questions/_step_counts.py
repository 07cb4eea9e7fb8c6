"""ε after each of many numbers of equal steps: one discretization and one transform for a block of them."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dprmt.accounting.basics._bounds import Direction, PrivacyBounds, Side
from dprmt.accounting.basics._numbers import Array
from dprmt.accounting.composition._compose import best_tilt, composed, log_kappa, window
from dprmt.accounting.composition._curve import DeltaCurve, EpsilonAtDelta
from dprmt.accounting.composition._solve import InconsistentBoundsError, levels, loss_drift, step_laws
from dprmt.accounting.pairs import LossPMF, Step, ends_stay_apart

_BLOCK = 2.0  # largest number of steps of a block, over the smallest: one tilt serves them all
_MOST_POINTS = 2**20  # points of an inverse transform for single numbers of steps
_TRANSFORMS = 33  # at most, before it is seen what they leave open
_LEAST_GAIN = 0.8  # share of the former level's width, above which no further level is tried
_WIDER = 1.5  # than its neighbours' intervals, where those are wide: nothing narrower is to be had


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
            todo = todo[~(between & (width[todo] <= _WIDER * near))]
        if not todo.size:
            return None
        run = np.split(todo, np.flatnonzero(np.diff(todo) > 1) + 1)[0]
        place = int(run[run.size // 2] if known.size else todo[-1])
        self.asked[place] = True
        return place


def by_blocks(step: Step, brackets: Brackets, delta: float, direction: Direction) -> None:
    """Narrow brackets block by block, as far as this goes."""
    tail = step.tail_share * delta / int(brackets.counts[-1])
    for block in _blocks(brackets.counts, brackets.open()):
        _refine_block(_BlockQuestion(step, delta, direction, tail), brackets, block)


def _blocks(counts: NDArray[np.int64], todo: NDArray[np.int64]) -> Iterator[NDArray[np.int64]]:
    while todo.size:
        here = counts[todo] * _BLOCK >= counts[todo[-1]]
        yield todo[here]
        todo = todo[~here]


@dataclass(frozen=True)
class _BlockQuestion:
    """What is asked of every block: ``tail`` is the mass that may be cut off per step."""

    step: Step
    delta: float
    direction: Direction
    tail: float


@dataclass(frozen=True)
class _Laws:
    """Discrete losses of a step from above and from below, and a bound on its total variation."""

    upper: LossPMF
    lower: LossPMF
    variation: float


def _refine_block(question: _BlockQuestion, brackets: Brackets, block: NDArray[np.int64]) -> None:
    """Halve the mesh until the block's ends are narrow, or gain too little; only then solve all of it."""
    most = int(brackets.counts[block[-1]])
    for level in levels([(question.step, 1)], EpsilonAtDelta(question.delta), brackets.tolerance):
        ends = np.unique(block[[0, -1]])
        laws = _laws(question, most, level)
        before = brackets.width()[ends]
        if not _solve_block(question, laws, brackets, ends):
            return
        after = brackets.width()[ends]
        if np.any((after > 1.0) & (after < _LEAST_GAIN * before)) and not ends_stay_apart([(question.step, 1)]):
            continue
        block = _solve_all(question, laws, brackets, block)
        if not block.size or np.any(after > 1.0):
            return


def _laws(question: _BlockQuestion, most: int, level: float) -> _Laws:
    asked = EpsilonAtDelta(question.delta)
    laws, variation = step_laws(question.step, most, asked, question.direction, level, question.tail)
    return _Laws(laws["upper"], laws["lower"], variation)


def _solve_all(
    question: _BlockQuestion, laws: _Laws, brackets: Brackets, block: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Solve a block, in several rounds if one leaves some out; what stays open."""
    block = np.intersect1d(block, brackets.open())
    while block.size and _solve_block(question, laws, brackets, block):
        rest = np.intersect1d(block, brackets.open())
        if rest.size > 0.9 * block.size:
            return rest
        block = rest
    return block


def _solve_block(question: _BlockQuestion, laws: _Laws, brackets: Brackets, block: NDArray[np.int64]) -> bool:
    """Return whether this could be done."""
    counts, delta = brackets.counts[block], question.delta
    drift = loss_drift([(question.step, 1)]) * counts
    places = np.unique(np.linspace(0, counts.size - 1, _TRANSFORMS).round().astype(np.int64))
    upper = _bounds_of(laws.upper, counts, delta, "upper", places)
    lower = _bounds_of(laws.lower, counts, delta, "lower", places)
    if upper is None or lower is None:
        return False
    if ends_stay_apart([(question.step, 1)]):
        brackets.asked[block[places]] = True
    trivial = laws.variation * counts <= delta * (1.0 - 1e-9)  # even δ(0) is no larger
    upper = np.where(trivial, 0.0, np.where(upper > 0, upper + drift, upper))
    brackets.add(block, np.where(trivial, 0.0, np.maximum(lower - drift, 0.0)), upper)
    return True


def _bounds_of(
    law: LossPMF, counts: NDArray[np.int64], delta: float, side: Side, places: NDArray[np.int64]
) -> Array | None:
    """Compute the bounds at some places, each by a transform; the others get trivial bounds. The result is None if the
    transform would be too long.
    """
    if not law.mass.any():
        return None
    tilt = best_tilt([(law, round(math.sqrt(float(counts[0]) * float(counts[-1]))))], delta=delta)
    if window([(law, int(counts[-1]))], tilt).size > _MOST_POINTS:
        return None
    found = np.full(counts.size, np.inf if side == "upper" else 0.0)
    for place in places:
        laws = [(law, int(counts[place]))]
        loss = composed(laws, tilt, window(laws, tilt))
        around = max((loss.log_scale + float(log_kappa(np.asarray(tilt))) - math.log(delta)) / tilt, 0.0)
        curve = DeltaCurve(loss, around)
        found[place] = curve.epsilon_above(delta) if side == "upper" else curve.epsilon_below(delta)
    return found
