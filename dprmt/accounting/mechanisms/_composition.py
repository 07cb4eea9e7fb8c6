"""Sequences of mechanisms and of releases, and the questions that a run answers."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Protocol, TypeAlias, cast, overload

import numpy as np
from numpy.typing import ArrayLike

from dprmt._validation import ParameterError, check_count, check_real
from dprmt.accounting.basics import LARGEST_EPSILON, Array, Direction, PrivacyBounds, phases_html, worst_of
from dprmt.accounting.composition import (
    DeltaAtEpsilon,
    EpsilonAtDelta,
    Question,
    interval,
    solve,
)
from dprmt.accounting.mechanisms._releases import Disclosure, Release
from dprmt.accounting.mechanisms._sampling import Sampling
from dprmt.accounting.pairs import Neighbours, Schedule, Step, ZeroOut, renyi_as_one
from dprmt.accounting.questions import (
    Ends,
    Numbers,
    PrivacyCurve,
    bayes_risk,
    bounds_by_curves,
    checked_epsilons,
    delta_ends,
    deltas_by_curves,
    gdp_mu,
    joined,
    mu_grid,
    true_positive_rate,
)

if TYPE_CHECKING:
    from dprmt.accounting.questions import TradeOff

BOTH: tuple[Direction, Direction] = ("remove", "add")
"""Adjacency directions."""
_LEAST_DELTA = 1e-290
_LOOSE = 1.25  # an upper end over the lower one, beyond which composed curves may be the smaller


class Composable(Protocol):
    """What can be composed: what a :class:`Composition` asks of a phase."""

    @property
    def sampling(self) -> Sampling:
        """Sampling scheme, which counts the steps and lists the steps to compose."""
        ...

    @property
    def neighbours(self) -> Neighbours | None:
        """Neighbouring relation; None if the other phases determine it."""
        ...

    @property
    def has_pairs(self) -> bool:
        """Whether a step is one for these neighbours; else for a sample that is present or without a gradient."""
        ...

    def step(self) -> Step:
        """Return one step."""
        ...

    def of_one_sample(self) -> Composable:
        """Return the same for one sample that is present, or without a gradient."""
        ...


class Questions:
    """The questions that a run answers, all from its ε, its δ and its trade-off function."""

    def epsilon_by_direction(self, delta: float, *, tolerance: float = 1e-3) -> dict[Direction, PrivacyBounds]:
        """Return ε for removing and for adding one sample; both the same where samples are replaced."""
        raise NotImplementedError

    def delta_by_direction(self, epsilon: float, *, tolerance: float = 1e-2) -> dict[Direction, PrivacyBounds]:
        """Return δ for removing and for adding one sample; both the same where samples are replaced."""
        raise NotImplementedError

    def trade_off(self, alpha: ArrayLike) -> TradeOff:
        """Return the trade-off function α ↦ β: the smaller of both adjacency directions."""
        raise NotImplementedError

    def epsilon(self, delta: float, *, tolerance: float = 1e-3) -> PrivacyBounds:
        """Return ε at ``delta``, the larger of both adjacency directions.

        Parameters
        ----------
        delta : float
            In [1e-290, 1); 0 is allowed where all phases are Laplace and approximate releases.
        tolerance : float
            Wanted width of the interval, absolute for ε ≤ 1 and relative beyond.

        Returns
        -------
        PrivacyBounds
            With the deciding direction's name.
        """
        return worst_of(self.epsilon_by_direction(delta, tolerance=tolerance))

    @overload
    def delta(self, epsilon: float, *, tolerance: float = ...) -> PrivacyBounds: ...

    @overload
    def delta(self, epsilon: Numbers, *, tolerance: float = ...) -> PrivacyCurve: ...

    def delta(self, epsilon: float | Numbers, *, tolerance: float = 1e-2) -> PrivacyBounds | PrivacyCurve:
        """Bound δ at ``epsilon``, the larger of both adjacency directions.

        Parameters
        ----------
        epsilon : float or sequence of float
            In [0, 1e17].
        tolerance : float
            Wanted relative width of the interval. Values of δ below 1e-290 are not resolved further.

        Returns
        -------
        PrivacyBounds or PrivacyCurve
            Bounds that name the deciding direction. A sequence gives a curve, in the order of the arguments.
        """
        if np.ndim(epsilon):
            return self._delta_curve(cast("Numbers", epsilon), tolerance)
        return worst_of(self.delta_by_direction(cast("float", epsilon), tolerance=tolerance))

    def advantage(self) -> PrivacyBounds:
        """Return the most by which an attacker's true positive rate can exceed the false positive rate.

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
        return replace(self.delta(0.0), at_epsilon=None)

    def true_positive_rate(self, false_positive_rate: float) -> PrivacyBounds:
        """Return the largest true positive rate of an attacker with this false positive rate, in [0, 1].

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
        alpha = check_real("false_positive_rate", false_positive_rate, low=0.0, high=1.0)
        return true_positive_rate(self.trade_off([alpha]))

    def bayes_risk(self, prior: float = 0.5) -> PrivacyBounds:
        """Return the least probability of error of an attacker who believes in one neighbour with probability
        ``prior``.

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
        >>> f"{Composition([(DPSGD(1.0, 2000 / 67349), 400)]).bayes_risk():.3f}"
        '0.355'
        """
        prior = check_real("prior", prior, low=0.0, high=1.0)
        if prior in (0.0, 1.0):
            return PrivacyBounds(0.0, 0.0, 0.0, safe="lower")
        return bayes_risk(self.delta(abs(math.log1p(-prior) - math.log(prior))), min(prior, 1.0 - prior))

    def gdp_mu(self, *, least_delta: float = 1e-10) -> PrivacyBounds:
        """Return the smallest μ of a Gaussian mechanism that is nowhere more private, as far as δ > ``least_delta``.

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
        last = self.epsilon(least_delta).upper
        if not math.isfinite(last):
            return PrivacyBounds(0.0, math.inf, math.inf, is_narrow=False)
        return gdp_mu(self._delta_curve(mu_grid(last), 1e-2), least_delta)

    def _delta_curve(self, epsilon: Numbers, tolerance: float) -> PrivacyCurve:
        raise NotImplementedError


