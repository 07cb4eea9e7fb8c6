"""δ(ε) of a single step, read off its discrete loss: nothing is composed."""

from __future__ import annotations

import math

import numpy as np

from dprmt.accounting.basics import Array, Side
from dprmt.accounting.pairs import LossPMF

_EPS = float(np.finfo(np.float64).eps)
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


def rounded(mass: Array, side: Side) -> Array:
    """Masses with the rounding of the tails that they are differences of charged (F1)."""
    charge = 64 * _EPS * np.cumsum(mass[::-1])[::-1]
    return mass + charge if side == "upper" else np.maximum(mass - charge, 0.0)


def discounted_sums(mass: Array, nodes: Array) -> Array:
    """Σ_{i ≥ j} mass_i e^{l_j - l_i} at each node, on any nodes."""
    factors = np.exp(-np.diff(nodes)).tolist()
    sums = mass.tolist()
    for j in range(len(sums) - 2, -1, -1):
        sums[j] += factors[j] * sums[j + 1]
    return np.array(sums)


def one_step_scale(rough: LossPMF, small: float) -> float:
    """The loss at which one step's δ is about ``small``, or where most of it lies."""
    deviation = math.sqrt(float(rough.mass @ rough.losses**2) / max(float(rough.mass.sum()), 1e-300))
    delta = np.cumsum(rough.mass[::-1])[::-1] - discounted_sums(rough.mass, rough.losses)
    enough = np.flatnonzero((rough.losses > 0) & (delta <= small))
    found = float(rough.losses[enough[0] if enough.size else -1])
    return max(found if found > 1e-3 * deviation else deviation, 4 * rough.mesh)


def one_step_delta(law: LossPMF, epsilon: float) -> float:
    """δ(ε) of one step."""
    beyond = law.losses > epsilon
    return float(law.mass[beyond] @ -np.expm1(epsilon - law.losses[beyond])) + law.infinite
