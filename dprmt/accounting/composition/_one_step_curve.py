"""δ(ε) of a single step, read off its discrete loss: nothing is composed."""

from __future__ import annotations

import math

import numpy as np

from dprmt.accounting.basics import Side
from dprmt.accounting.composition._split_curve import rounded
from dprmt.accounting.composition._split_plan import discounted_sums
from dprmt.accounting.pairs import LossPMF

_SUMS = 1e-12  # relative, of sums of some thousand positive terms


class OneStepCurve:
    """The same questions as to a :class:`DeltaCurve`; the side that was not asked for is trivial."""

    def __init__(self, pmf: LossPMF, side: Side) -> None:
        self.side, self.nodes = side, pmf.losses
        mass = rounded(pmf.mass, side) * (1 + _SUMS if side == "upper" else 1 - _SUMS)
        self.infinite = pmf.infinite
        self.discounted = discounted_sums(mass, self.nodes)
        # Σ mass_i (1 - e^{l_j - l_i}) as a sum of positive terms: a heavy node below would swallow a light tail.
        rises = self.discounted[1:] * -np.expm1(-np.diff(self.nodes))
        self.at_nodes = np.append(np.cumsum(rises[::-1])[::-1], 0.0)

    def delta_bounds(self, epsilon: float) -> tuple[float, float]:
        """As :meth:`DeltaCurve.delta_bounds`."""
        index = int(np.searchsorted(self.nodes, epsilon, side="left"))
        value = 0.0
        if index < self.nodes.size:
            value = float(self.at_nodes[index] - math.expm1(epsilon - self.nodes[index]) * self.discounted[index])
        if self.side == "upper":
            return 0.0, min(max(value, 0.0) + self.infinite, 1.0)
        return min(max(value, 0.0), 1.0), 1.0

    def epsilon_above(self, delta: float) -> float:
        """As :meth:`DeltaCurve.epsilon_above`."""
        return self._crossing(delta - self.infinite) if delta > self.infinite else math.inf

    def epsilon_below(self, delta: float) -> float:
        """As :meth:`DeltaCurve.epsilon_below`."""
        return self._crossing(delta)

    def _crossing(self, delta: float) -> float:
        index = int(np.argmax(self.at_nodes <= delta))  # 0 at the last node, so there is one
        if index == 0:
            return 0.0
        fallen = (delta - float(self.at_nodes[index])) / float(self.discounted[index])
        step = math.log1p(-fallen) if fallen < 1.0 else -math.inf
        return max(float(self.nodes[index]) + step, float(self.nodes[index - 1]), 0.0)
