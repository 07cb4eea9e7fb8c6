"""Sequences of mechanisms: a noise schedule, a warm-up, a change of clipping."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Protocol, cast, overload

import numpy as np
from numpy.typing import ArrayLike

from dprmt._validation import ParameterError, check_real
from dprmt.accounting.basics import LARGEST_EPSILON, Direction, PrivacyBounds, phases_html, worst_of
from dprmt.accounting.composition import DeltaAtEpsilon, EpsilonAtDelta, Progress, Question, improve, interval, solve
from dprmt.accounting.mechanisms._releases import Release
from dprmt.accounting.mechanisms._sampling import Sampling
from dprmt.accounting.mechanisms._sketch_choice import settled
from dprmt.accounting.pairs import Neighbours, Schedule, Step, ZeroOut
from dprmt.accounting.questions import (
    Numbers,
    PrivacyCurve,
    advantage,
    bayes_risk,
    bounds_by_curves,
    delta_curve,
    gdp_mu,
    true_positive_rate,
)

if TYPE_CHECKING:
    from dprmt.accounting.questions import TradeOff

_BOTH: tuple[Direction, Direction] = ("remove", "add")


class Composable(Protocol):
    """What can be composed: what a :class:`Composition` asks of a phase."""

    @property
    def sampling(self) -> Sampling:
        """How samples come into batches: it counts steps, and says what is composed of them."""
        ...

    @property
    def neighbours(self) -> Neighbours | None:
        """Whose privacy; None where that is the others' affair."""
        ...

    @property
    def has_pairs(self) -> bool:
        """Whether a step is one for these neighbours; else for a sample that is present or without a gradient."""
        ...

    def step(self) -> Step:
        """One step."""
        ...

    def fallback_steps(self) -> tuple[Step, ...]:
        """One step under each of two other valid analyses, or none."""
        ...

    def of_one_sample(self) -> Composable:
        """The same for one sample that is present, or without a gradient."""
        ...


