"""Bounds at many points together: δ at each of many ε, and the curves of both directions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dprmt._validation import ParameterError
from dprmt.accounting.basics import LARGEST_EPSILON, Array, Direction
from dprmt.accounting.composition import Question, interval
from dprmt.accounting.pairs import Schedule
from dprmt.accounting.questions._delta_curve_solver import DeltaCurveSolver
from dprmt.accounting.questions._privacy_curve import PrivacyCurve

Ends = Mapping[Direction, tuple[Array, Array]]
"""Lower and upper ends at all points, for each adjacency direction."""


def delta_ends(schedule: Schedule, epsilons: Array, directions: Sequence[Direction], tolerance: float) -> Ends:
    """Return bounds on δ at increasing ε; a later direction is refined only until it cannot decide."""
    enough, ends = np.zeros(epsilons.size), {}
    for direction in directions:
        found = DeltaCurveSolver(schedule, epsilons.tolist(), direction, tolerance, enough.tolist()).solve()
        ends[direction] = np.array([x.lower for x in found]), np.array([x.upper for x in found])
        enough = np.array([x.upper if x.is_narrow else x.lower for x in found])
    return ends


def joined(ends: Ends, question: Question, tolerance: float, at: Array, place: NDArray[np.intp]) -> PrivacyCurve:
    """Return the larger of both directions, named after the larger upper bound; "" if both are equal.

    ``at``: the arguments, in the caller's order; ``place``: the index of each among the ends' points.
    """
    lowers, uppers = (np.stack([part[end] for part in ends.values()])[:, place] for end in (0, 1))
    lower, upper = lowers.max(axis=0), uppers.max(axis=0)
    answers = [
        interval(a, b, "remove", question, tolerance) for a, b in zip(lower.tolist(), upper.tolist(), strict=True)
    ]
    names = np.array(list(ends))[uppers.argmax(axis=0)] if len(ends) > 1 else np.full(at.size, "")
    return PrivacyCurve(
        at,
        lower,
        np.array([answer.estimate for answer in answers]),
        upper,
        names,
        np.array([answer.is_narrow for answer in answers]),
        None if question.epsilon is not None else question.delta,
    )


def checked_epsilons(epsilon: Any) -> Array:
    """Check the values of ε, in any order."""
    given = np.asarray(epsilon)
    asked = given.astype(np.float64) if given.dtype.kind in "fiu" else np.full(1, np.nan)  # no words, no booleans
    if asked.ndim != 1 or not asked.size or not np.all((asked >= 0.0) & (asked <= LARGEST_EPSILON)):
        raise ParameterError("epsilon", epsilon, "a number in [0, 1e17], or a sequence of such numbers")
    return asked


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
