"""ε after many numbers of steps and δ at many ε, both adjacency directions: from the engine's parts to the answer."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dprmt._validation import ParameterError, check_real
from dprmt.accounting.basics import LARGEST_EPSILON, Array, Direction, PrivacyBounds
from dprmt.accounting.composition import DeltaAtEpsilon, EpsilonAtDelta, Question, interval
from dprmt.accounting.pairs import Schedule
from dprmt.accounting.questions._delta_curve_solver import DeltaCurveSolver
from dprmt.accounting.questions._privacy_curve import PrivacyCurve
from dprmt.accounting.questions._step_counts import Brackets, by_blocks, one_by_one

Ask = Callable[[Question, Direction, float], PrivacyBounds]
AskAfter = Callable[[int, Question, Direction, float], PrivacyBounds]

_BOTH: tuple[Direction, Direction] = ("remove", "add")


def epsilon_curve(
    schedule: Callable[[int], Schedule] | None,
    ask: AskAfter,
    steps: Any,
    delta: float,
    tolerance: float,
    at: Any = None,
) -> PrivacyCurve:
    """Return ε at ``delta`` after each number of steps.

    ``schedule``: what is composed for so many steps; None where only single questions can be answered.
    ``ask``: a single question after so many steps.
    ``at``: what the curve is over, if not ``steps``.
    """
    tolerance = check_real("tolerance", tolerance, low=1e-8, high=1.0)
    ordered, place = np.unique(steps, return_inverse=True)
    question = EpsilonAtDelta(delta)
    unit, counts = (None, ordered) if schedule is None else _common_unit(schedule, ordered)
    enough = np.zeros(ordered.size)
    sides: dict[Direction, tuple[Array, Array]] = {}
    for direction in _BOTH:
        brackets = Brackets(counts, tolerance, enough)
        if unit is not None:
            by_blocks(unit, brackets, delta, direction)
        one_by_one(brackets, _asking(ask, ordered, question, direction, tolerance))
        sides[direction] = brackets.lower, brackets.upper
        enough = np.where(brackets.width() <= 1.0, brackets.upper, brackets.lower)
    over = np.asarray(steps if at is None else at, dtype=np.float64)
    return _joined(sides, question, tolerance, over, place, delta)


def delta_curve(
    schedule: Schedule | None, ask: Ask, epsilon: Any, tolerance: float, *, improves: bool = True
) -> PrivacyCurve:
    """Return δ of one composition at each ε.

    ``schedule``: what is composed; None where only single questions can be answered.

    ``ask``: a single question.

    ``improves``: whether what stays wide is asked for alone, by all analyses: seconds for few probes.
    """
    tolerance = check_real("tolerance", tolerance, low=1e-8, high=1.0)
    given = np.asarray(epsilon)
    asked = given.astype(np.float64) if given.dtype.kind in "fiu" else np.full(1, np.nan)  # no words, no booleans
    if asked.ndim != 1 or not asked.size or not np.all((asked >= 0.0) & (asked <= LARGEST_EPSILON)):
        raise ParameterError("epsilon", epsilon, "a number in [0, 1e17], or a sequence of such numbers")
    ordered, place = np.unique(asked, return_inverse=True)
    sides: dict[Direction, tuple[Array, Array]] = {}
    enough = np.zeros(ordered.size)
    for direction in _BOTH:
        found = [interval(0.0, math.inf, direction, DeltaAtEpsilon(at), tolerance) for at in ordered.tolist()]
        if schedule is not None:
            found = DeltaCurveSolver(schedule, ordered.tolist(), direction, tolerance, enough.tolist()).solve()
        # What other analyses of the steps may improve is asked for by itself.
        found = [
            bounds
            if bounds.is_narrow or bounds.upper <= least or not (improves or schedule is None)
            else ask(DeltaAtEpsilon(at), direction, tolerance)
            for at, bounds, least in zip(ordered.tolist(), found, enough, strict=True)
        ]
        sides[direction] = np.array([x.lower for x in found]), np.array([x.upper for x in found])
        # The other direction is refined only until it cannot decide.
        enough = np.array([x.upper if x.is_narrow else x.lower for x in found])
    return _joined(sides, DeltaAtEpsilon(0.0), tolerance, asked, place, None)


def checked_counts(name: str, values: Any, multiple: int = 1, high: int = 10**9) -> NDArray[np.int64]:
    """Return numbers of steps, checked, in any order."""
    found = np.asarray(values)
    if found.ndim != 1 or not found.size or found.dtype.kind not in "iu" or found.min() < 1 or found.max() > high:
        raise ParameterError(name, values, f"an integer in [1, {high}], or a sequence of such integers")
    if np.any(found % multiple):
        first = int(found[np.argmax(found % multiple != 0)])
        allowed = f"whole epochs of random allocation, multiples of steps_per_epoch = {multiple}"
        raise ParameterError(name, first, allowed)
    return found.astype(np.int64)


def _common_unit(schedule: Callable[[int], Schedule], steps: NDArray[np.int64]) -> tuple[Any, NDArray[np.int64]]:
    """Return the only step or epoch, and its number of repetitions; None, and the steps, if there are several."""
    units = schedule(int(steps[0]))
    if len(units) > 1:
        return None, steps
    unit, count = units[0]
    return unit, steps * count // int(steps[0])


def _asking(
    ask: AskAfter,
    steps: NDArray[np.int64],
    question: EpsilonAtDelta,
    direction: Direction,
    tolerance: float,
) -> Callable[[int], PrivacyBounds]:
    return lambda place: ask(int(steps[place]), question, direction, tolerance)


def _joined(
    sides: dict[Direction, tuple[Array, Array]],
    question: Question,
    tolerance: float,
    over: Array,
    place: NDArray[np.int64],
    delta: float | None,
) -> PrivacyCurve:
    """Return the larger of both directions, named after the larger upper bound, in the order of ``over``."""
    lower = np.maximum(sides["remove"][0], sides["add"][0])[place]
    upper = np.maximum(sides["remove"][1], sides["add"][1])[place]
    answers = [interval(a, b, "remove", question, tolerance) for a, b in zip(lower, upper, strict=True)]
    return PrivacyCurve(
        over,
        lower,
        np.array([answer.estimate for answer in answers]),
        upper,
        np.where(sides["remove"][1] >= sides["add"][1], "remove", "add")[place],
        np.array([answer.is_narrow for answer in answers]),
        delta,
    )
