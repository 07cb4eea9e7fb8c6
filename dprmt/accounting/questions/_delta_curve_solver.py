"""δ at each of many ε: every composed loss is asked about all of them, not only about the one it is made for."""

from __future__ import annotations

import math
from collections.abc import Sequence

from dprmt.accounting.basics import Direction, PrivacyBounds, Side
from dprmt.accounting.composition import DeltaAtEpsilon, Level, intersection, interval, levels, sized
from dprmt.accounting.pairs import Schedule, ends_stay_apart

_LEAST = 1e-290  # smaller δ are told from 0 no further
_WORSE = 3.0  # than where the loss was made for: far enough from there to have one of its own
_WIDE = 0.3  # of an upper end: the loss was made for something else
_SIDES: tuple[Side, Side] = ("upper", "lower")


class DeltaCurveSolver:
    """Bounds on δ at increasing ε, for one adjacency direction.

    ``floor``: what δ has to exceed at each of them to be of interest.
    """

    def __init__(
        self,
        schedule: Schedule,
        epsilons: Sequence[float],
        direction: Direction,
        tolerance: float,
        floor: Sequence[float],
    ) -> None:
        self.floor = floor
        # The other direction most often decides at small ε only, if at all.
        self.parts = 8 if any(floor) else 2
        self.is_apart = ends_stay_apart(schedule)
        self.schedule, self.direction, self.tolerance = schedule, direction, tolerance
        self.questions = [DeltaAtEpsilon(epsilon) for epsilon in epsilons]
        self.found = [interval(0.0, math.inf, direction, question, tolerance) for question in self.questions]

    def solve(self) -> list[PrivacyBounds]:
        """Refine level by level, as far as this helps; the next level is no finer than the wide bounds need."""
        level, *_, last = levels(self.schedule, self.questions[0], self.tolerance)
        while True:
            before = [self._width(place) for place in range(len(self.found))]
            self._refine(self._wide(range(len(self.found))), level)
            wide = self._wide(range(len(self.found)))
            if (
                level >= last
                or ends_stay_apart(self.schedule)
                or not any(self._width(place) < 0.8 * before[place] for place in wide)
            ):
                return self.found
            worst = max(self._width(place) for place in wide)
            level = min(level + min(max(math.log(1.1 * worst, 4), 0.25), 1.0), last)

    def _refine(self, wide: Sequence[int], level: float) -> None:
        """Make a loss for the middle of what is wide, ask it all, and repeat for what is far from there."""
        if not wide:
            return
        middle = wide[len(wide) // self.parts]
        self.parts = 2
        self._ask(middle, wide, level)
        enough = min(_WORSE * self._width(middle), math.inf if self.is_apart else _WIDE / self.tolerance)
        far = [place for place in self._wide(wide) if self._width(place) > enough and place != middle]
        self._refine([place for place in far if place < middle], level)
        self._refine([place for place in far if place > middle], level)

    def _ask(self, middle: int, places: Sequence[int], level: float) -> None:
        question = self.questions[middle]
        if math.isfinite(self.found[middle].upper):
            question = question.sharpened(self.found[middle].upper, self.found[middle].lower)
        question = sized(self.schedule, question, self.direction)
        at = Level(self.schedule, question, self.direction, level)
        is_trivial = at.coarse.total_variation <= 0.0
        curves = {} if is_trivial or question.epsilon >= at.farthest else {side: at.curve(side) for side in _SIDES}
        for place in places:
            asked = self.questions[place]
            answer: dict[Side, float] = {"upper": 0.0 if is_trivial else at.beyond(asked.epsilon), "lower": 0.0}
            if curves:
                answer["lower"] = asked.read(curves["lower"], "lower", at.drift)
                answer["upper"] = min(answer["upper"], asked.read(curves["upper"], "upper", at.drift))
            if not is_trivial:
                answer["upper"] = max(answer["upper"], _LEAST)
            self.found[place] = intersection(self.found[place], answer, asked, self.tolerance)

    def _wide(self, places: Sequence[int]) -> list[int]:
        return [at for at in places if not self.found[at].is_narrow and self.found[at].upper > self.floor[at]]

    def _width(self, place: int) -> float:
        """Compute widths in units of the tolerance."""
        bounds = self.found[place]
        if not math.isfinite(bounds.upper):
            return math.inf
        return (bounds.upper - bounds.lower) / max(self.tolerance * bounds.upper, 1e-320)
