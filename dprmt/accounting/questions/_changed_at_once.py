r"""Bounds for several simultaneous changes, or for replacement, from two certified curves alone: (N6).

b(α), the largest power of a test of level α, of one change bounds the level of the next, so b∘b bounds both. Curves
are kept as the δ(ε) of lines e^ε·α + δ that lie above b. See ``docs/theory/neighbours.md``.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from dprmt.accounting.basics import Array

_POINTS = 401


@dataclass(frozen=True)
class Lines:
    """Lines above a power function b: b(α) ≤ δ + e^ε·α for each ``epsilon`` (increasing) and its ``delta``."""

    epsilon: Array
    delta: Array

    def at(self, epsilon: Array) -> Array:
        """Return a δ for other slopes: the least one is convex in the slope, decreasing, and at most 1."""
        first, last = float(self.epsilon[0]), float(self.epsilon[-1])
        right = np.clip(np.searchsorted(self.epsilon, epsilon), 1, self.epsilon.size - 1)
        start, stop = self.epsilon[right - 1], self.epsilon[right]
        reached = np.clip(epsilon, start, stop)
        share = np.exp(reached - stop) * np.expm1(start - reached) / np.expm1(start - stop)  # neither overflows
        share = np.clip(share, 0.0, 1.0)
        between = (1.0 - share) * self.delta[right - 1] + share * self.delta[right]
        return np.where(epsilon < first, 1.0, np.where(epsilon > last, self.delta[-1], between))

    def after(self, inner: Lines) -> Lines:
        """Return lines above this function of the inner one."""
        first, last = self.epsilon[0] + inner.epsilon[0], self.epsilon[-1] + inner.epsilon[-1]
        epsilon = np.linspace(first, last, 2 * _POINTS - 1)
        delta = np.ones(epsilon.size)
        with np.errstate(over="ignore"):
            for slope, height in zip(self.epsilon, self.delta, strict=True):
                before = inner.at(epsilon - slope)
                delta = np.minimum(delta, height + np.where(before > 0.0, np.exp(slope), 0.0) * before)
        return Lines(epsilon, np.minimum.accumulate(delta))

    def epsilon_at(self, delta: float) -> float:
        """Return the least ε ≥ 0 whose line is known to start at most at ``delta``; ∞ if there is none."""
        enough = np.flatnonzero(self.delta <= delta)
        if not enough.size:
            return math.inf
        j = int(enough[0])
        if j == 0:
            return max(float(self.epsilon[0]), 0.0)
        share = float((self.delta[j - 1] - delta) / (self.delta[j - 1] - self.delta[j]))
        gap = float(self.epsilon[j] - self.epsilon[j - 1])
        left = gap + math.log(share + (1.0 - share) * math.exp(-gap)) if share > 0.0 else 0.0
        return max(float(self.epsilon[j - 1]) + min(left + 1e-12 * gap, gap), 0.0)


def lines_of(epsilon: Array, delta: Array, other: Array) -> Lines:
    """Build lines from δ at increasing ``epsilon`` ≥ 0 for a pair and, ``other``, for the exchanged one."""
    falling = np.exp(-epsilon[:0:-1])
    left = 1.0 - falling + falling * other[:0:-1]
    return Lines(np.concatenate([-epsilon[:0:-1], epsilon]), np.minimum.accumulate(np.concatenate([left, delta])))


def repeated(lines: Lines, times: int) -> Lines:
    """Compute b∘…∘b."""
    result, power = None, lines
    while times:
        if times & 1:
            result = power if result is None else result.after(power)
        times >>= 1
        power = power.after(power) if times else power
    assert result is not None
    return result


def changed_at_once(remove: Lines, add: Lines, size: int, is_replacement: bool) -> Lines:
    """Return lines for ``size`` samples that are removed, or replaced: then all leave first, and others come."""
    removed = repeated(remove, size)
    return removed.after(repeated(add, size)) if is_replacement else removed
