"""Sequences of mechanisms: a noise schedule, a warm-up, a change of clipping."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Protocol, cast, overload

import numpy as np
from numpy.typing import ArrayLike

from dprmt._validation import ParameterError, check_count, check_real
from dprmt.accounting._bounds import Direction, PrivacyBounds, worst_of
from dprmt.accounting._clipping_step import ClippingStep
from dprmt.accounting._curves import delta_curve
from dprmt.accounting._engine import Progress, Schedule, improve, solve
from dprmt.accounting._loss_grid import LARGEST_EPSILON
from dprmt.accounting._privacy_curve import Numbers, PrivacyCurve
from dprmt.accounting._questions import DeltaAtEpsilon, EpsilonAtDelta, Question

if TYPE_CHECKING:
    from dprmt.accounting._trade_off import TradeOff

_BOTH: tuple[Direction, Direction] = ("remove", "add")


class Mechanism(Protocol):
    """What can be composed."""

    def step(self) -> ClippingStep:
        """One step."""
        ...

    def fallback_steps(self) -> tuple[ClippingStep, ...]:
        """One step under each of two other valid analyses, or none."""
        ...

    def schedule(self, step: ClippingStep, steps: int) -> Schedule:
        """So many steps of it, each like ``step``."""
        ...

    def check_steps(self, steps: int) -> int:
        """Refuse a number of steps that it cannot be run for."""
        ...


class Composition:
    """Adaptive composition of mechanisms; made by :func:`compose`.

    Parameters
    ----------
    phases : sequence of (mechanism, steps)
        In any order: it does not matter for the result. Steps of random allocation come in whole epochs.

    Raises
    ------
    ParameterError
        If there is no phase, a phase is not a pair, or a number of steps is not a positive integer.

    Examples
    --------
    >>> from dprmt.accounting import DPSGD
    >>> Composition([(DPSGD(4.0, 0.01), 100), (DPSGD(2.0, 0.01), 100)]).epsilon(delta=1e-5).upper < 0.5
    True
    """

    def __init__(self, phases: Sequence[tuple[Mechanism, int]]) -> None:
        merged: dict[Mechanism, int] = {}
        for phase in phases:
            mechanism, steps = _checked_phase(phase)
            merged[mechanism] = merged.get(mechanism, 0) + steps
        if not merged:
            raise ParameterError("phases", list(phases), "a non-empty list of (mechanism, steps)")
        self.phases = tuple(merged.items())

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
            Wanted relative width of the interval.

        Returns
        -------
        PrivacyBounds or PrivacyCurve
            With the deciding direction's name; the latter, in the order of what was asked, for a sequence.
        """
        if np.ndim(epsilon):
            return delta_curve(self.schedule(), self._solve, epsilon, tolerance)
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
        from dprmt.accounting._trade_off import trade_off

        return trade_off(self.schedule(), alpha)

    def schedule(self) -> Schedule:
        """The steps that are composed, for the engine.

        Returns
        -------
        list of (step, count)
            One entry per phase.
        """
        phases = sorted(self.phases, key=lambda phase: repr(phase[0]))  # rounding depends on the order
        return [unit for mechanism, steps in phases for unit in mechanism.schedule(mechanism.step(), steps)]

    def _ask(self, question: Question, tolerance: float) -> dict[Direction, PrivacyBounds]:
        tolerance = check_real("tolerance", tolerance, low=1e-8, high=1.0)
        return {direction: self._solve(question, direction, tolerance, settle=True) for direction in _BOTH}

    def _worst(self, question: Question, tolerance: float) -> PrivacyBounds:
        """Bounds of the larger of both directions; the other one is refined only until it cannot decide."""
        tolerance = check_real("tolerance", tolerance, low=1e-8, high=1.0)
        removed = self._solve(question, "remove", tolerance, settle=True)
        enough = removed.upper if removed.is_narrow else removed.lower
        return worst_of({"remove": removed, "add": self._solve(question, "add", tolerance, enough, settle=True)})

    def _solve(
        self, question: Question, direction: Direction, tolerance: float, enough: float = 0.0, settle: bool = False
    ) -> PrivacyBounds:
        """Bounds by the first analysis; where they stay wide, the upper one may come from another valid one.

        ``settle``: whether the law of a sketch may be chosen for this question; many are answered by the same one.
        """
        schedules = _laws(self.schedule(), question) if settle else [self.schedule()]
        each = [Progress(enough) for _ in schedules]
        found = [solve(one, question, direction, tolerance, got) for one, got in zip(schedules, each, strict=True)]
        bounds, progress = min(zip(found, each, strict=True), key=lambda pair: pair[0].upper)
        for choice in range(max(len(mechanism.fallback_steps()) for mechanism, _ in self.phases)):
            if bounds.is_narrow or bounds.upper <= enough:
                break
            schedule = [
                unit
                for mechanism, steps in self.phases
                for unit in mechanism.schedule(_fallback(mechanism, choice), steps)
            ]
            bounds = improve(bounds, schedule, question, tolerance, progress)
        return bounds


def solved(run: Composition, question: Question, direction: Direction, tolerance: float) -> PrivacyBounds:
    """Bounds for one adjacency direction."""
    return run._solve(question, direction, tolerance)


def compose(phases: Sequence[tuple[Mechanism, int]]) -> Composition:
    """Compose mechanisms, each run for a number of steps.

    Parameters
    ----------
    phases : sequence of (mechanism, steps)
        For instance a noise schedule, or a warm-up without sampling followed by randomized clipping.

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
    >>> from dprmt.accounting import DPSGD, RandomizedClipping, compose
    >>> run = compose([(DPSGD(4.0, 0.01), 100), (RandomizedClipping(1.0, 0.01, probes=32), 900)])
    >>> run.epsilon(delta=1e-5).upper < 2.4
    True
    >>> shuffled = DPSGD(1.0, sampling="allocation", steps_per_epoch=100)
    >>> compose([(DPSGD(4.0, 0.01), 100), (shuffled, 900)]).epsilon(delta=1e-5).upper < 1.9
    True
    """
    return Composition(phases)


def _laws(schedule: Schedule, question: Question) -> list[Schedule]:
    """The steps under the law of a sketch that suits the question; where that is not known beforehand, under both."""
    total = sum(count for _, count in schedule)
    settled: Schedule = [
        (step.settled(question, total) if isinstance(step, ClippingStep) else step, count) for step, count in schedule
    ]
    if settled == schedule or isinstance(question, EpsilonAtDelta):
        return [settled]
    return [schedule, settled]


def _fallback(mechanism: Mechanism, choice: int) -> ClippingStep:
    steps = mechanism.fallback_steps()
    return steps[min(choice, len(steps) - 1)] if steps else mechanism.step()


def _checked_phase(phase: tuple[Mechanism, int]) -> tuple[Mechanism, int]:
    try:
        mechanism, steps = phase
    except (TypeError, ValueError):
        raise ParameterError("phases", phase, "a list of (mechanism, steps)") from None
    if not hasattr(mechanism, "fallback_steps"):
        raise ParameterError("phases", mechanism, "a list of (mechanism, steps), with a DPSGD or RandomizedClipping")
    return mechanism, mechanism.check_steps(check_count("steps", steps, high=10**9))
