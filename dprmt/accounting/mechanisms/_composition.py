"""Sequences of mechanisms and of releases, and the questions that a run answers."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeAlias, cast, overload

import numpy as np
from numpy.typing import ArrayLike

from dprmt._validation import ParameterError, check_real
from dprmt.accounting.basics._bounds import Direction, PrivacyBounds, phases_html
from dprmt.accounting.basics._numbers import LARGEST_EPSILON, LEAST_DELTA, Array
from dprmt.accounting.composition._compose import Question
from dprmt.accounting.composition._solve import interval, solve, worst_of
from dprmt.accounting.mechanisms._releases import Disclosure, Release, round_down_exact, round_up_exact
from dprmt.accounting.pairs._pairs import Schedule, Step
from dprmt.accounting.pairs._renyi import RenyiStep, renyi_as_one
from dprmt.accounting.pairs._steps import Neighbours, ZeroOut, gaussians_as_one
from dprmt.accounting.questions._by_curves import bounds_by_curves, deltas_by_curves
from dprmt.accounting.questions._curves import (
    Counts,
    Ends,
    Numbers,
    PrivacyCurve,
    checked_epsilons,
    delta_ends,
    gdp_mu,
    joined,
    mu_grid,
)
from dprmt.accounting.questions._trade_off import TradeOff, checked_rates, trade_off, trade_off_by_curves

if TYPE_CHECKING:
    from dprmt.accounting.mechanisms._dpsgd import DPSGD

BOTH: tuple[Direction, Direction] = ("remove", "add")
"""Adjacency directions."""
_NARROW = 1e-2  # relative width of an attacker's success that is called narrow

Composable: TypeAlias = "DPSGD | Release"
Phases: TypeAlias = tuple[tuple[Composable, int], ...]


class Questions:
    """The questions that a mechanism answers for a number of steps, and a composition for its own."""

    def run(self, *, steps: int | None = None, epochs: int | None = None) -> Composition | Parallel:
        """Return what is asked: for a mechanism its run of this length, else this object, which has its length.

        Raises
        ------
        ParameterError
            If a length is given to a composition.
        """
        if steps is not None or epochs is not None:
            given = steps if epochs is None else epochs
            raise ParameterError("steps", given, "left out for a composition", "remove steps and epochs")
        return cast("Composition", self)

    @overload
    def epsilon(
        self, delta: float | None = ..., *, steps: int | None = ..., epochs: int | None = ..., tolerance: float = ...
    ) -> PrivacyBounds: ...

    @overload
    def epsilon(
        self,
        delta: float | None = ...,
        *,
        steps: Counts | None = ...,
        epochs: Counts | None = ...,
        tolerance: float = ...,
    ) -> PrivacyCurve: ...

    def epsilon(
        self,
        delta: float | None = None,
        *,
        steps: int | Counts | None = None,
        epochs: int | Counts | None = None,
        tolerance: float = 1e-3,
    ) -> PrivacyBounds | PrivacyCurve:
        """Bound ε at ``delta``, the larger of both adjacency directions.

        Parameters
        ----------
        delta : float
            The δ of the guarantee, in [1e-290, 1); 0 is allowed where all phases are Laplace and approximate releases.
        steps : int, sequence of int or None
            Number of steps of a mechanism, in [0, 1e9]; for random allocation a multiple of ``steps_per_epoch``. A
            sequence of numbers costs up to 25 ms for each. Left out for a composition, here and below.
        epochs : int, sequence of int or None
            Number of epochs instead of ``steps``, if the sampling has epochs.
        tolerance : float
            Wanted width of the interval, absolute for ε ≤ 1 and relative beyond.

        Returns
        -------
        PrivacyBounds or PrivacyCurve
            Bounds that name the deciding direction; ``upper`` is ∞ if no finite ε could be certified. A sequence gives
            a curve, in the order of the arguments.

        Raises
        ------
        ParameterError
            If an argument lies outside its range.
        """
        if np.ndim(cast("Any", steps if epochs is None else epochs)):
            return self._epsilon_curve(steps, epochs, delta, tolerance)
        run = self.run(steps=cast("int | None", steps), epochs=cast("int | None", epochs))
        delta = check_real("delta", delta, low=run._least_delta, high=1.0, high_open=True)
        return worst_of(run._ends(Question(delta), tolerance, True))

    def epsilon_by_direction(
        self, delta: float, *, steps: int | None = None, epochs: int | None = None, tolerance: float = 1e-3
    ) -> dict[Direction, PrivacyBounds]:
        """Bound ε for removing and for adding one sample; both the same where samples are replaced.

        Returns
        -------
        dict
            Keys ``"remove"`` and ``"add"``.
        """
        run = self.run(steps=steps, epochs=epochs)
        delta = check_real("delta", delta, low=run._least_delta, high=1.0, high_open=True)
        return run._ends(Question(delta), tolerance, False)

    @overload
    def delta(
        self, epsilon: float, *, steps: int | None = ..., epochs: int | None = ..., tolerance: float = ...
    ) -> PrivacyBounds: ...

    @overload
    def delta(
        self, epsilon: Numbers, *, steps: int | None = ..., epochs: int | None = ..., tolerance: float = ...
    ) -> PrivacyCurve: ...

    def delta(
        self,
        epsilon: float | Numbers,
        *,
        steps: int | None = None,
        epochs: int | None = None,
        tolerance: float = 1e-2,
    ) -> PrivacyBounds | PrivacyCurve:
        """Bound δ at ``epsilon``, the larger of both adjacency directions.

        Parameters
        ----------
        epsilon : float or sequence of float
            In [0, 1e17].
        steps, epochs : int or None
            As in :meth:`epsilon`.
        tolerance : float
            Wanted relative width of the interval. Values of δ below 1e-290 are not resolved further.

        Returns
        -------
        PrivacyBounds or PrivacyCurve
            Bounds that name the deciding direction. A sequence gives a curve, in the order of the arguments.
        """
        run = self.run(steps=steps, epochs=epochs)
        if np.ndim(epsilon):
            return run._delta_curve(cast("Numbers", epsilon), tolerance)
        return worst_of(run._ends(_delta_at(cast("float", epsilon)), tolerance, True))

    def delta_by_direction(
        self, epsilon: float, *, steps: int | None = None, epochs: int | None = None, tolerance: float = 1e-2
    ) -> dict[Direction, PrivacyBounds]:
        """Bound δ for removing and for adding one sample; both the same where samples are replaced.

        Returns
        -------
        dict
            Keys ``"remove"`` and ``"add"``.
        """
        return self.run(steps=steps, epochs=epochs)._ends(_delta_at(epsilon), tolerance, False)

    def trade_off(self, alpha: ArrayLike, *, steps: int | None = None, epochs: int | None = None) -> TradeOff:
        """Bound the trade-off function α ↦ β: the smaller of both adjacency directions.

        Returns
        -------
        TradeOff
            Bounds on the smallest false negative rate; the safe side is the lower one.
        """
        return self.run(steps=steps, epochs=epochs)._trade_off(alpha)

    def advantage(self, *, steps: int | None = None, epochs: int | None = None) -> PrivacyBounds:
        """Bound the most by which an attacker's true positive rate can exceed the false positive rate.

        Returns
        -------
        PrivacyBounds
            δ at ε = 0, in [0, 1].

        Examples
        --------
        >>> from dprmt.accounting import DPSGD
        >>> 0.2889 < DPSGD(1.0, 2000 / 67349).advantage(steps=400).upper < 0.2891
        True
        """
        return replace(self.delta(0.0, steps=steps, epochs=epochs), at_epsilon=None)

    def true_positive_rate(
        self, false_positive_rate: float = 0.01, *, steps: int | None = None, epochs: int | None = None
    ) -> PrivacyBounds:
        """Bound the largest true positive rate of an attacker with this false positive rate, in [0, 1].

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
        >>> f"{DPSGD(1.0, 2000 / 67349).true_positive_rate(0.01, steps=400):.3f}"
        '0.064'
        """
        alpha = check_real("false_positive_rate", false_positive_rate, low=0.0, high=1.0)
        band = self.trade_off([alpha], steps=steps, epochs=epochs)
        lower, estimate, upper = (1.0 - float(end[0]) for end in (band.upper, band.estimate, band.lower))
        return PrivacyBounds(lower, estimate, upper, is_narrow=upper - lower <= _NARROW * upper)

    def bayes_risk(self, prior: float = 0.5, *, steps: int | None = None, epochs: int | None = None) -> PrivacyBounds:
        """Bound the least probability of error of an attacker who believes in one neighbour with probability
        ``prior``: min(π, 1-π)·(1 - δ(|log((1-π)/π)|)).

        Returns
        -------
        PrivacyBounds
            In [0, min(prior, 1 - prior)], the error of guessing without looking. The safe end is the lower one, which
            ``float`` and formats give.

        Raises
        ------
        ParameterError
            If ``prior`` lies outside [0, 1].

        Examples
        --------
        >>> from dprmt.accounting import DPSGD
        >>> f"{DPSGD(1.0, 2000 / 67349).bayes_risk(steps=400):.3f}"
        '0.355'
        """
        prior = check_real("prior", prior, low=0.0, high=1.0)
        if prior in (0.0, 1.0):
            return PrivacyBounds(0.0, 0.0, 0.0, safe="lower")
        delta = self.delta(abs(math.log1p(-prior) - math.log(prior)), steps=steps, epochs=epochs)
        least = min(prior, 1.0 - prior)
        lower, estimate, upper = (least * (1.0 - end) for end in (delta.upper, delta.estimate, delta.lower))
        is_narrow = upper - lower <= _NARROW * upper
        return PrivacyBounds(lower, estimate, upper, delta.direction, is_narrow, safe="lower")

    def gdp_mu(
        self, *, least_delta: float = 1e-10, steps: int | None = None, epochs: int | None = None
    ) -> PrivacyBounds:
        """Bound the smallest μ of a Gaussian mechanism that is nowhere more private, as far as δ > ``least_delta``.

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
        least_delta = check_real("least_delta", least_delta, low=1e-200, high=1.0, low_open=True, high_open=True)
        run = self.run(steps=steps, epochs=epochs)
        last = run.epsilon(least_delta).upper
        if not math.isfinite(last):
            return PrivacyBounds(0.0, math.inf, math.inf, is_narrow=False)
        lower, upper = gdp_mu(run._delta_curve(mu_grid(last), 1e-2), least_delta)
        return PrivacyBounds(lower, (lower + upper) / 2, upper, is_narrow=upper - lower <= _NARROW * upper)

    def _epsilon_curve(self, steps: Any, epochs: Any, delta: float | None, tolerance: float) -> PrivacyCurve:
        """Bound ε after each of several numbers of steps, which a composition refuses."""
        return self.run(steps=steps, epochs=epochs)._epsilon_curve(steps, epochs, delta, tolerance)


