r"""The smaller of two curves that bound one step with secret probes, threshold by threshold.

The convex majorant (C3) serves where the bulk of the squared-norm ratio's law decides, the envelope's law (C8) in
the tail of few probes. The minimum of two concave ROC curves is concave: (C9) of
``docs/theory/randomized_clipping.md``.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dprmt.accounting.basics import Array
from dprmt.accounting.pairs._cells import LossCells
from dprmt.accounting.pairs._public_pair import log_shift_ratio
from dprmt.accounting.pairs._secret_upper_pair import SecretUpperPair, cells_between

_COARSE, _FINE = 24, 160  # thresholds at which the curves are compared
_LOWEST = -40.0
_WORTH = 1e-3  # a smaller difference, relative, is no reason to switch
_MOST_STEPS = 60
_CLOSE = 1e-12  # relative; what lies between is given the larger bound
_LARGE_RATE = 0.9  # else the loss of adding a sample is bounded, and no switch where it is largest pays


@dataclass(frozen=True)
class SmallerPair:
    """A pair whose curve is that of one upper pair or of another, the smaller one, between ``switches``.

    ``stretches``: the pairs in the order of their thresholds.
    ``switches``: brackets of the thresholds where the next one becomes the smaller, to the last digits.
    ``last``: larger thresholds count as this one: all beyond it is one outcome.
    """

    stretches: tuple[SecretUpperPair, ...]
    switches: tuple[tuple[float, float], ...]
    last: float
    slack: float = 0.0

    def loss_range(self, tail: float) -> tuple[float, float]:
        """As in :class:`SecretUpperPair`."""
        low = min(pair.loss_range(tail)[0] for pair in self.stretches)
        pair = self.stretches[-1]
        ratio = float(pair.log_ratio(np.array([self.last]))[0][0])  # all beyond is one outcome
        high = float(np.logaddexp(np.log1p(-q), np.log(q) + ratio)) if (q := pair.sample_rate) < 1.0 else ratio
        return low, min(pair.loss_range(tail)[1], high)

    def cells(self, nodes: Array) -> LossCells:
        """Masses between increasing loss nodes; see :meth:`SecretUpperPair.cells`."""
        rate = self.stretches[0].sample_rate
        first, last = self._places(log_shift_ratio(nodes, rate))
        t, miss = np.full(nodes.size, -np.inf), np.zeros(nodes.size)
        curve, rest = np.ones(nodes.size), np.zeros(nodes.size)
        for i, pair in enumerate(self.stretches):
            here = slice(first[i], last[i])
            t[here], miss[here], curve[here], rest[here] = self._in_stretch(pair, nodes[here], self._ends(i))
        for i, (before, after) in enumerate(self.switches):
            gap = slice(last[i], first[i + 1])
            larger = self.stretches[i].capped_curve(np.array([before]), self.last)
            t[gap], curve[gap], rest[gap] = after, larger[0], larger[1]
        return cells_between(nodes, t, miss, curve, rest, rate)

    def _places(self, target: Array) -> tuple[list[int], list[int]]:
        """Where the nodes of each stretch begin and end, given the log likelihood ratios that they ask for."""
        first, last = [int(np.count_nonzero(np.isneginf(target)))], []
        for i, (before, after) in enumerate(self.switches):
            last.append(max(self._place(target, self.stretches[i], before), first[i]))
            first.append(max(self._place(target, self.stretches[i + 1], after), last[i]))
        return first, [*last, target.size]

    def _place(self, target: Array, pair: SecretUpperPair, at: float) -> int:
        """How many nodes have a smaller log likelihood ratio than a pair at a threshold."""
        if pair.is_capped(at, self.last):
            return 0
        return int(np.searchsorted(target, float(pair.log_ratio(np.array([at]))[0][0])))

    def _ends(self, i: int) -> tuple[float, float]:
        start = self.switches[i - 1][1] if i > 0 else -np.inf
        return start, self.switches[i][0] if i < len(self.switches) else self.last

    def _in_stretch(self, pair: SecretUpperPair, nodes: Array, ends: tuple[float, float]) -> tuple[Array, ...]:
        """Thresholds of the nodes that one pair is responsible for, what they miss, and the curve from both sides."""
        if nodes.size == 0:
            return nodes, nodes, nodes, nodes
        found, miss = pair.thresholds(nodes, self.last)
        t = np.clip(found, *ends)
        return t, miss, *pair.capped_curve(t, self.last)


def smaller_of(majorant: SecretUpperPair, law: SecretUpperPair, deciding: float) -> SecretUpperPair | SmallerPair:
    """The smaller curve, or the majorant alone where the law's is never much smaller.

    ``deciding``: a probability; where curves are far below it, which one is smaller does not matter.
    """
    last = law.last_threshold(1e-3 * deciding)
    both = _Both(majorant, law, last)
    low = _LOWEST if majorant.sample_rate > _LARGE_RATE else 0.0
    grid = np.sinh(np.linspace(np.arcsinh(low), np.arcsinh(last), _COARSE))
    if not np.any(both.gains(grid, 0.1 * deciding) > _WORTH):
        return majorant
    grid = np.sinh(np.linspace(np.arcsinh(low), np.arcsinh(last), _FINE))
    grid = grid[[not law.is_capped(t, last) for t in grid]]
    by_law = _runs(both.gains(grid, 0.0))
    changes = np.flatnonzero(by_law[1:] != by_law[:-1])
    switches = tuple(both.crossing(float(grid[i]), float(grid[i + 1])) for i in changes)
    stretches = [law if by_law[i] else majorant for i in (*changes, -1)]
    return SmallerPair(tuple(stretches), switches, last)


def _runs(gain: Array) -> Array:
    """Where to take the law: runs of points at which it is smaller, somewhere by much."""
    smaller = gain > 0.0
    run = np.cumsum(np.append(0, smaller[1:] != smaller[:-1]))
    worth = np.zeros(run[-1] + 1, dtype=bool)
    np.logical_or.at(worth, run, gain > _WORTH)
    value: Array = smaller & worth[run]
    return value


@dataclass(frozen=True)
class _Both:
    """Both curves, for thresholds up to ``last``."""

    majorant: SecretUpperPair
    law: SecretUpperPair
    last: float

    def gains(self, t: Array, least: float) -> Array:
        """How much smaller the law's curve is, relative to it; 0 where it or its complement is below ``least``."""
        (a, beside_a), (b, beside_b) = (pair.capped_curve(t, self.last) for pair in (self.majorant, self.law))
        difference = np.where(b < 0.5, a - b, beside_b - beside_a)
        scale = np.minimum(b, beside_b)
        with np.errstate(divide="ignore", invalid="ignore"):
            gain: Array = np.where(scale > least, difference / scale, 0.0)
        return gain

    def crossing(self, low: float, high: float) -> tuple[float, float]:
        """A bracket of the threshold between where both curves meet, by regula falsi ("Illinois")."""
        at_low, at_high = (float(gain) for gain in self.gains(np.array([low, high]), 0.0))
        by_law, weight_low, weight_high = at_low > 0.0, at_low, at_high
        for _ in range(_MOST_STEPS):
            if high - low <= _CLOSE * max(abs(high), 1.0):
                break
            middle = (low * weight_high - high * weight_low) / (weight_high - weight_low)
            margin = _CLOSE / 4 * max(abs(high), 1.0)
            middle = min(max(middle, low + margin), high - margin)
            found = float(self.gains(np.array([middle]), 0.0)[0])
            if (found > 0.0) == by_law:
                low, weight_low, weight_high = middle, found, weight_high / 2
            else:
                high, weight_high, weight_low = middle, found, weight_low / 2
        return low, high