@dataclass(frozen=True)
class Fixed:
    """Phases that calibration does not change; made by :func:`fixed`."""

    phases: tuple[tuple[Composable, int], ...]

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
        merged: dict[Composable, int] = {}
        done: dict[Composable, int] = {}
        relations = set()
        for mechanism, steps, is_fixed in _flat(phases):
            if mechanism.neighbours is not None:
                relations.add(mechanism.neighbours)
            if steps:
                merged[mechanism] = merged.get(mechanism, 0) + steps
            if steps and is_fixed:
                done[mechanism] = done.get(mechanism, 0) + steps
        if not len(phases):
            raise ParameterError("phases", list(phases), "a non-empty list of (mechanism, steps)")
        self.phases = tuple(merged.items())
        """Mechanisms and their steps; steps of equal mechanisms are added."""
        self.fixed = tuple(done.items())
        """Phases that :func:`calibrate` does not change."""
        if len(relations) > 1:
            raise ParameterError("phases", sorted(map(repr, relations)), "mechanisms with the same neighbours")
        self.neighbours: Neighbours = relations.pop() if relations else ZeroOut()
        """Neighbouring relation, the same in all phases."""
        is_one = not self.neighbours.is_replacement and self.neighbours.group_size == 1
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

    def free_phases(self) -> tuple[tuple[Composable, int], ...]:
        """Return the phases that are not fixed.

        Returns
        -------
        tuple of (mechanism, steps)
            In the order in which they were given.
        """
        done = dict(self.fixed)
        left = ((mechanism, steps - done.get(mechanism, 0)) for mechanism, steps in self.phases)
        return tuple((mechanism, steps) for mechanism, steps in left if steps)

    def epsilon(self, delta: float, *, tolerance: float = 1e-3) -> PrivacyBounds:
        """See :meth:`Questions.epsilon`; the direction that does not decide is refined only until it cannot."""
        delta = self._checked_delta(delta)
        return replace(self._worst(EpsilonAtDelta(delta), tolerance), at_delta=delta)

    def epsilon_by_direction(self, delta: float, *, tolerance: float = 1e-3) -> dict[Direction, PrivacyBounds]:
        """Return ε for removing and for adding one sample; both the same where samples are replaced.

        Returns
        -------
        dict
            Keys ``"remove"`` and ``"add"``.
        """
        delta = self._checked_delta(delta)
        found = self._ask(EpsilonAtDelta(delta), tolerance)
        return {direction: replace(bounds, at_delta=delta) for direction, bounds in found.items()}

    @overload
    def delta(self, epsilon: float, *, tolerance: float = ...) -> PrivacyBounds: ...

    @overload
    def delta(self, epsilon: Numbers, *, tolerance: float = ...) -> PrivacyCurve: ...

    def delta(self, epsilon: float | Numbers, *, tolerance: float = 1e-2) -> PrivacyBounds | PrivacyCurve:
        """See :meth:`Questions.delta`; the direction that does not decide is refined only until it cannot."""
        if np.ndim(epsilon):
            return self._delta_curve(cast("Numbers", epsilon), tolerance)
        epsilon = check_real("epsilon", cast("float", epsilon), low=0.0, high=LARGEST_EPSILON)
        return replace(self._worst(DeltaAtEpsilon(epsilon), tolerance), at_epsilon=epsilon)

    def delta_by_direction(self, epsilon: float, *, tolerance: float = 1e-2) -> dict[Direction, PrivacyBounds]:
        """Return δ for removing and for adding one sample; both the same where samples are replaced.

        Returns
        -------
        dict
            Keys ``"remove"`` and ``"add"``.
        """
        epsilon = check_real("epsilon", epsilon, low=0.0, high=LARGEST_EPSILON)
        found = self._ask(DeltaAtEpsilon(epsilon), tolerance)
        return {direction: replace(bounds, at_epsilon=epsilon) for direction, bounds in found.items()}

    def trade_off(self, alpha: ArrayLike) -> TradeOff:
        """Return the trade-off function α ↦ β: the smaller of both adjacency directions.

        Returns
        -------
        TradeOff
            Bounds on the smallest false negative rate; the safe side is the lower one.
        """
        from dprmt.accounting.questions import checked_rates, perfect_trade_off, trade_off, trade_off_by_curves

        rates = checked_rates(alpha)
        # Disclosed parts are distinguished for certain, at no cost in α: β(α) = (1 - d) β'(α/(1 - d)).
        inner = np.minimum(rates / self._disclosure.kept, 1.0) if self._disclosure.kept else np.ones(rates.shape)
        if not self._engine_phases:
            band = perfect_trade_off(inner)
        elif self.has_pairs:
            band = trade_off(self.schedule(), inner, BOTH[:1] if self.neighbours.is_replacement else BOTH)
        else:
            band = trade_off_by_curves(self._one_sample, inner, self.neighbours)
        return self._disclosure.of_trade_off(band, rates)

    def schedule(self) -> Schedule:
        """Return the steps that are composed, for the engine.

        Returns
        -------
        list of (step, count)
            One entry per phase.
        """
        phases = self.phases
        if len(phases) > 1:  # rounding depends on the order
            phases = tuple(sorted(phases, key=lambda phase: repr(phase[0])))
        units = (mechanism.sampling.schedule(mechanism.step(), steps) for mechanism, steps in phases)
        return renyi_as_one([unit for some in units for unit in some])

    @property
    def has_pairs(self) -> bool:
        """True if every phase has a pair for one of its steps; else certified curves of one change are composed."""
        return all(mechanism.has_pairs for mechanism, _ in self.phases)

    @property
    def _is_exact(self) -> bool:
        """Whether pairs are the smaller bounds for replaced samples: curves never were with exact norms."""
        return all(step.is_exact for step, _ in self.schedule())

    def _delta_curve(self, epsilon: Numbers, tolerance: float) -> PrivacyCurve:
        tolerance = check_real("tolerance", tolerance, low=1e-8, high=1.0)
        at = checked_epsilons(epsilon)
        ordered, place = np.unique(at, return_inverse=True)
        ends = {
            side: self._joined_ends(ordered, *found) for side, found in self._delta_ends(ordered, tolerance).items()
        }
        return joined(ends, DeltaAtEpsilon(0.0), tolerance, at, place)

    def _delta_ends(self, epsilons: Array, tolerance: float) -> Ends:
        """Return bounds on δ, but for what is disclosed outright, at increasing ε."""
        directions = BOTH[:1] if self.neighbours.is_replacement else BOTH
        if not self._engine_phases:
            return dict.fromkeys(directions, (np.zeros(epsilons.size), np.zeros(epsilons.size)))
        if self.has_pairs:
            ends = dict(delta_ends(self.schedule(), epsilons, directions, tolerance))
            is_tight = np.all(ends["remove"][1] <= _LOOSE * ends["remove"][0])
            if not self.neighbours.is_replacement or self._is_exact or is_tight:
                return ends
        else:
            one = delta_ends(self._one_sample, epsilons, BOTH, tolerance)
            worst = np.maximum(one["remove"][0], one["add"][0])
            is_alike = self.neighbours.is_replacement
            ends = {way: (worst if is_alike else one[way][0], np.ones(epsilons.size)) for way in directions}
        for way, (lower, upper) in ends.items():
            curves = deltas_by_curves(self._one_sample, epsilons, way, self.neighbours)
            ends[way] = lower, np.maximum(np.minimum(upper, curves), lower)
        return ends

    def _joined_ends(self, epsilons: Array, lower: Array, upper: Array) -> tuple[Array, Array]:
        """Return bounds on δ from those on the rest and what is disclosed outright."""
        apart = self._disclosure
        if not apart:
            return lower, upper
        rest = zip(epsilons.tolist(), lower.tolist(), upper.tolist(), strict=True)
        both = np.array(
            [apart.joined_ends(*((0.0, 0.0) if apart.ends_by(at) else (low, high))) for at, low, high in rest]
        )
        return both[:, 0], both[:, 1]

    def _checked_delta(self, delta: float) -> float:
        if self._disclosure.loss is not None:
            return check_real("delta", delta, low=0.0, high=1.0, high_open=True)
        return check_real("delta", delta, low=_LEAST_DELTA, high=1.0, high_open=True)

    @cached_property
    def _disclosure(self) -> Disclosure:
        return Disclosure.of(self.phases)

    @property
    def _engine_phases(self) -> bool:
        """Whether anything is left to compose apart from outright disclosures."""
        return any(not isinstance(one, Release) or one.largest_loss != 0 for one, _ in self.phases)

    def _ask(self, question: Question, tolerance: float) -> dict[Direction, PrivacyBounds]:
        tolerance = check_real("tolerance", tolerance, low=1e-8, high=1.0)
        if self.neighbours.is_replacement:  # exchanging the samples exchanges the pair
            return dict.fromkeys(BOTH, replace(self._solve(question, "remove", tolerance), direction=None))
        return {direction: self._solve(question, direction, tolerance) for direction in BOTH}

    @cached_property
    def _one_sample(self) -> Schedule:
        """Return the steps as one sample that is present, or without a gradient, sees them."""
        alone = [(mechanism.of_one_sample(), steps) for mechanism, steps in self.phases]
        return tuple(Composition(alone).schedule())

    def _worst(self, question: Question, tolerance: float) -> PrivacyBounds:
        """Bound the larger of both directions; the other one is refined only until it cannot decide."""
        tolerance = check_real("tolerance", tolerance, low=1e-8, high=1.0)
        removed = self._solve(question, "remove", tolerance)
        if self.neighbours.is_replacement:  # exchanging the samples exchanges the pair
            return replace(removed, direction=None)
        enough = removed.upper if removed.is_narrow or not self.has_pairs else removed.lower
        return worst_of({"remove": removed, "add": self._solve(question, "add", tolerance, enough)})

    def _solve(self, question: Question, direction: Direction, tolerance: float, enough: float = 0.0) -> PrivacyBounds:
        """Bound one direction: outright disclosures in closed form, and the rest composed."""
        apart = self._disclosure
        if not self._engine_phases:
            return apart.alone(question, direction)
        if not apart:
            return self._solve_rest(question, direction, tolerance, enough)

        def rest(asked: Question) -> PrivacyBounds:
            return self._solve_rest(asked, direction, tolerance, 0.0)

        return apart.joined(question, direction, tolerance, rest)

    def _solve_rest(self, question: Question, direction: Direction, tolerance: float, enough: float) -> PrivacyBounds:
        """Bound by pairs of steps; for a replaced sample, or without pairs, by composed curves."""
        if not self.has_pairs:
            return bounds_by_curves(self._one_sample, question, direction, self.neighbours, tolerance, enough)
        bounds = solve(self.schedule(), question, direction, tolerance, enough)
        if bounds.is_narrow:
            return bounds
        if self.neighbours.is_replacement and bounds.upper > max(enough, _LOOSE * bounds.lower):
            return self._smaller_by_curves(bounds, question, direction, tolerance)
        return bounds

    def _smaller_by_curves(
        self, bounds: PrivacyBounds, question: Question, direction: Direction, tolerance: float
    ) -> PrivacyBounds:
        """Both are valid: what (N11) charges is much for few probes, where curves lose less (N6)."""
        if self._is_exact:
            return bounds
        curves = bounds_by_curves(self._one_sample, question, direction, self.neighbours, tolerance)
        if curves.upper >= bounds.upper:
            return bounds
        return interval(bounds.lower, max(curves.upper, bounds.lower), direction, question, tolerance)


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

    def __repr__(self) -> str:
        return f"Parallel({list(self.runs)!r})"

    def epsilon_by_direction(self, delta: float, *, tolerance: float = 1e-3) -> dict[Direction, PrivacyBounds]:
        """Bound ε in each direction; see :meth:`Composition.epsilon_by_direction`."""
        return _largest([run.epsilon_by_direction(delta, tolerance=tolerance) for run in self.runs])

    def delta_by_direction(self, epsilon: float, *, tolerance: float = 1e-2) -> dict[Direction, PrivacyBounds]:
        """See :meth:`Composition.delta_by_direction`."""
        return _largest([run.delta_by_direction(epsilon, tolerance=tolerance) for run in self.runs])

    def trade_off(self, alpha: ArrayLike) -> TradeOff:
        """See :meth:`Composition.trade_off`: the smallest of all."""
        bands = [run.trade_off(alpha) for run in self.runs]
        ends = {
            name: np.min([getattr(band, name) for band in bands], axis=0) for name in ("lower", "estimate", "upper")
        }
        return replace(bands[0], **ends)

    def _delta_curve(self, epsilon: Numbers, tolerance: float) -> PrivacyCurve:
        curves = [run._delta_curve(epsilon, tolerance) for run in self.runs]
        top = np.argmax([curve.upper for curve in curves], axis=0)
        ends = {name: np.max([getattr(c, name) for c in curves], axis=0) for name in ("lower", "estimate", "upper")}
        kept = {name: np.choose(top, [getattr(c, name) for c in curves]) for name in ("direction", "is_narrow")}
        return replace(curves[0], **ends, **kept)


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