@dataclass(frozen=True)
class Fixed:
    """Phases that calibration does not change; made by :func:`fixed`."""

    phases: Phases

    def __repr__(self) -> str:
        return f"fixed({list(self.phases)!r})"


class Composition(Questions):
    """Adaptive composition of mechanisms; made by :func:`compose`.

    Parameters
    ----------
    phases : sequence of (mechanism, steps), releases, compositions and fixed phases
        In any order: it does not matter for the result. Steps of random allocation come in whole epochs; phases of 0
        steps are left out.

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

    def __init__(self, phases: Sequence[Phase]) -> None:
        if isinstance(phases, Release | Fixed) or not isinstance(phases, Sequence):
            raise ParameterError("phases", phases, _LIST)
        if not len(phases):
            raise ParameterError("phases", list(phases), "a non-empty list of (mechanism, steps)")
        merged: dict[Composable, int] = {}
        done: dict[Composable, int] = {}
        relations = set()
        for mechanism, steps, is_fixed in _flat(phases):
            if mechanism.neighbours is not None:
                relations.add(mechanism.neighbours)
            for kept in (merged, done)[: (steps > 0) * (1 + is_fixed)]:
                kept[mechanism] = kept.get(mechanism, 0) + steps
        self.phases = tuple(merged.items())
        """Mechanisms and their steps; steps of equal mechanisms are added."""
        self.fixed = tuple(done.items())
        """Phases that :func:`calibrate` does not change."""
        if len(relations) > 1:
            raise ParameterError("phases", sorted(map(repr, relations)), "mechanisms with the same neighbours")
        self.neighbours: Neighbours = relations.pop() if relations else ZeroOut()
        """Neighbouring relation, the same in all phases."""
        is_one = not self.neighbours.is_replacement and self.neighbours.group_size == 1
        self.has_pairs = is_one or all(mechanism.has_pairs for mechanism in merged)
        """True if every phase has a pair for one of its steps; else certified curves of one change are composed."""
        has_release = not merged or any(isinstance(mechanism, Release) for mechanism in merged)
        self._disclosure = Disclosure.of(self.phases) if has_release else None
        is_bounded = self._disclosure is not None and self._disclosure.loss is not None
        self._least_delta = 0.0 if is_bounded else LEAST_DELTA
        if not is_one and any(getattr(one, "rate", 1.0) < 1.0 for one in merged):
            raise ParameterError("phases", self.neighbours, "without sampled releases where several samples change")

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Composition):
            return NotImplemented
        return dict(self.phases) == dict(other.phases) and dict(self.fixed) == dict(other.fixed)

    def __hash__(self) -> int:
        return hash(frozenset(self.phases))

    def __repr__(self) -> str:
        parts = [*([Fixed(self.fixed)] if self.fixed else []), *self.free_phases()]
        return f"Composition({parts!r})"

    def _repr_html_(self) -> str:
        return phases_html(self.phases)

    def free_phases(self) -> Phases:
        """Return the phases that are not fixed.

        Returns
        -------
        tuple of (mechanism, steps)
            In the order in which they were given.
        """
        done = dict(self.fixed)
        left = ((mechanism, steps - done.get(mechanism, 0)) for mechanism, steps in self.phases)
        return tuple((mechanism, steps) for mechanism, steps in left if steps)

    @cached_property
    def schedule(self) -> Schedule:
        """Steps that are composed, each with its count."""
        phases = self.phases
        if len(phases) > 1:  # rounding depends on the order
            phases = tuple(sorted(phases, key=lambda phase: repr(phase[0])))
        units: list[tuple[Step, int]] = []
        for mechanism, steps in phases:
            units += mechanism.sampling.schedule(mechanism.step(), steps)
        if any(isinstance(step, RenyiStep) or getattr(step, "sample_rate", 0.0) == 1.0 for step, _ in units):
            return gaussians_as_one(renyi_as_one(units))
        return units

    @cached_property
    def _one_sample(self) -> Schedule:
        """Steps as one sample that is present, or without a gradient, sees them."""
        return tuple(Composition([(mechanism.of_one_sample(), steps) for mechanism, steps in self.phases]).schedule)

    def _ends(self, question: Question, tolerance: float, only_worst: bool) -> dict[Direction, PrivacyBounds]:
        """Bound both directions; for ``only_worst`` the second one is refined only until it cannot decide."""
        tolerance = check_real("tolerance", tolerance, low=1e-8, high=1.0)
        solved = self._solve if self._disclosure is None else self._solve_apart
        removed = solved(question, "remove", tolerance)
        if self.neighbours.is_replacement:  # exchanging the samples exchanges the pair
            return dict.fromkeys(BOTH, replace(removed, direction=None))
        enough = removed.upper if removed.is_narrow or not self.has_pairs else removed.lower
        return {"remove": removed, "add": solved(question, "add", tolerance, enough if only_worst else 0.0)}

    def _solve(self, question: Question, direction: Direction, tolerance: float, enough: float = 0.0) -> PrivacyBounds:
        """Bound one direction by pairs of steps; for a replaced sample, or without pairs, by composed curves."""
        if not self.has_pairs:
            return bounds_by_curves(self._one_sample, question, direction, self.neighbours, tolerance, enough)
        return solve(self.schedule, question, direction, tolerance, enough)

    def _solve_apart(
        self, question: Question, direction: Direction, tolerance: float, enough: float = 0.0
    ) -> PrivacyBounds:
        """Bound one direction: what is disclosed outright in closed form, and the rest composed."""
        del enough  # it is no bound on the rest
        apart = self._disclosure
        assert apart is not None

        def rest(asked: Question) -> tuple[float, float]:
            if apart.loss == 0 or (asked.epsilon is not None and apart.ends_by(asked.epsilon)):
                return 0.0, 0.0
            found = self._solve(asked, direction, tolerance)
            return found.lower, found.upper

        if question.epsilon is not None:
            return interval(*apart.joined_ends(*rest(question)), direction, question, tolerance)
        at_least, at_most = apart.left(question.delta)
        above = rest(Question(delta=at_most)) if at_most >= LEAST_DELTA else (0.0, math.inf)
        largest = math.inf if apart.loss is None else round_up_exact(apart.loss)
        high = math.inf if at_most < 0 else min(largest, above[1])
        if at_least < 0:
            low = math.inf
        elif at_least == 0 and apart.loss is not None:
            low = round_down_exact(apart.loss)
        elif at_least == at_most >= LEAST_DELTA:
            low = above[0]
        else:
            low = rest(Question(delta=max(at_least, LEAST_DELTA)))[0]
        return interval(min(low, high), high, direction, question, tolerance)

    def _trade_off(self, alpha: ArrayLike) -> TradeOff:
        rates, apart = checked_rates(alpha), self._disclosure
        inner = rates if apart is None else apart.rates_of_rest(rates)
        if apart is not None and apart.loss == 0:
            band = TradeOff(inner, 1.0 - inner, 1.0 - inner, 1.0 - inner)
        elif self.has_pairs:
            band = trade_off(self.schedule, inner, BOTH[:1] if self.neighbours.is_replacement else BOTH)
        else:
            band = trade_off_by_curves(self._one_sample, inner, self.neighbours)
        return band if apart is None else apart.of_trade_off(band, rates)

    def _delta_curve(self, epsilon: Numbers, tolerance: float) -> PrivacyCurve:
        tolerance = check_real("tolerance", tolerance, low=1e-8, high=1.0)
        at, apart = checked_epsilons(epsilon), self._disclosure
        ordered, place = np.unique(at, return_inverse=True)
        ends = self._delta_ends(ordered, tolerance)
        if apart is not None:
            ends = {way: apart.joined_curve(ordered, *found) for way, found in ends.items()}
        return joined(ends, Question(epsilon=0.0), tolerance, at, place)

    def _delta_ends(self, epsilons: Array, tolerance: float) -> Ends:
        """Return bounds on δ, but for what is disclosed outright, at increasing ε."""
        is_alike = self.neighbours.is_replacement
        directions = BOTH[:1] if is_alike else BOTH
        if self._disclosure is not None and self._disclosure.loss == 0:
            return dict.fromkeys(directions, (np.zeros(epsilons.size), np.zeros(epsilons.size)))
        if self.has_pairs:
            return delta_ends(self.schedule, epsilons, directions, tolerance)
        one = delta_ends(self._one_sample, epsilons, BOTH, tolerance)
        lowers = {
            way: np.max([end[0] for end in one.values()], axis=0) if is_alike else one[way][0] for way in directions
        }
        curves = {way: deltas_by_curves(self._one_sample, epsilons, way, self.neighbours) for way in directions}
        return {way: (lowers[way], np.maximum(curves[way], lowers[way])) for way in directions}


Phase: TypeAlias = tuple[Composable, int] | Release | Composition | Fixed
_LIST = "a list of (mechanism, steps), as in (DPSGD(1.0, 0.01), 100), of releases, and of compositions"


def compose(phases: Sequence[Phase]) -> Composition:
    """Compose mechanisms, each run for a number of steps.

    Each phase draws independent batches. Two values released from *the same* batch, such as a sum and a count, are not
    two phases. Sampling hides a sample from both or from none, so ε is larger (2.352 instead of 1.948 in one example).
    State values that share a batch with ``beside`` of :class:`DPSGD`.

    Parameters
    ----------
    phases : sequence of (mechanism, steps), releases, compositions and fixed phases
        A release is published in addition to training, for example a noisy score. A composition contributes its
        phases. Use several phases for a noise schedule, or for a warm-up without sampling followed by randomized
        clipping.

    Returns
    -------
    Composition
        With ``epsilon(delta)``, ``delta(epsilon)`` and ``trade_off(alpha)``.

    Formal guarantees
    -----------------
    The bounds hold for adaptive composition: each step may depend on everything released before. Dominating pairs
    compose (Zhu, Dong & Wang 2022, arXiv:2106.08567v4, Theorem 10).

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