class Composition:
    """Adaptive composition of mechanisms; made by :func:`compose`.

    Parameters
    ----------
    phases : sequence of (mechanism, steps) and releases
        In any order: it does not matter for the result. Steps of random allocation come in whole epochs.

    Raises
    ------
    ParameterError
        If there is no phase, a phase is not a pair, or a number of steps is not a positive integer.

    Examples
    --------
    >>> from dprmt.accounting import DPSGD
    >>> run = Composition([(DPSGD(4.0, 0.01), 100), (DPSGD(2.0, 0.01), 100)])
    >>> run.epsilon(delta=1e-5).upper < 0.5
    True
    >>> run
    Composition([(DPSGD(4.0, Poisson(0.01)), 100), (DPSGD(2.0, Poisson(0.01)), 100)])
    """

    def __init__(self, phases: Sequence[tuple[Composable, int] | Release]) -> None:
        merged: dict[Composable, int] = {}
        for phase in phases:
            mechanism, steps = _checked_phase(phase)
            merged[mechanism] = merged.get(mechanism, 0) + steps
        if not merged:
            raise ParameterError("phases", list(phases), "a non-empty list of (mechanism, steps)")
        self.phases = tuple(merged.items())
        relations = {mechanism.neighbours for mechanism, _ in self.phases if mechanism.neighbours is not None}
        if len(relations) > 1:
            raise ParameterError("phases", sorted(map(repr, relations)), "mechanisms with the same neighbours")
        self.neighbours: Neighbours = relations.pop() if relations else ZeroOut()
        """Whose privacy, the same in all phases."""

    def __eq__(self, other: object) -> bool:
        return dict(self.phases) == dict(other.phases) if isinstance(other, Composition) else NotImplemented

    def __hash__(self) -> int:
        return hash(frozenset(self.phases))

    def __repr__(self) -> str:
        return f"Composition({list(self.phases)!r})"

    def _repr_html_(self) -> str:
        return phases_html(self.phases)

    def epsilon(self, delta: float, *, tolerance: float = 1e-3) -> PrivacyBounds:
        """ε at ``delta``, the larger of both adjacency directions.

        Parameters
        ----------
        delta : float
            In [1e-290, 1).
        tolerance : float
            Wanted width of the interval, absolute for ε ≤ 1 and relative beyond.

        Returns
        -------
        PrivacyBounds
            With the deciding direction's name.
        """
        delta = check_real("delta", delta, low=1e-290, high=1.0, high_open=True)
        return replace(self._worst(EpsilonAtDelta(delta), tolerance), at_delta=delta)

    def epsilon_by_direction(self, delta: float, *, tolerance: float = 1e-3) -> dict[Direction, PrivacyBounds]:
        """ε for removing and for adding one sample.

        Returns
        -------
        dict
            Keys ``"remove"`` and ``"add"``.
        """
        delta = check_real("delta", delta, low=1e-290, high=1.0, high_open=True)
        found = self._ask(EpsilonAtDelta(delta), tolerance)
        return {direction: replace(bounds, at_delta=delta) for direction, bounds in found.items()}

    @overload
    def delta(self, epsilon: float, *, tolerance: float = ...) -> PrivacyBounds: ...

    @overload
    def delta(self, epsilon: Numbers, *, tolerance: float = ...) -> PrivacyCurve: ...

    def delta(self, epsilon: float | Numbers, *, tolerance: float = 1e-2) -> PrivacyBounds | PrivacyCurve:
        """δ at ``epsilon``, the larger of both adjacency directions.

        Parameters
        ----------
        epsilon : float or sequence of float
            In [0, 1e17].
        tolerance : float
            Wanted relative width of the interval; δ below 1e-290 is told from 0 no further.

        Returns
        -------
        PrivacyBounds or PrivacyCurve
            With the deciding direction's name; the latter, in the order of what was asked, for a sequence.
        """
        if np.ndim(epsilon):
            return delta_curve(self.schedule() if self.has_pairs else None, self._solve, epsilon, tolerance)
        epsilon = check_real("epsilon", cast("float", epsilon), low=0.0, high=LARGEST_EPSILON)
        return replace(self._worst(DeltaAtEpsilon(epsilon), tolerance), at_epsilon=epsilon)

    def delta_by_direction(self, epsilon: float, *, tolerance: float = 1e-2) -> dict[Direction, PrivacyBounds]:
        """δ for removing and for adding one sample.

        Returns
        -------
        dict
            Keys ``"remove"`` and ``"add"``.
        """
        epsilon = check_real("epsilon", epsilon, low=0.0, high=LARGEST_EPSILON)
        found = self._ask(DeltaAtEpsilon(epsilon), tolerance)
        return {direction: replace(bounds, at_epsilon=epsilon) for direction, bounds in found.items()}

    def trade_off(self, alpha: ArrayLike) -> TradeOff:
        """The trade-off function α ↦ β: the smaller of both adjacency directions.

        Returns
        -------
        TradeOff
            Bounds on the smallest false negative rate; the safe side is the lower one.
        """
        from dprmt.accounting.questions import trade_off, trade_off_by_curves

        if not self.has_pairs:
            return trade_off_by_curves(self._one_sample(), alpha, self.neighbours)
        return trade_off(self.schedule(), alpha)

    def delta_at(self, epsilon: Numbers) -> PrivacyCurve:
        """δ at several ε, the larger of both adjacency directions.

        Returns
        -------
        PrivacyCurve
            In the order of what was asked.
        """
        return self.delta(epsilon)

    def advantage(self) -> PrivacyBounds:
        """The most by which an attacker's true positive rate can exceed the false positive rate.

        Returns
        -------
        PrivacyBounds
            δ at ε = 0, in [0, 1].

        Examples
        --------
        >>> from dprmt.accounting import DPSGD
        >>> run = Composition([(DPSGD(1.0, 2000 / 67349), 400)])
        >>> 0.2889 < run.advantage().lower < run.advantage().upper < 0.2891
        True
        """
        return advantage(self)

    def true_positive_rate(self, false_positive_rate: float) -> PrivacyBounds:
        """The largest true positive rate of an attacker with this false positive rate, in [0, 1].

        Returns
        -------
        PrivacyBounds
            From the whole trade-off function.

        Raises
        ------
        ParameterError
            If the rate lies outside [0, 1].

        Examples
        --------
        >>> from dprmt.accounting import DPSGD
        >>> f"{Composition([(DPSGD(1.0, 2000 / 67349), 400)]).true_positive_rate(0.01):.3f}"
        '0.064'
        """
        return true_positive_rate(self, false_positive_rate)

    def bayes_risk(self, prior: float = 0.5) -> PrivacyBounds:
        """The least probability of error of an attacker who believes in one neighbour with probability ``prior``.

        Returns
        -------
        PrivacyBounds
            In [0, min(prior, 1 - prior)], the error of guessing without looking; the safe side is the lower one.

        Raises
        ------
        ParameterError
            If ``prior`` lies outside [0, 1].

        Examples
        --------
        >>> from dprmt.accounting import DPSGD
        >>> 0.355 < Composition([(DPSGD(1.0, 2000 / 67349), 400)]).bayes_risk().lower < 0.356
        True
        """
        return bayes_risk(self, prior)

    def gdp_mu(self, *, least_delta: float = 1e-10) -> PrivacyBounds:
        """The smallest μ of a Gaussian mechanism that is nowhere more private, as far as δ > ``least_delta``.

        Returns
        -------
        PrivacyBounds
            Where δ is smaller still, sampled mechanisms approach the far larger μ of runs without sampling.

        Raises
        ------
        ParameterError
            If ``least_delta`` lies outside (0, 1).

        Examples
        --------
        >>> from dprmt.accounting import GaussianRelease
        >>> mu = Composition([GaussianRelease(0.5)]).gdp_mu(least_delta=1e-6)
        >>> 1.99 < mu.lower <= 2.0 <= mu.upper < 2.01
        True
        """
        return gdp_mu(self, least_delta)

    def schedule(self) -> Schedule:
        """The steps that are composed, for the engine.

        Returns
        -------
        list of (step, count)
            One entry per phase.
        """
        phases = self.phases
        if len(phases) > 1:  # rounding depends on the order
            phases = tuple(sorted(phases, key=lambda phase: repr(phase[0])))
        return [unit for mechanism, steps in phases for unit in mechanism.sampling.schedule(mechanism.step(), steps)]

    @property
    def has_pairs(self) -> bool:
        """True if every phase has a pair for one of its steps; else certified curves of one change are composed."""
        return all(mechanism.has_pairs for mechanism, _ in self.phases)

    def _ask(self, question: Question, tolerance: float) -> dict[Direction, PrivacyBounds]:
        tolerance = check_real("tolerance", tolerance, low=1e-8, high=1.0)
        return {direction: self._solve(question, direction, tolerance, settle=True) for direction in _BOTH}

    def _one_sample(self) -> Schedule:
        """The steps as one sample that is present, or without a gradient, sees them."""
        alone = [(mechanism.of_one_sample(), steps) for mechanism, steps in self.phases]
        return Composition(alone).schedule()

    def _worst(self, question: Question, tolerance: float) -> PrivacyBounds:
        """Bounds of the larger of both directions; the other one is refined only until it cannot decide."""
        tolerance = check_real("tolerance", tolerance, low=1e-8, high=1.0)
        removed = self._solve(question, "remove", tolerance, settle=True)
        if self.neighbours.is_replacement:  # exchanging the samples exchanges the pair
            return removed
        enough = removed.upper if removed.is_narrow else removed.lower
        return worst_of({"remove": removed, "add": self._solve(question, "add", tolerance, enough, settle=True)})

    def _solve(
        self, question: Question, direction: Direction, tolerance: float, enough: float = 0.0, settle: bool = False
    ) -> PrivacyBounds:
        """Bounds by the first analysis; where they stay wide, the upper one may come from another valid one.

        ``settle``: whether the law of a sketch may be chosen for this question; many are answered by the same one.
        """
        if not self.has_pairs:
            return bounds_by_curves(self._one_sample(), question, direction, self.neighbours, tolerance)
        schedules = _laws(self.schedule(), question) if settle else [self.schedule()]
        each = [Progress(enough) for _ in schedules]
        found = [solve(one, question, direction, tolerance, got) for one, got in zip(schedules, each, strict=True)]
        bounds, progress = min(zip(found, each, strict=True), key=lambda pair: pair[0].upper)
        if bounds.is_narrow or bounds.upper <= enough:
            return bounds
        for choice in range(max(len(mechanism.fallback_steps()) for mechanism, _ in self.phases)):
            if bounds.is_narrow or bounds.upper <= enough:
                break
            schedule = [
                unit
                for mechanism, steps in self.phases
                for unit in mechanism.sampling.schedule(_fallback(mechanism, choice), steps)
            ]
            bounds = improve(bounds, schedule, question, tolerance, progress)
        if self.neighbours.is_replacement and not bounds.is_narrow and bounds.upper > enough:
            return self._smaller_by_curves(bounds, question, direction, tolerance)
        return bounds

    def _smaller_by_curves(
        self, bounds: PrivacyBounds, question: Question, direction: Direction, tolerance: float
    ) -> PrivacyBounds:
        """Both are valid: what (N11) charges is much for few probes, where curves lose less (N6)."""
        curves = bounds_by_curves(self._one_sample(), question, direction, self.neighbours, tolerance)
        if curves.upper >= bounds.upper:
            return bounds
        return interval(bounds.lower, max(curves.upper, bounds.lower), direction, question, tolerance)


