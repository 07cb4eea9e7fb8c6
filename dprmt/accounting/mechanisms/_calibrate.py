"""The least noise that meets a privacy target, always on the private side."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, cast, overload

from scipy.special import ndtri

from dprmt._validation import ParameterError, check_real
from dprmt.accounting.mechanisms._composition import Composition, Fixed, compose
from dprmt.accounting.mechanisms._dpsgd import DPSGD
from dprmt.accounting.mechanisms._releases import Release

_SMALLEST, _LARGEST = 1e-2, 1e6
_COARSE = 0.05  # tolerance of the answers of a first search
_MOST_ROUGH, _NEAR = 8, 0.03


@overload
def calibrate(
    run: DPSGD,
    *,
    target_epsilon: float | None = ...,
    delta: float | None = ...,
    target_advantage: float | None = ...,
    target_true_positive_rate: float | None = ...,
    false_positive_rate: float | None = ...,
    steps: int | None = ...,
    epochs: int | None = ...,
    tolerance: float = ...,
) -> DPSGD: ...


@overload
def calibrate(
    run: Composition,
    *,
    target_epsilon: float | None = ...,
    delta: float | None = ...,
    target_advantage: float | None = ...,
    target_true_positive_rate: float | None = ...,
    false_positive_rate: float | None = ...,
    tolerance: float = ...,
) -> Composition: ...


def calibrate(
    run: DPSGD | Composition,
    *,
    target_epsilon: float | None = None,
    delta: float | None = None,
    target_advantage: float | None = None,
    target_true_positive_rate: float | None = None,
    false_positive_rate: float | None = None,
    steps: int | None = None,
    epochs: int | None = None,
    tolerance: float = 2e-4,
) -> DPSGD | Composition:
    """Find the smallest noise multipliers that reach a privacy target.

    The target is ε at δ, an attacker's advantage, or a true-positive rate at a false-positive rate. Pass exactly one.

    Parameters
    ----------
    run : DPSGD or Composition
        A mechanism, with its length below, or a composition, which has its own. For a composition, only the ratios of
        the noise multipliers matter, and calibration keeps them. Releases and phases marked by :func:`fixed` are not
        changed.
    target_epsilon, delta : float, optional
        Target ε > 0, and δ in [1e-290, 1).
    target_advantage : float, optional
        Largest true-positive rate minus false-positive rate of an attacker, in (0, 1).
    target_true_positive_rate, false_positive_rate : float, optional
        Largest true-positive rate of an attacker with this false-positive rate; both in (0, 1), the first larger.
    steps, epochs : int or None
        Length of the run, as in :meth:`DPSGD.epsilon`. Required for a mechanism.
    tolerance : float
        Largest relative excess of the noise multipliers over the smallest found sufficient.

    Returns
    -------
    DPSGD or Composition
        The same run with calibrated noise; its certified upper bound is at most the target.

    Raises
    ------
    ParameterError
        If an argument lies outside its range, there is not exactly one target, or no noise multiplier in [0.01, 1e6]
        reaches it.

    Formal guarantees
    -----------------
    The certified upper bound of the returned run is evaluated, and it is at most the target.

    Examples
    --------
    >>> from dprmt.accounting import GaussianRelease, RandomAllocation
    >>> mechanism = calibrate(DPSGD(1.0, 0.01), steps=1000, target_epsilon=2.0, delta=1e-5)
    >>> mechanism.epsilon(steps=1000, delta=1e-5).upper <= 2.0
    True
    >>> shuffled = calibrate(DPSGD(1.0, RandomAllocation(100)), epochs=10, target_epsilon=2.0, delta=1e-5)
    >>> shuffled.noise_multiplier < mechanism.noise_multiplier
    True
    >>> schedule = compose([(DPSGD(2.0, 0.01), 500), (DPSGD(1.0, 0.01), 500)])
    >>> (loud, _), (quiet, _) = calibrate(schedule, target_epsilon=2.0, delta=1e-5).phases
    >>> loud.noise_multiplier / quiet.noise_multiplier
    2.0
    >>> calibrate(DPSGD(1.0, 0.01), steps=1000, target_advantage=0.2).advantage(steps=1000).upper <= 0.2
    True
    >>> with_score = compose([(DPSGD(1.0, 0.01), 1000), GaussianRelease(4.0)])
    >>> calibrate(with_score, target_epsilon=2.0, delta=1e-5).epsilon(1e-5).upper <= 2.0
    True
    """
    target = _wanted(target_epsilon, delta, target_advantage, target_true_positive_rate, false_positive_rate)
    check_real("tolerance", tolerance, low=1e-6, high=1.0)
    if isinstance(run, Composition):
        if steps is not None or epochs is not None:
            raise ParameterError("steps", steps or epochs, "left out for a composition", "remove steps and epochs")
        for mechanism, _ in run.phases:
            if not isinstance(mechanism, DPSGD | Release):
                raise ParameterError("run", mechanism, "a composition whose phases are all DPSGD, and releases")
        if all(isinstance(mechanism, Release) for mechanism, _ in run.free_phases()):
            raise ParameterError("run", run, "a composition with a phase of DPSGD that is not fixed")
        return _calibrated(run, target, tolerance)
    if not isinstance(run, DPSGD):
        raise ParameterError("run", run, "a DPSGD, with steps or epochs, or a composition of such")
    whole = compose([(run, run.sampling.run_length(steps, epochs))])
    ((mechanism, _),) = _calibrated(whole, target, tolerance).phases
    return cast("DPSGD", mechanism)


@dataclass(frozen=True)
class _Target:
    """What is wanted of a run.

    ``value``: what ``measure`` of the run, at a tolerance, may not exceed; it falls towards 0 as noise grows.
    ``shift``: of the Gaussian mechanism that meets it, nearly.
    """

    name: str
    wanted: float
    value: float
    measure: Callable[[Composition, float], float]
    shift: float


def _wanted(
    epsilon: float | None, delta: float | None, advantage: float | None, power: float | None, level: float | None
) -> _Target:
    given = {"target_epsilon": epsilon, "target_advantage": advantage, "target_true_positive_rate": power}
    names = [name for name, value in given.items() if value is not None]
    if len(names) != 1:
        fix = f"pass exactly one of {', '.join(given)}"
        raise ParameterError("target_epsilon", names or None, "the only target", fix)
    for name, value, owner in (("delta", delta, epsilon), ("false_positive_rate", level, power)):
        if value is None and owner is not None:
            raise ParameterError(name, None, f"given with {names[0]}", f"pass {name}")
        if value is not None and owner is None:
            raise ParameterError(name, value, f"left out with {names[0]}", f"remove {name}")
    if epsilon is not None:
        wanted = check_real("target_epsilon", epsilon, low=0.0, low_open=True)
        at = check_real("delta", delta, low=1e-290, high=1.0, high_open=True)
        log = -math.log(at)
        shift = math.sqrt(2 * (wanted + log)) - math.sqrt(2 * log)
        return _Target(
            "target_epsilon", wanted, wanted, lambda run, within: run.epsilon(at, tolerance=within).upper, shift
        )
    if advantage is not None:
        wanted = check_real("target_advantage", advantage, low=0.0, high=1.0, low_open=True, high_open=True)
        shift = 2.0 * float(ndtri((1.0 + wanted) / 2.0))
        return _Target("target_advantage", wanted, wanted, lambda run, _: run.advantage().upper, shift)
    at = check_real("false_positive_rate", level, low=0.0, high=1.0, low_open=True, high_open=True)
    assert power is not None
    wanted = check_real("target_true_positive_rate", power, low=at, high=1.0, low_open=True, high_open=True)
    shift = float(ndtri(wanted) - ndtri(at))

    def excess(run: Composition, _: float) -> float:
        found = run.true_positive_rate(at).upper
        return min(found - at, wanted - at) if found <= wanted else max(found - at, math.nextafter(wanted - at, 1.0))

    return _Target("target_true_positive_rate", wanted, wanted - at, excess, shift)


def _calibrated(run: Composition, target: _Target, tolerance: float) -> Composition:
    phases, others = _apart(run)
    least = min(mechanism.noise_multiplier for mechanism, _ in phases)

    def at(noise_multiplier: float) -> Composition:
        return Composition(
            [
                (replace(mechanism, noise_multiplier=mechanism.noise_multiplier / least * noise_multiplier), steps)
                for mechanism, steps in phases
            ]
            + others
        )

    def measured(noise_multiplier: float, within: float = 1e-3) -> float:
        return target.measure(at(noise_multiplier), within)

    search = _Search(target.value, tolerance, target.name, target.wanted)
    if others and not target.measure(Composition(others), 1e-3) <= target.value:
        raise ParameterError(target.name, target.wanted, "above the cost of releases and fixed phases alone")
    strength = sum(
        steps * (mechanism.sampling.rate * least / mechanism.noise_multiplier) ** 2 for mechanism, steps in phases
    )
    near = search.approach(lambda sigma: measured(sigma, _COARSE), _gaussian_guess(target.shift, strength))
    return at(search.smallest_sufficient(measured, near))


def _apart(run: Composition) -> tuple[list[tuple[Any, int]], list[Any]]:
    """Split into phases that may change and phases that stay."""
    free = run.free_phases()
    releases = [phase for phase in free if isinstance(phase[0], Release)]
    return [phase for phase in free if phase not in releases], [*([Fixed(run.fixed)] if run.fixed else []), *releases]


def largest_steps(run: DPSGD | Composition, epsilon: float, delta: float) -> int:
    """Find how many steps a budget allows.

    Parameters
    ----------
    run : DPSGD or Composition
        A mechanism, or phases of which one is a DPSGD that is not marked by :func:`fixed`: its steps are asked for, and
        the number that it has does not count.
    epsilon, delta : float
        The budget of all phases together.

    Returns
    -------
    int
        A number of steps, in whole epochs where the sampling has epochs, whose certified ε is at most ``epsilon``; at
        most 1e9. Within 0.01 % of the largest such number; 0 if not even one step is allowed.

    Raises
    ------
    ParameterError
        If an argument lies outside its range, or what is fixed or released costs more than ``epsilon``.

    Examples
    --------
    >>> from dprmt.accounting import fixed
    >>> largest_steps(DPSGD(1.0, 0.01), 2.0, 1e-5)
    1201
    >>> done = fixed((DPSGD(1.0, 0.01), 1000))
    >>> largest_steps(compose([done, (DPSGD(1.0, 0.01), 1)]), 2.0, 1e-5)
    201
    """
    epsilon = check_real("epsilon", epsilon, low=0.0, low_open=True)
    delta = check_real("delta", delta, low=1e-290, high=1.0, high_open=True)
    free, others = ([(run, 1)], []) if isinstance(run, DPSGD) else _apart(run)
    if len(free) != 1 or not isinstance(free[0][0], DPSGD):
        raise ParameterError("run", run, "a DPSGD, or a composition with one phase of DPSGD that is not fixed")
    if others and compose(others).epsilon(delta).upper > epsilon:
        raise ParameterError("epsilon", epsilon, "above the cost of releases and fixed phases alone")
    mechanism: DPSGD = free[0][0]
    unit = mechanism.steps_per_epoch or 1

    def spent(count: int) -> float:
        return compose([*others, (mechanism, count * unit)]).epsilon(delta).upper

    most, few, many, at = 10**9 // unit, 0, 0, 1
    known = 0.0
    while not many or many - few > max(1, few // 10_000):  # few is allowed, many is not
        now = spent(at)
        if now <= epsilon:
            few = at
            if at == most:
                return most * unit
        else:
            many = at
        # ε grows at least like its root, at most in proportion, but for a first part that costs nothing.
        slope = 0.6 if not known or now <= known else 0.8
        guess = round(at * min(max((epsilon / now) ** (1 / slope) if 0.0 < now < math.inf else 8.0, 0.125), 8.0))
        known = now
        if many:
            at = guess if few < guess < many else (few + many) // 2
            if guess <= few:
                at = min(few + max(1, (many - few) // 8), many - 1)
            elif guess >= many:
                at = max(many - max(1, (many - few) // 8), few + 1)
            if many - few <= 1:
                break
        else:
            at = min(max(guess, 2 * few), most)
    return few * unit


def _gaussian_guess(shift: float, strength: float) -> float:
    """Return the noise multiplier by the central limit theorem, for many steps: only where to start.

    ``strength``: Σ T q² over the phases, of each in units of its noise over the least one's.
    """
    guess = 1.0 / math.sqrt(math.log1p(shift**2 / strength))
    return min(max(guess, 0.1), _LARGEST / 10)


class _Search:
    """The smallest noise multiplier that suffices, up to a relative ``tolerance``."""

    def __init__(self, target: float, tolerance: float, name: str = "target_epsilon", said: float = 0.0) -> None:
        self.target, self.tolerance, self.name, self.said = target, tolerance, name, said or target
        self.slope = 1.0  # -d log ε / d log σ
        self.low = self.high = 0.0  # 0: not known yet
        self.at_low = self.at_high = math.nan

    def approach(self, epsilon: Callable[[float], float], at: float) -> float:
        """Return a noise multiplier that nearly meets the target, by a few steps of the secant method; promises
        nothing.
        """
        value = epsilon(at)
        for _ in range(_MOST_ROUGH):
            before, value_before = at, value
            at = min(max(self._root(at, value), _SMALLEST), _LARGEST)
            if abs(at / before - 1.0) < _NEAR:
                break
            value = epsilon(at)
            self._learn(before, value_before, at, value)
        return at

    def smallest_sufficient(self, epsilon: Callable[[float], float], start: float) -> float:
        """Bracket it, then shrink the bracket in log σ by safeguarded regula falsi in log ε."""
        self._bracket(epsilon, start)
        for iteration in range(60):
            if self.high / self.low <= 1.0 + self.tolerance:
                break
            self._ask(epsilon, self._inside(bisect=iteration % 3 == 2))
        return self.high

    def _bracket(self, epsilon: Callable[[float], float], at: float) -> None:
        """Follow the slope from a start, then step a little past the root, ever farther, to the other side."""
        margin = self.tolerance / 3
        value = self._ask(epsilon, at)
        while not (self.low and self.high):
            root = self._root(at, value)
            before, value_before = at, value
            at = root * (1.0 + margin) if not self.high else min(root, self.high) * (1.0 - min(margin, 0.5))
            if not self.high and at <= self.low:
                at = self.low * (1.0 + margin)
            self._check_range(at)
            value = self._ask(epsilon, at)
            self._learn(before, value_before, at, value)
            margin *= 4.0

    def _ask(self, epsilon: Callable[[float], float], at: float) -> float:
        value = epsilon(at)
        if value <= self.target:
            self.high, self.at_high = at, value
        else:
            self.low, self.at_low = at, value
        return value

    def _root(self, at: float, value: float) -> float:
        """Follow the slope from a point, by at most a factor of four."""
        if not math.isfinite(value):
            return 4.0 * at
        if value <= 0.0:
            return at / 4.0
        share = math.log(value / self.target) / self.slope
        return at * math.exp(min(max(share, -math.log(4.0)), math.log(4.0)))

    def _learn(self, before: float, value_before: float, at: float, value: float) -> None:
        """Estimate the slope between two points far enough apart."""
        if math.isfinite(value_before) and value_before > 0.0 < value < math.inf and abs(at / before - 1.0) > 1e-3:
            self.slope = min(max(math.log(value_before / value) / math.log(at / before), 0.3), 5.0)

    def _check_range(self, at: float) -> None:
        if at > _LARGEST and not self.high:
            raise ParameterError(self.name, self.said, f"reachable with a noise multiplier <= {_LARGEST:g}")
        if at < _SMALLEST and not self.low:
            allowed = f"so small that it needs a noise multiplier >= {_SMALLEST}"
            raise ParameterError(self.name, self.said, allowed)

    def _inside(self, bisect: bool) -> float:
        """Return a point inside the bracket, a little to the private side of the interpolated root."""
        low, high = self.low, self.high
        if bisect or not (math.isfinite(self.at_low) and self.at_high > 0):
            return math.sqrt(low * high)
        share = math.log(self.at_low / self.target) / math.log(self.at_low / self.at_high)
        guess = low * (high / low) ** share * (1.0 + self.tolerance / 3)
        margin = 1.0 + self.tolerance / 4
        return min(max(guess, low * margin), high / margin)