def fixed(phase: Phase) -> Fixed:
    """Mark a phase as already spent: :func:`calibrate` and :func:`largest_steps` do not change it.

    Parameters
    ----------
    phase : (mechanism, steps), Release or Composition
        The finished phase.

    Returns
    -------
    Fixed
        Compose it with the phases still to come.

    Examples
    --------
    >>> from dprmt.accounting import DPSGD, calibrate
    >>> run = compose([fixed((DPSGD(1.0, 0.03), 1000)), (DPSGD(1.0, 0.03), 500)])
    >>> calibrated = calibrate(run, target_epsilon=8.0, delta=1e-5)
    >>> calibrated.fixed == run.fixed, calibrated.epsilon(1e-5).upper <= 8.0
    (True, True)
    """
    return Fixed(compose([phase]).phases)


class Parallel(Questions):
    """Runs on disjoint parts of the data; made by :func:`parallel`.

    Attributes
    ----------
    runs : tuple of Composition
        One for each part.
    """

    def __init__(self, runs: Sequence[Composition]) -> None:
        self.runs = tuple(runs)
        self._least_delta = max(run._least_delta for run in runs)

    def __repr__(self) -> str:
        return f"Parallel({list(self.runs)!r})"

    def _ends(self, question: Question, tolerance: float, only_worst: bool) -> dict[Direction, PrivacyBounds]:
        each = [run._ends(question, tolerance, only_worst) for run in self.runs]
        worst = {way: worst_of({str(i): one[way] for i, one in enumerate(each)}) for way in BOTH}  # type: ignore[misc]
        return {way: replace(bounds, direction=way) for way, bounds in worst.items()}

    def _trade_off(self, alpha: ArrayLike) -> TradeOff:
        bands = [run._trade_off(alpha) for run in self.runs]
        return replace(bands[0], **_each_end(np.min, bands))

    def _delta_curve(self, epsilon: Numbers, tolerance: float) -> PrivacyCurve:
        curves = [run._delta_curve(epsilon, tolerance) for run in self.runs]
        top = np.argmax([curve.upper for curve in curves], axis=0)
        kept = {name: np.choose(top, [getattr(c, name) for c in curves]) for name in ("direction", "is_narrow")}
        return replace(curves[0], **_each_end(np.max, curves), **kept)


