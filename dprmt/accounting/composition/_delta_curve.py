"""δ at an ε, and ε at a δ, from a composed loss: from above and from below."""

from __future__ import annotations

import numpy as np

from dprmt.accounting.basics import Array
from dprmt.accounting.composition._composed_loss import ComposedLoss, log_kappa


class DeltaCurve:
    """δ(ε) on the grid of a composed loss, with its error bound, relative to a reference loss."""

    def __init__(self, loss: ComposedLoss, around: float) -> None:
        keep = loss.tilt * (loss.losses - around) > -80.0
        keep[-1] = True
        self.nodes = loss.losses[keep]
        offset = self.nodes - around
        self.log_unit = loss.log_scale - loss.tilt * around
        growth = np.exp(np.minimum(-loss.tilt * offset, 700.0))
        weight = loss.mass[keep] * growth
        # For ε just left of node j: δ(ε) = e^{log_unit} · (mass_above[j] - e^{ε - nodes[j]} · discounted[j]).
        self.mass_above = _suffix_sums(weight)
        self.discounted = discounted_suffix_sums(weight, self.nodes)
        kappa = float(np.exp(log_kappa(np.asarray(loss.tilt))))
        self.error = loss.error * kappa * growth + np.finfo(np.float64).eps * loss.losses.size * self.mass_above
        self.infinite = loss.infinite

    def finite_part(self, index: int, epsilon: float) -> float:
        """δ(ε) in units of e^{log_unit}, for ε in [nodes[index - 1], nodes[index]]."""
        return float(self.mass_above[index] - np.exp(epsilon - self.nodes[index]) * self.discounted[index])

    def delta_bounds(self, epsilon: float) -> tuple[float, float]:
        """Lower and upper bound of the discrete loss's δ(ε)."""
        index = int(np.searchsorted(self.nodes, epsilon, side="left"))
        if index == self.nodes.size:
            return 0.0, min(_scaled(float(self.error[-1]), self.log_unit) + self.infinite, 1.0)
        if index == 0 and self.nodes[0] > epsilon:
            return _scaled(float(self._at_nodes()[0] - self.error[0]), self.log_unit), 1.0
        value, error = max(self.finite_part(index, epsilon), 0.0), float(self.error[max(index - 1, 0)])
        low = _scaled(value - error, self.log_unit)
        high = _scaled(value + error, self.log_unit) + self.infinite
        return low, min(high, 1.0)

    def epsilon_above(self, delta: float) -> float:
        """An ε ≥ 0 with δ(ε) ≤ ``delta`` for certain; ∞ if none is seen."""
        if delta <= self.infinite:
            return float("inf")
        target = _relative(delta - self.infinite, self.log_unit)
        at_nodes = self._at_nodes()
        enough = np.flatnonzero(at_nodes + self.error <= target)
        if enough.size == 0:
            return float("inf")
        index = int(enough[0])
        epsilon = float(self.nodes[index])
        if index > 0:
            room = self.mass_above[index] + self.error[index - 1] - target
            epsilon = min(epsilon, self._crossing(index, room))
        return max(epsilon, 0.0)

    def epsilon_below(self, delta: float) -> float:
        """An ε ≥ 0 with δ(ε) ≥ ``delta`` for certain, or 0."""
        target = _relative(delta, self.log_unit)
        too_much = np.flatnonzero(self._at_nodes() - self.error >= target)
        if too_much.size == 0:
            return 0.0
        index = int(too_much[-1])
        epsilon = float(self.nodes[index])
        if index + 1 < self.nodes.size:
            room = self.mass_above[index + 1] - self.error[index] - target
            epsilon = max(epsilon, min(self._crossing(index + 1, room), float(self.nodes[index + 1])))
        return max(epsilon, 0.0)

    def _at_nodes(self) -> Array:
        value: Array = self.mass_above - self.discounted
        return value

    def _crossing(self, index: int, room: float) -> float:
        """The ε in the segment left of ``nodes[index]`` where e^{ε}·discounted equals ``room``."""
        left, right = float(self.nodes[index - 1]), float(self.nodes[index])
        if room <= 0:
            return left
        if self.discounted[index] <= 0:
            return right
        return min(max(right + float(np.log(room) - np.log(self.discounted[index])), left), right)


def _suffix_sums(values: Array) -> Array:
    sums: Array = np.cumsum(values[..., ::-1], axis=-1)[..., ::-1]
    return sums


def discounted_suffix_sums(values: Array, nodes: Array) -> Array:
    """Σ_{i ≥ j} values[..., i] · e^{-(nodes[i] - nodes[j])} on equidistant nodes."""
    # Block by block, so that no exponential overflows; where one step discounts below rounding, nothing carries.
    step = float(nodes[1] - nodes[0]) if nodes.size > 1 else 0.0
    if step > 40.0:
        return values
    length = min(int(300.0 / max(step, 1e-300)) + 1, nodes.size)
    growth = np.exp(step * np.arange(length + 1, dtype=np.int64))
    discount = 1.0 / growth
    sums = np.empty_like(values)
    carried = sums[..., 0]
    for stop in range(nodes.size, 0, -length):
        start = max(stop - length, 0)
        size = stop - start
        inner = sums[..., start:stop]
        np.multiply(_suffix_sums(values[..., start:stop] * discount[:size]), growth[:size], out=inner)
        if stop < nodes.size:
            inner += carried[..., None] * discount[size:0:-1]
        carried = sums[..., start]
    return sums


def _scaled(value: float, log_unit: float) -> float:
    if value <= 0:
        return 0.0
    return float(np.exp(min(np.log(value) + log_unit, 0.0)))


def _relative(delta: float, log_unit: float) -> float:
    return float(np.exp(np.clip(np.log(delta) - log_unit, -700.0, 700.0)))
