r"""One step with secret probes in which a sample is replaced: equation (N2) of ``docs/theory/neighbours.md``.

Worst are opposite gradients; then tests are half-lines, whose power and level follow from the one curve
S(t) = sup E Φ(Z/σ - t) that removing a sample needs as well.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from dprmt.accounting.basics._numbers import Array
from dprmt.accounting.pairs._pairs import (
    BEYOND,
    LARGE_LOSS,
    LossCells,
    cells_with_misses,
    interval_masses,
    inverse,
    masses_between,
)
from dprmt.accounting.pairs._secret_pair import (
    FAR,
    SecretLowerPair,
    SecretUpperPair,
    merged_cells,
)


@dataclass(frozen=True)
class SecretReplacement:
    """A pair that dominates every two spectra: power (1-q)Φ(-t) + qS(t) at level (1-q)Φ(-t) + q(1 - S(-t))."""

    one: SecretUpperPair
    slack: float = 0.0

    def loss_range(self, tail: float) -> tuple[float, float]:
        """Return an interval outside which P has mass at most ``tail`` above and Q at most ``tail`` below."""
        high = float(self._loss(np.array([max(self.one.last_threshold(tail), 1.0)]))[0][0])
        return -high, high

    def _loss(self, t: Array) -> tuple[Array, Array]:
        """Return the loss at thresholds, and its derivative."""
        value, slope = self._log_density(t)
        other, falling = self._log_density(-t)
        return value - other, slope + falling

    def _log_density(self, t: Array) -> tuple[Array, Array]:
        """Log of (1-q) + q·r(t) and its derivative, r the likelihood ratio of (C4), which is 0 where S is 1."""
        q = self.one.sample_rate
        log_r, rate = np.full(t.size, -np.inf), np.zeros(t.size)
        free = t > self.one.cap
        log_r[free], rate[free] = self.one.log_ratio(t[free])
        if q == 1.0:
            return np.maximum(log_r, -1e300), rate
        value = np.logaddexp(np.log1p(-q), np.log(q) + log_r)
        return value, rate * np.exp(np.log(q) + log_r - value)

    @cached_property
    def table(self) -> tuple[Array, Array]:
        last = self.one.last
        grid = np.linspace(0.0, 2 * BEYOND, 1601)
        grid = np.append(grid[grid < last], np.geomspace(min(last, 2 * BEYOND), last, int(np.log(last) / 0.01)))
        grid = np.unique(np.append(grid, last))
        return grid, np.maximum.accumulate(self._loss(grid)[0])

    def thresholds(self, nodes: Array) -> tuple[Array, Array]:
        """Return the outcome at which the loss reaches each node, and by how much the loss misses the node there.

        Where the loss steps across a node it does not miss it.
        """
        size, place = np.unique(np.abs(nodes), return_inverse=True)
        t, miss = inverse(self._loss, *self.table, size)
        jump = -self.one.cap  # there the other gradient's density vanishes, or stays: most large nodes lie beyond
        if jump > 0.0:
            before, after = self._loss(np.array([np.nextafter(jump, 0.0), jump]))[0]
            at_jump = (before < size) & (size <= after)
            t[at_jump], miss[at_jump] = jump, 0.0
        t = np.maximum.accumulate(np.clip(t, 0.0, self.one.last))
        return np.copysign(t[place], nodes), miss[place]

    def cells(self, nodes: Array) -> LossCells:
        """Return the masses between increasing loss nodes; what the inversion of the loss misses counts as infinite
        (C7).
        """
        t, miss = self.thresholds(nodes)
        q, plain, lost = self.one.sample_rate, interval_masses(np.concatenate([[-np.inf], t, [np.inf]])), self._lost
        # The lost mass lies beyond every threshold, where it counts as infinite.
        ends = np.concatenate([[-self.one.last], t, [self.one.last]])
        curves = self.one.curve(ends), self.one.curve(-ends)[::-1]
        power, level = (np.maximum(masses_between(*curve)[1:-1], 0.0) for curve in curves)
        cells = cells_with_misses(nodes, (1.0 - q) * plain + q * power, (1.0 - q) * plain + q * level, miss)
        return _with_masses_that_agree(
            replace(cells, q_below=cells.q_below + lost, p_above=cells.p_above + lost), nodes
        )

    @cached_property
    def _lost(self) -> float:
        """Mass that squared-norm ratios below the smallest atom leave beyond every threshold."""
        return self.one.sample_rate * float(self.one.curve(np.array([self.one.last]))[0][0])


def _with_masses_that_agree(cells: LossCells, nodes: Array) -> LossCells:
    """Treat P-mass beyond e^l of a cell's Q-mass, l its right node, as rounding: move it to an infinite loss, and
    Q-mass accordingly.
    """
    # Far out either mass may be a rounding of a number near 1 where the other one is exactly 0. Losses only grow.
    left, right = (np.clip(side, -LARGE_LOSS, LARGE_LOSS) for side in (nodes[:-1], nodes[1:]))
    p = np.where(nodes[1:] < LARGE_LOSS, np.minimum(cells.p, cells.q * np.exp(right)), cells.p)
    q = np.where(nodes[:-1] > -LARGE_LOSS, np.minimum(cells.q, cells.p * np.exp(-left)), cells.q)
    above, below = float((cells.p - p).sum()), float((cells.q - q).sum())
    return replace(cells, p=p, q=q, p_above=cells.p_above + above, q_below=cells.q_below + below)


@dataclass(frozen=True)
class SecretReplacementBelow:
    """A pair that opposite gradients of one spectrum dominate: outcomes between thresholds merged."""

    one: SecretLowerPair
    slack: float = 0.0

    @cached_property
    def _guide(self) -> SecretReplacement:
        return SecretReplacement(self.one.guide)

    def loss_range(self, tail: float) -> tuple[float, float]:
        """Return the range as in :class:`SecretReplacement`."""
        return self._guide.loss_range(tail)

    def cells(self, nodes: Array) -> LossCells:
        """Return the masses between increasing loss nodes, after merging outcomes between thresholds."""
        grid, loss = self._guide.table
        t = np.unique(np.clip(np.copysign(np.interp(np.abs(nodes), loss, grid), nodes), -FAR, FAR))
        q, plain = self.one.sample_rate, interval_masses(np.concatenate([[-np.inf], t, [np.inf]]))
        value, rest = self.one.curve(t)
        mirrored, beside = self.one.curve(-t)
        present = (1.0 - q) * plain + q * masses_between(value, rest)
        absent = (1.0 - q) * plain + q * masses_between(beside, mirrored)
        return merged_cells(nodes, present, np.maximum(absent, 1e-300))
