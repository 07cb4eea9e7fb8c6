"""The least noise that meets a privacy target, always on the private side."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any, cast, overload

from scipy.special import ndtri

from dprmt._validation import ParameterError, check_real
from dprmt.accounting.basics._numbers import LEAST_DELTA
from dprmt.accounting.mechanisms._composition import Composition, Fixed, compose
from dprmt.accounting.mechanisms._dpsgd import DPSGD
from dprmt.accounting.mechanisms._releases import Release

_SMALLEST, _LARGEST = 1e-2, 1e6  # noise multipliers


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
    if not isinstance(run, DPSGD | Composition):
        raise ParameterError("run", run, "a DPSGD, with steps or epochs, or a composition of such")
    whole = cast("Composition", run.run(steps=steps, epochs=epochs))
    for mechanism, _ in whole.phases:
        if not isinstance(mechanism, DPSGD | Release):
            raise ParameterError("run", mechanism, "a composition whose phases are all DPSGD, and releases")
    if all(isinstance(mechanism, Release) for mechanism, _ in whole.free_phases()):
        raise ParameterError("run", run, "a composition with a phase of DPSGD that is not fixed")
    found = _calibrated(whole, *target, tolerance)
    return found if isinstance(run, Composition) else found.phases[0][0]


_Measure = Callable[[Composition], float]


def _wanted(
    epsilon: float | None, delta: float | None, advantage: float | None, power: float | None, level: float | None
) -> tuple[str, float, _Measure, float]:
    """Return the name and value of the target, the measure that it bounds, and a Gaussian mechanism's μ near it."""
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
        at = check_real("delta", delta, low=LEAST_DELTA, high=1.0, high_open=True)
        mu = math.sqrt(2 * (wanted - math.log(at))) - math.sqrt(-2 * math.log(at))
        return "target_epsilon", wanted, lambda run: run.epsilon(at).upper, mu
    if advantage is not None:
        wanted = check_real("target_advantage", advantage, low=0.0, high=1.0, low_open=True, high_open=True)
        return "target_advantage", wanted, lambda run: run.advantage().upper, 2.0 * float(ndtri((1.0 + wanted) / 2.0))
    at = check_real("false_positive_rate", level, low=0.0, high=1.0, low_open=True, high_open=True)
    wanted = check_real("target_true_positive_rate", power, low=at, high=1.0, low_open=True, high_open=True)
    mu = float(ndtri(wanted) - ndtri(at))
    return "target_true_positive_rate", wanted, lambda run: run.true_positive_rate(at).upper, mu


def _calibrated(run: Composition, name: str, wanted: float, measure: _Measure, mu: float, tolerance: float) -> Any:
    phases, others = _apart(run)
    least = min(mechanism.noise_multiplier for mechanism, _ in phases)

    def at(noise_multiplier: float) -> Composition:
        scaled = [
            (replace(mechanism, noise_multiplier=mechanism.noise_multiplier / least * noise_multiplier), steps)
            for mechanism, steps in phases
        ]
        return Composition(scaled + others)

    if others and not measure(Composition(others)) <= wanted:
        raise ParameterError(name, wanted, "above the cost of releases and fixed phases alone")
    # For many steps, by the central limit theorem: only where to start.
    rates = [steps * (one.sampling.rate * least / one.noise_multiplier) ** 2 for one, steps in phases]
    start = 1.0 / math.sqrt(math.log1p(mu**2 / sum(rates)))
    found = _least_sufficient(lambda sigma: measure(at(sigma)), wanted, start, (_SMALLEST, _LARGEST), tolerance)
    if found > _LARGEST:
        raise ParameterError(name, wanted, f"reachable with a noise multiplier <= {_LARGEST:g}")
    if found <= _SMALLEST:
        raise ParameterError(name, wanted, f"so small that it needs a noise multiplier >= {_SMALLEST}")
    return at(found)


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
    delta = check_real("delta", delta, low=LEAST_DELTA, high=1.0, high_open=True)
    free, others = ([(run, 1)], []) if isinstance(run, DPSGD) else _apart(run)
    if len(free) != 1 or not isinstance(free[0][0], DPSGD):
        raise ParameterError("run", run, "a DPSGD, or a composition with one phase of DPSGD that is not fixed")
    if others and compose(others).epsilon(delta).upper > epsilon:
        raise ParameterError("epsilon", epsilon, "above the cost of releases and fixed phases alone")
    mechanism: DPSGD = free[0][0]
    unit = mechanism.steps_per_epoch or 1

    @cache
    def spent(count: int) -> float:
        return compose([*others, (mechanism, count * unit)]).epsilon(delta).upper

    found = _least_sufficient(lambda x: spent(round(1.0 / x)), epsilon, 0.01, (unit * 1e-9, 1.0), 1e-4)
    return round(1.0 / found) * unit if found <= 1.0 else 0


def _least_sufficient(
    value: Callable[[float], float], target: float, at: float, limits: tuple[float, float], tolerance: float
) -> float:
    """Return the least x that is known to bring a falling value down to the target, up to a relative ``tolerance``.

    Follows the slope in logarithms a little past the root, farther each time, until there is an x on either side; then
    regula falsi, and every third time the middle. ∞ if no x within the limits suffices.
    """
    (low, too_much), (high, enough) = (0.0, math.inf), (math.inf, 0.0)
    margin, slope, before = tolerance / 3, 1.0, (0.0, 0.0)
    at = min(max(at, limits[0]), limits[1])
    for turn in itertools.count():
        now = value(at)
        if now <= target:
            high, enough = at, now
        else:
            low, too_much = at, now
        if high <= limits[0] or low >= limits[1] or high <= low * (1.0 + tolerance):
            return high
        if low and high < math.inf:
            share, nudge = 0.5, 1.0
            if turn % 3 != 2 and enough > 0.0 and too_much < math.inf:
                share = math.log(too_much / target) / math.log(too_much / enough)
                nudge = 1.0 + tolerance / 3
            inside = 1.0 + tolerance / 4
            at = min(max(low * (high / low) ** share * nudge, low * inside), high / inside)
            continue
        last, value_there = before
        if last and min(now, value_there) > 0.0 and max(now, value_there) < math.inf and abs(at / last - 1.0) > 1e-3:
            slope = min(max(math.log(value_there / now) / math.log(at / last), 0.05), 5.0)
        far = math.inf if now == math.inf else math.log(now / target) / slope if now > 0.0 else -math.inf
        before, root = (at, now), at * min(max(math.exp(min(far, 2.0)), 0.25), 4.0)
        at = max(root, low) * (1.0 + margin) if low else min(root, high) / (1.0 + margin)
        at, margin = min(max(at, limits[0]), limits[1]), 4.0 * margin
    raise AssertionError
