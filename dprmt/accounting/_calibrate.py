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
_COARSE = 0.05  # tolerance of the answers of a first search
_MOST_ROUGH, _NEAR = 8, 0.03


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

    def epsilon(noise_multiplier: float, within: float = 1e-3) -> float:
        return mechanism(noise_multiplier).epsilon(steps, delta, tolerance=within).upper

    search = _Search(target, tolerance)
    near = search.approach(lambda at: epsilon(at, _COARSE), _gaussian_guess(target, delta, rate, steps))
    return search.smallest_sufficient(epsilon, near)


def _gaussian_guess(target: float, delta: float, rate: float, steps: int) -> float:
    """The noise multiplier by the central limit theorem and Chernoff's bound, for many steps: only where to start."""
    log = -math.log(delta)
    shift = math.sqrt(2 * (target + log)) - math.sqrt(2 * log)
    guess = 1.0 / math.sqrt(math.log1p((shift / rate) ** 2 / steps))
    return min(max(guess, 0.1), _LARGEST / 10)


class _Search:
    """The smallest noise multiplier that suffices, up to a relative ``tolerance``."""

    def __init__(self, target: float, tolerance: float) -> None:
        self.target, self.tolerance = target, tolerance
        self.slope = 1.0  # -d log ε / d log σ
        self.low = self.high = 0.0  # 0: not known yet
        self.at_low = self.at_high = math.nan

    def approach(self, epsilon: Callable[[float], float], at: float) -> float:
        """A noise multiplier that nearly meets the target, by a few steps of the secant method; promises nothing."""
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
        """From a start to where the slope leads; then a little past that, ever farther, to the other side."""
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
        """Where the slope leads from a point, at most to a quarter or four times of it."""
        if not math.isfinite(value):
            return 4.0 * at
        if value <= 0.0:
            return at / 4.0
        share = math.log(value / self.target) / self.slope
        return at * math.exp(min(max(share, -math.log(4.0)), math.log(4.0)))

    def _learn(self, before: float, value_before: float, at: float, value: float) -> None:
        """The slope between two points far enough apart."""
        if math.isfinite(value_before) and value_before > 0.0 < value < math.inf and abs(at / before - 1.0) > 1e-3:
            self.slope = min(max(math.log(value_before / value) / math.log(at / before), 0.3), 5.0)

    def _check_range(self, at: float) -> None:
        if at > _LARGEST and not self.high:
            raise ParameterError("target_epsilon", self.target, f"reachable with a noise multiplier <= {_LARGEST:g}")
        if at < _SMALLEST and not self.low:
            allowed = f"so small that it needs a noise multiplier >= {_SMALLEST}"
            raise ParameterError("target_epsilon", self.target, allowed)

    def _inside(self, bisect: bool) -> float:
        """A point inside the bracket, a little to the private side of the interpolated root."""
        low, high = self.low, self.high
        if bisect or not (math.isfinite(self.at_low) and self.at_high > 0):
            return math.sqrt(low * high)
        share = math.log(self.at_low / self.target) / math.log(self.at_low / self.at_high)
        guess = low * (high / low) ** share * (1.0 + self.tolerance / 3)
        margin = 1.0 + self.tolerance / 4
        return min(max(guess, low * margin), high / margin)
