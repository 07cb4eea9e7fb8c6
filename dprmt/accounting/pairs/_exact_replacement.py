r"""One step with exact norms in which several samples are sampled independently, or samples are replaced.

P is Σ_j Bin(m, q)(j) N(j/σ, 1) against Q = N(0, 1), or, for replacement, against the mirror image of P. The loss
increases with the outcome: (N1) of ``docs/theory/neighbours.md``.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from scipy.special import ndtri

from dprmt.accounting.basics._numbers import Array
from dprmt.accounting.pairs._pairs import BEYOND, LossCells, cells_with_misses, interval_masses, inverse, row_blocks


@dataclass(frozen=True)
class SubsampledMixture:
    """The pair of a step for ``size`` samples, absent or replaced in the neighbour.

    ``is_charged``: whether what the inversion of the loss misses is charged to an infinite loss (C7): from above only.
    """

    noise_multiplier: float
    sample_rate: float
    size: int
    is_replacement: bool
    is_charged: bool = True
    slack: float = 0.0

    @cached_property
    def _log_weights(self) -> Array:
        return log_inclusion_weights(self.size, self.sample_rate)

    @cached_property
    def _means(self) -> Array:
        return np.arange(self.size + 1, dtype=np.int64) / self.noise_multiplier

    def loss_range(self, tail: float) -> tuple[float, float]:
        """Return an interval outside which P has mass at most ``tail`` above and Q at most ``tail`` below."""
        with np.errstate(divide="ignore", over="ignore"):
            share = np.minimum(tail / (self._means.size * np.exp(self._log_weights)), 0.5)
        last = float(np.max(self._means - ndtri(share)))
        high = float(self._loss(np.array([last]))[0][0])
        if self.is_replacement:
            return -high, high
        if self.sample_rate < 1.0:
            return self.size * math.log1p(-self.sample_rate), high
        return float(self._loss(ndtri(np.array([tail])))[0][0]), high

    def _loss(self, x: Array) -> tuple[Array, Array]:
        """Return the loss of an outcome, and its derivative."""
        value, slope = self._log_ratio(x)
        if self.is_replacement:
            other, falling = self._log_ratio(-x)
            value, slope = value - other, slope + falling
        return value, slope

    def _log_ratio(self, x: Array) -> tuple[Array, Array]:
        """Log of P's density over N(0, 1)'s, and its derivative."""
        value, slope = np.empty(x.size), np.empty(x.size)
        for rows in row_blocks(x.size):
            exponent = self._means * x[rows, None] - self._means**2 / 2 + self._log_weights
            peak = exponent.max(axis=1)
            each = np.exp(exponent - peak[:, None])
            total = each.sum(axis=1)
            value[rows], slope[rows] = np.log(total) + peak, each @ self._means / total
        return value, slope

    def thresholds(self, nodes: Array) -> tuple[Array, Array]:
        """Return the outcome at which the loss reaches each node, and by how much the loss misses the node there."""
        if self.is_replacement and self.size == 1:
            mean = self._means[1:]
            return replacement_thresholds(nodes, mean, self.sample_rate), np.zeros(nodes.size)
        t, miss = inverse(self._loss, *self._table, nodes)
        return np.maximum.accumulate(t), miss if self.is_charged else np.zeros(nodes.size)

    @cached_property
    def _table(self) -> tuple[Array, Array]:
        """Outcomes beyond which there is no mass, and their losses."""
        last = float(self._means[-1]) + BEYOND
        first = -last if self.is_replacement else -BEYOND
        grid = np.linspace(first, last, math.ceil(20 * (last - first)) + 1)
        return grid, np.maximum.accumulate(self._loss(grid)[0])

    def cells(self, nodes: Array) -> LossCells:
        """Return the masses between increasing loss nodes."""
        t, miss = self.thresholds(nodes)
        ends = np.concatenate([[-np.inf], t, [np.inf]])
        present = self._masses(ends)
        absent = self._masses(-ends[::-1])[::-1] if self.is_replacement else interval_masses(ends)
        return cells_with_misses(nodes, present, absent, miss)

    def _masses(self, ends: Array) -> Array:
        """Compute P's masses between outcomes."""
        weights, masses = np.exp(self._log_weights), np.empty(ends.size - 1)
        for rows in row_blocks(masses.size):
            masses[rows] = interval_masses(ends[rows.start : rows.stop + 1, None] - self._means) @ weights
        return masses


def log_inclusion_weights(size: int, sample_rate: float) -> Array:
    """Return logarithms of Bin(m, q)(j)."""
    m, q = size, sample_rate
    log_weight = [j * math.log(q) + (m - j) * math.log1p(-q) if q < 1.0 else -math.inf for j in range(m)]
    return np.array([math.log(math.comb(m, j)) + log_weight[j] for j in range(m)] + [m * math.log(q)])


def replacement_thresholds(loss: Array, shift: Array, sample_rate: float) -> Array:
    """Find the outcomes of a loss between (1-q)N(0,1) + qN(μ,1) and its mirror image.

    Solved for e^{μx}, a quadratic equation: μx = l/2 + arsinh((1-q)/q · e^{μ²/2} · sinh(l/2)).
    """
    q, half = sample_rate, np.abs(loss) / 2
    if q == 1.0:
        return np.asarray(loss / 2 / shift)
    with np.errstate(divide="ignore"):
        log_sinh = half + np.log(-np.expm1(-2 * half)) - math.log(2.0)
    log_y = math.log1p(-q) - math.log(q) + shift**2 / 2 + log_sinh
    arsinh = np.where(log_y > 20.0, log_y + math.log(2.0), np.arcsinh(np.exp(np.minimum(log_y, 20.0))))
    return np.asarray(np.sign(loss) * (half + arsinh) / shift)