def _largest(each: Sequence[dict[Direction, PrivacyBounds]]) -> dict[Direction, PrivacyBounds]:
    return {way: replace(worst_of({str(i): one[way] for i, one in enumerate(each)}), direction=way) for way in BOTH}  # type: ignore[misc]


def _flat(phases: Sequence[Phase], is_fixed: bool = False) -> Iterator[tuple[Composable, int, bool]]:
    """Flatten and check phases, and mark which are fixed."""
    for phase in phases:
        if isinstance(phase, Fixed):
            yield from _flat(phase.phases, True)
        elif isinstance(phase, Composition):
            yield from ((mechanism, steps, True) for mechanism, steps in phase.fixed)
            yield from ((mechanism, steps, is_fixed) for mechanism, steps in phase.free_phases())
        else:
            yield *_checked_phase(phase), is_fixed


def _checked_phase(phase: tuple[Composable, int] | Release) -> tuple[Composable, int]:
    if isinstance(phase, Release):
        return phase, 1
    try:
        mechanism, steps = phase
    except (TypeError, ValueError):
        raise ParameterError("phases", phase, _LIST) from None
    if isinstance(mechanism, type) or not hasattr(mechanism, "of_one_sample"):
        raise ParameterError("phases", mechanism, _LIST)
    return mechanism, run_length(mechanism.sampling, steps)


def run_length(sampling: Sampling, steps: int | None = None, epochs: int | None = None) -> int:
    """Return the number of steps of a run, which may be 0: nothing is released yet."""
    given = steps if epochs is None else epochs
    if given == 0 and None in (steps, epochs):
        return check_count("steps" if epochs is None else "epochs", given, low=0)
    return sampling.run_length(steps, epochs)