def parallel(*runs: Composition) -> Parallel:
    """Account for runs on disjoint parts of the data; the largest ε counts.

    Parameters
    ----------
    *runs : Composition
        One or more compositions with the same neighbours.

    Returns
    -------
    Parallel
        An object with the methods of a composition.

    Raises
    ------
    ParameterError
        If there is no run, neighbours differ, or the relation replaces samples or changes several simultaneously.

    Formal guarantees
    -----------------
    The assignment of a sample to a part must not depend on other samples. If a sample is replaced, or one person has
    several samples, several parts may change: compose the runs instead.

    Examples
    --------
    >>> from dprmt.accounting import DPSGD
    >>> one, other = compose([(DPSGD(1.0, 0.01), 1000)]), compose([(DPSGD(1.5, 0.01), 1000)])
    >>> parallel(one, other).epsilon(1e-5).upper == one.epsilon(1e-5).upper
    True
    """
    if not runs or not all(isinstance(run, Composition) for run in runs):
        raise ParameterError("runs", runs, "compositions, one for each part of the data")
    relations = {run.neighbours for run in runs}
    if len(relations) > 1 or any(one.is_replacement or one.group_size > 1 for one in relations):
        raise ParameterError("runs", sorted(map(repr, relations)), "for the same neighbours, ZeroOut() or AddRemove()")
    return Parallel(runs)


