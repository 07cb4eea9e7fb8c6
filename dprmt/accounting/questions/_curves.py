"""Bounds at many points together: ε after many numbers of steps, δ at each of many ε, and what follows from these."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import log_ndtr, ndtr

from dprmt._validation import ParameterError
from dprmt.accounting.basics._bounds import Direction, PrivacyBounds, Side, curve_html, curve_text
from dprmt.accounting.basics._numbers import LARGEST_EPSILON, LEAST_DELTA, Array
from dprmt.accounting.composition._compose import Question
from dprmt.accounting.composition._solve import Level, intersection, interval, levels, sized
from dprmt.accounting.pairs._pairs import Schedule
from dprmt.accounting.pairs._renyi import ends_stay_apart

_SIDES: tuple[Side, Side] = ("upper", "lower")

Counts = Sequence[int] | NDArray[np.integer[Any]]
Numbers = Sequence[float] | NDArray[np.floating[Any]]


@dataclass(frozen=True)
class PrivacyCurve:
    """Certified intervals around a privacy quantity at many points, each as in :class:`PrivacyBounds`.

    Attributes
    ----------
    at : ndarray, shape (n,)
        The numbers of steps at which ε was asked for, or the ε at which δ was.
    lower, estimate, upper : ndarray, shape (n,)
        The quantity at each point is between ``lower`` and ``upper``. Report ``upper``.
    direction : ndarray of str, shape (n,)
        The adjacency direction whose upper bound is the larger; "" where both are the same (replacement).
    is_narrow : ndarray of bool, shape (n,)
        Where the interval is as narrow as was asked.

    Examples
    --------
    >>> from dprmt.accounting import DPSGD
    >>> curve = DPSGD(1.0, 0.01).epsilon(steps=[10, 100, 1000], delta=1e-5)
    >>> bool((curve.lower <= curve.upper).all()), curve[2].upper < 1.83
    (True, True)
    >>> print(curve)
    3 certified bounds on epsilon at delta = 1e-05: at most 0.379... at steps = 10, at most 1.82... at steps = 1000
    """

    at: Array
    lower: Array
    estimate: Array
    upper: Array
    direction: NDArray[np.str_]
    is_narrow: NDArray[np.bool_]
    at_delta: float | None = None
    """The δ at which ε was asked for."""

    def __str__(self) -> str:
        return curve_text(self)

    def _repr_html_(self) -> str:
        return curve_html(self)

    def __len__(self) -> int:
        return int(self.at.size)

    def __getitem__(self, index: int) -> PrivacyBounds:
        names: dict[str, Direction] = {"remove": "remove", "add": "add"}
        return PrivacyBounds(
            float(self.lower[index]),
            float(self.estimate[index]),
            float(self.upper[index]),
            names.get(str(self.direction[index])),
            bool(self.is_narrow[index]),
            at_delta=self.at_delta,
            at_epsilon=float(self.at[index]) if self.at_delta is None else None,
        )

    def __iter__(self) -> Iterator[PrivacyBounds]:
        return (self[index] for index in range(len(self)))


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
        self.epsilons = epsilons
        self.questions = [Question(epsilon=epsilon) for epsilon in epsilons]
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
        # Three times as wide as there, or as 30 % of an upper end: the loss was made for something else.
        enough = min(3.0 * self._width(middle), math.inf if self.is_apart else 0.3 / self.tolerance)
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
        curves = {} if is_trivial or self.epsilons[middle] >= at.farthest else {side: at.curve(side) for side in _SIDES}
        for place in places:
            asked = self.questions[place]
            upper, lower = 0.0 if is_trivial else at.beyond(self.epsilons[place]), 0.0
            if curves:
                lower = asked.read(curves["lower"], "lower", at.drift)
                upper = min(upper, asked.read(curves["upper"], "upper", at.drift))
            ends = (upper if is_trivial else max(upper, LEAST_DELTA), lower)
            self.found[place] = intersection(self.found[place], ends, asked, self.tolerance)

    def _wide(self, places: Sequence[int]) -> list[int]:
        return [at for at in places if not self.found[at].is_narrow and self.found[at].upper > self.floor[at]]

    def _width(self, place: int) -> float:
        """Compute widths in units of the tolerance."""
        bounds = self.found[place]
        if not math.isfinite(bounds.upper):
            return math.inf
        return (bounds.upper - bounds.lower) / max(self.tolerance * bounds.upper, 1e-320)


def mu_grid(last: float) -> Array:
    """List the ε at which δ is computed to determine μ, up to an ε."""
    return np.linspace(0.0, max(last, 1e-6), 201)


def gdp_mu(curve: PrivacyCurve, least_delta: float) -> tuple[float, float]:
    """Return bounds on the smallest μ with δ(ε) ≤ δ_μ(ε) wherever δ(ε) > ``least_delta``."""
    epsilon, seen = curve.at, curve.lower > least_delta
    lower, _ = _turn(lambda mu: bool(np.all(_delta_of(mu, epsilon[seen]) > curve.lower[seen])))
    _, upper = _turn(lambda mu: is_above_chords(mu, epsilon, np.maximum(curve.upper, least_delta)))
    return lower, max(upper, lower)


def _turn(is_enough: Callable[[float], bool]) -> tuple[float, float]:
    """Return a μ that is not enough, and one next to it that is; ∞ beyond 1e6."""
    low, high = 0.0, 1e-6
    while not is_enough(high):
        low, high = high, 4.0 * high
        if high > 1e6:
            return low, math.inf
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (low, middle) if is_enough(middle) else (middle, high)
    return low, high


def _delta_of(mu: float, epsilon: Array) -> Array:
    with np.errstate(over="ignore"):
        across = epsilon / mu
        value: Array = ndtr(mu / 2 - across) - np.exp(epsilon + log_ndtr(-mu / 2 - across))
    return value


def is_above_chords(mu: float, epsilon: Array, delta: Array) -> bool:
    """Return whether the curve of μ lies above all chords of δ in e^ε, cell by cell.

    A convex curve falls short of its chord by at most (Δγ)²/8 times its largest second derivative there, which is
    φ(μ/2 + ε/μ)/(μγ); so much is asked for at both ends.
    """
    apart, own = np.diff(epsilon), _delta_of(mu, epsilon)
    log_width = apart + np.log(-np.expm1(-apart))
    log_density = -((mu / 2 + epsilon / mu) ** 2) / 2 - math.log(2 * math.pi) / 2
    with np.errstate(over="ignore"):
        # (Δγ)² φ/(8μγ), of a width in units of the left end; in logarithms, as the width may be beyond all floats.
        bend = np.exp(2.0 * log_width + log_density[:-1] + epsilon[:-1]) / (8.0 * mu)
    return bool(np.all(np.minimum(own[:-1] - delta[:-1], own[1:] - delta[1:]) >= bend * (1.0 + 1e-9)))
