"""The smallest noise multiplier that meets a privacy target, always on the private side."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from dprmt._validation import ParameterError, check_real
from dprmt.accounting._mechanisms import (
    DPSGD,
    Analysis,
    ProbeSharing,
    RandomizedClipping,
    check_clipping,
    check_sketch,
)
from dprmt.accounting._sampling import Sampling, checked_sample_rate, run_length

_SMALLEST, _LARGEST = 1e-2, 1e6
_COARSE = 0.05  # tolerance of answers far from the target


def calibrate_noise_multiplier(
    target_epsilon: float,
    delta: float,
    sample_rate: float = 0.0,
    steps: int | None = None,
    probes: int | None = None,
    *,
    rank: int | None = None,
    analysis: Analysis = "tight",
    probe_sharing: ProbeSharing = "batch",
    sketch: int | None = None,
    power_iteration: bool = False,
    sampling: Sampling = "poisson",
    steps_per_epoch: int | None = None,
    participations: int = 1,
    epochs: int | None = None,
    tolerance: float = 2e-4,
) -> float:
    """The noise multiplier for a target (ε, δ): a root search that ends on the private side.

    Parameters
    ----------
    target_epsilon : float
        Wanted ε, > 0.
    delta : float
        In [1e-290, 1).
    sample_rate : float
        q in [1e-9, 1]; left out for random allocation.
    steps : int or None
        Number of steps, in [1, 1e9].
    probes : int or None
        k of randomized clipping; ``None`` for exact norms.
    rank, analysis, probe_sharing, sketch, power_iteration
        As in :class:`RandomizedClipping`.
    sampling, steps_per_epoch, participations
        As in :class:`DPSGD`.
    epochs : int or None
        For random allocation, instead of ``steps``.
    tolerance : float
        Largest relative excess of the result over the smallest noise multiplier found sufficient.

    Returns
    -------
    float
        A noise multiplier whose certified upper bound on ε is at most ``target_epsilon``.

    Raises
    ------
    ParameterError
        If an argument lies outside its range, or the target is out of reach of noise multipliers in
        [0.01, 1e6].

    Formal guarantees
    -----------------
    ``epsilon(steps, delta).upper <= target_epsilon`` holds at the returned value, by evaluation there.

    Examples
    --------
    >>> sigma = calibrate_noise_multiplier(2.0, 1e-5, sample_rate=0.01, steps=1000)
    >>> DPSGD(sigma, 0.01).epsilon(1000, 1e-5).upper <= 2.0
    True
    >>> calibrate_noise_multiplier(2.0, 1e-5, sampling="allocation", steps_per_epoch=100, epochs=10) < sigma
    True
    """
    target = check_real("target_epsilon", target_epsilon, low=0.0, low_open=True)
    check_real("delta", delta, low=1e-290, high=1.0, high_open=True)
    rate = checked_sample_rate(sampling, sample_rate, steps_per_epoch, participations)
    steps = run_length(steps, epochs, steps_per_epoch)
    check_real("tolerance", tolerance, low=1e-6, high=1.0)
    if probes is not None:
        check_clipping(probes, rank, analysis, probe_sharing)
    check_sketch(sketch, power_iteration, probes, rank, analysis)

    batches: dict[str, Any] = {
        "sampling": sampling,
        "steps_per_epoch": steps_per_epoch,
        "participations": participations,
    }

    def mechanism(noise_multiplier: float) -> DPSGD | RandomizedClipping:
        if probes is None:
            return DPSGD(noise_multiplier, rate, **batches)
        return RandomizedClipping(
            noise_multiplier, rate, probes, rank, analysis, probe_sharing, sketch, power_iteration, **batches
        )

    def epsilon(noise_multiplier: float) -> float:
        asked = mechanism(noise_multiplier)
        coarse = asked.epsilon(steps, delta, tolerance=_COARSE)
        if coarse.upper <= target or coarse.lower > target:  # a finer answer would not decide otherwise
            return coarse.upper
        return asked.epsilon(steps, delta).upper

    return _smallest_sufficient(epsilon, target, tolerance)


def _smallest_sufficient(epsilon: Callable[[float], float], target: float, tolerance: float) -> float:
    """Bracket by doubling, then shrink the bracket in log σ by safeguarded regula falsi in log ε."""
    low, high = 1.0, 1.0
    at_low = at_high = epsilon(1.0)
    while at_high > target:
        low, at_low = high, at_high
        high *= 2.0 if at_high < 4 * target else 4.0
        if high > _LARGEST:
            raise ParameterError("target_epsilon", target, f"reachable with a noise multiplier <= {_LARGEST:g}")
        at_high = epsilon(high)
    while at_low <= target:
        high, at_high = low, at_low
        low /= 1.5
        if low < _SMALLEST:
            raise ParameterError("target_epsilon", target, f"so small that it needs a noise multiplier >= {_SMALLEST}")
        at_low = epsilon(low)
    for iteration in range(60):
        if high / low <= 1.0 + tolerance:
            break
        middle = _next_guess(low, at_low, high, at_high, target, tolerance, bisect=iteration % 3 == 2)
        value = epsilon(middle)
        if value <= target:
            high, at_high = middle, value
        else:
            low, at_low = middle, value
    return high


def _next_guess(
    low: float, at_low: float, high: float, at_high: float, target: float, tolerance: float, bisect: bool
) -> float:
    """A point inside the bracket, a little to the private side of the interpolated root."""
    if bisect or not (math.isfinite(at_low) and at_high > 0):
        return math.sqrt(low * high)
    share = math.log(at_low / target) / math.log(at_low / at_high)
    guess = low * (high / low) ** share * (1.0 + tolerance / 3)
    margin = 1.0 + tolerance / 4
    return min(max(guess, low * margin), high / margin)