def _each_end(chosen: Callable[..., Array], parts: Sequence[Any]) -> dict[str, Any]:
    return {name: chosen([getattr(part, name) for part in parts], axis=0) for name in ("lower", "estimate", "upper")}


def _delta_at(epsilon: float) -> Question:
    return Question(epsilon=check_real("epsilon", epsilon, low=0.0, high=LARGEST_EPSILON))


def _flat(phases: Sequence[Phase], is_fixed: bool = False) -> Iterator[tuple[Composable, int, bool]]:
    """Flatten and check phases, and mark which are fixed."""
    for phase in phases:
        if isinstance(phase, Fixed):
            yield from _flat(phase.phases, True)
        elif isinstance(phase, Composition):
            yield from ((mechanism, steps, True) for mechanism, steps in phase.fixed)
            yield from ((mechanism, steps, is_fixed) for mechanism, steps in phase.free_phases())
        elif isinstance(phase, Release):
            yield phase, 1, is_fixed
        else:
            mechanism, steps = phase if isinstance(phase, Sequence) and len(phase) == 2 else (None, None)
            if isinstance(mechanism, type) or not hasattr(mechanism, "of_one_sample"):
                raise ParameterError("phases", phase if mechanism is None else mechanism, _LIST)
            yield mechanism, mechanism.sampling.run_length(steps, None), is_fixed