def solved(run: Composition, question: Question, direction: Direction, tolerance: float) -> PrivacyBounds:
    """Bounds for one adjacency direction."""
    return run._solve(question, direction, tolerance)


def compose(phases: Sequence[tuple[Composable, int] | Release]) -> Composition:
    """Compose mechanisms, each run for a number of steps.

    Parameters
    ----------
    phases : sequence of (mechanism, steps) and releases
        A release is one of what is given out beside training: a noisy score, say. For instance a noise schedule,
        or a warm-up without sampling followed by randomized clipping.

    Returns
    -------
    Composition
        With ``epsilon(delta)``, ``delta(epsilon)`` and ``trade_off(alpha)``.

    Formal guarantees
    -----------------
    The bounds hold for adaptive composition: each mechanism, and each step's function of the data, may depend
    on everything released before. Dominating pairs compose (Zhu, Dong & Wang 2022, arXiv:2106.08567v4, Theorem 10).

    Examples
    --------
    >>> from dprmt.accounting import DPSGD, Hutchinson, RandomAllocation, compose
    >>> run = compose([(DPSGD(4.0, 0.01), 100), (DPSGD(1.0, 0.01, norms=Hutchinson(32, secret=False)), 900)])
    >>> run.epsilon(delta=1e-5).upper < 2.4
    True
    >>> shuffled = DPSGD(1.0, RandomAllocation(100))
    >>> compose([(DPSGD(4.0, 0.01), 100), (shuffled, 900)]).epsilon(delta=1e-5).upper < 1.9
    True
    """
    return Composition(phases)


def _laws(schedule: Schedule, question: Question) -> list[Schedule]:
    """The steps under the law of a sketch that suits the question; where that is not known beforehand, under both."""
    if all(step.is_exact for step, _ in schedule):
        return [schedule]
    total = sum(count for _, count in schedule)
    chosen: Schedule = [(settled(step, question, total), count) for step, count in schedule]
    if chosen == schedule or isinstance(question, EpsilonAtDelta):
        return [chosen]
    return [schedule, chosen]


def _fallback(mechanism: Composable, choice: int) -> Step:
    steps = mechanism.fallback_steps()
    return steps[min(choice, len(steps) - 1)] if steps else mechanism.step()


def _checked_phase(phase: tuple[Composable, int] | Release) -> tuple[Composable, int]:
    if isinstance(phase, Release):
        return phase, 1
    try:
        mechanism, steps = phase
    except (TypeError, ValueError):
        raise ParameterError("phases", phase, "a list of (mechanism, steps) and of releases") from None
    if not hasattr(mechanism, "fallback_steps"):
        raise ParameterError("phases", mechanism, "a list of (mechanism, steps), as in (DPSGD(1.0, 0.01), 100)")
    return mechanism, mechanism.sampling.run_length(steps, None)
