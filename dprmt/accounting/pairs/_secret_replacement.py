r"""One step with secret probes in which a sample is replaced: equation (N2) of ``docs/theory/neighbours.md``.

Worst are opposite gradients; then tests are half-lines, whose power and level follow from the one curve
S(t) = sup E Φ(Z/σ - t) that removing a sample needs as well.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from dprmt.accounting.basics._numbers import Array
from dprmt.accounting.pairs._pairs import LossCells, interval_masses
from dprmt.accounting.pairs._secret_pair import SecretLowerPair, SecretUpperPair, by_node, merged

_LEAST_GRID = 801
_SPACING = 0.05
_MOST_NEWTON_STEPS, _MOST_HALVINGS = 12, 80
_CLOSE, _NARROW = 1e-12, 4e-16
_BEYOND = 38.0
_FAR = 35.0
_LEAST_MASS = 1e-300
_LARGE_LOSS = 400.0  # cells beyond it are rounded to first order (D1)


@dataclass(frozen=True)
class SecretReplacement:
    """A pair that dominates every two spectra: power (1-q)Φ(-t) + qS(t) at level (1-q)Φ(-t) + q(1 - S(-t))."""

    one: SecretUpperPair
    slack: float = 0.0

    def loss_range(self, tail: float) -> tuple[float, float]:
        """Return an interval outside which P has mass at most ``tail`` above and Q at most ``tail`` below."""
        high = float(self._loss(np.array([max(self.one.last_threshold(tail), 1.0)]))[0][0])
        return -high, high

    @cached_property
    def _last(self) -> float:
        """Thresholds beyond which every sensitivity is plain to see."""
        return float(self.one.shift.max()) + _BEYOND

    def _loss(self, t: Array) -> tuple[Array, Array]:
        """Return the loss at thresholds, and its derivative."""
        value, slope = self._log_density(t)
        other, falling = self._log_density(-t)
        return value - other, slope + falling

    def _log_density(self, t: Array) -> tuple[Array, Array]:
        """Log of (1-q) + q·r(t) and its derivative, r the likelihood ratio of (C4), which is 0 where S is 1."""
        q = self.one.sample_rate
        log_r, rate = np.full(t.size, -np.inf), np.zeros(t.size)
        free = t > self._cap
        log_r[free], rate[free] = self.one.log_ratio(t[free])
        if q == 1.0:
            return np.maximum(log_r, -1e300), rate
        value = np.logaddexp(np.log1p(-q), np.log(q) + log_r)
        return value, rate * np.exp(np.log(q) + log_r - value)

    @cached_property
    def _cap(self) -> float:
        low, high = -self._last, self._last
        if not self.one.is_capped(low, self._last):
            return -np.inf
        for _ in range(_MOST_HALVINGS):
            middle = (low + high) / 2
            low, high = (middle, high) if self.one.is_capped(middle, self._last) else (low, middle)
        return high

    @cached_property
    def _table(self) -> tuple[Array, Array]:
        near = min(self._last, 80.0)
        grid = np.linspace(0.0, near, max(int(near / _SPACING), _LEAST_GRID))
        if self._last > near:
            count = int(np.log(self._last / near) / 0.01) + 2
            grid = np.append(grid, np.geomspace(near, self._last, count)[1:])
        return grid, np.maximum.accumulate(self._loss(grid)[0])

    def thresholds(self, nodes: Array) -> tuple[Array, Array]:
        """Return the outcome at which the loss reaches each node, and by how much the loss misses the node there.

        Where the loss steps across a node it does not miss it.
        """
        grid, table = self._table
        size, place = np.unique(np.abs(nodes), return_inverse=True)
        right = np.searchsorted(table, size)
        inside = (right > 0) & (right < grid.size)
        t, miss = np.where(right == 0, 0.0, self._last), np.zeros(size.size)
        jump = -self._cap  # there the other gradient's density vanishes, or stays: most large nodes lie beyond
        if 0.0 < jump < np.inf:
            before, after = self._loss(np.array([np.nextafter(jump, 0.0), jump]))[0]
            at_jump = (before < size) & (size <= after)
            t[at_jump], miss[at_jump], inside = jump, 0.0, inside & ~at_jump
        low, high = grid[right[inside] - 1], grid[right[inside]]
        t[inside], miss[inside] = self._solved(size[inside], low, high)
        t = np.maximum.accumulate(t)
        return np.copysign(t[place], nodes), miss[place]

    def _solved(self, target: Array, low: Array, high: Array) -> tuple[Array, Array]:
        """Solve by Newton's method between brackets, which get narrower; bisect where it does not converge."""
        low, high, t = low.copy(), high.copy(), (low + high) / 2
        miss, active = np.empty(t.size), np.arange(t.size, dtype=np.int64)
        for again in range(_MOST_HALVINGS):
            value, slope = self._loss(t[active])
            error = value - target[active]
            miss[active] = np.abs(error)
            above = error >= 0.0
            high[active[above]], low[active[~above]] = t[active[above]], t[active[~above]]
            moving = miss[active] > _CLOSE * np.maximum(target[active], 1.0)
            moving &= high[active] - low[active] > _NARROW * np.maximum(high[active], 1.0)
            active, error, slope = active[moving], error[moving], slope[moving]
            if not active.size:
                break
            with np.errstate(divide="ignore", invalid="ignore"):
                step = t[active] - error / slope
            halved = again >= _MOST_NEWTON_STEPS
            good = (step > low[active]) & (step < high[active]) & (not halved)
            t[active] = np.where(good, step, (low[active] + high[active]) / 2)
        jumped = high - low <= 2 * _NARROW * np.maximum(high, 1.0)
        return np.where(jumped, high, t), np.where(jumped, 0.0, miss)

    def cells(self, nodes: Array) -> LossCells:
        """Return the masses between increasing loss nodes; what the inversion of the loss misses counts as infinite
        (C7).
        """
        t, miss = self.thresholds(nodes)
        present, absent = self._masses(np.concatenate([[-np.inf], t, [np.inf]]))
        p, q = present[1:-1], absent[1:-1]
        missed = 2.0 * (miss[1:] ** 2 + miss[:-1] ** 2) / np.diff(nodes)
        cells = LossCells(
            p=p,
            q=q,
            p_below=float(present[0]),
            q_below=float(absent[0] + q @ missed + self._lost),
            p_above=float(present[-1] + p @ missed + self._lost),
            q_above=float(absent[-1]),
        )
        return _with_masses_that_agree(cells, nodes)

    @cached_property
    def _lost(self) -> float:
        """Mass that squared-norm ratios below the smallest atom leave beyond every threshold."""
        return self.one.sample_rate * float(self.one.capped_curve(np.array([self._last]), self._last)[0][0])

    def _masses(self, ends: Array) -> tuple[Array, Array]:
        """Compute P's and Q's masses between outcomes, except for the lost mass."""
        q, plain = self.one.sample_rate, interval_masses(ends)
        t = np.clip(ends, -self._last, self._last)
        value, rest = self.one.capped_curve(t, self._last)
        mirrored, beside = self.one.capped_curve(-t, self._last)
        power = np.where(value[:-1] < 0.5, -np.diff(value), np.diff(rest))
        level = np.where(mirrored[1:] < 0.5, np.diff(mirrored), -np.diff(beside))
        present = (1.0 - q) * plain + q * np.maximum(power, 0.0)
        return present, (1.0 - q) * plain + q * np.maximum(level, 0.0)


def _with_masses_that_agree(cells: LossCells, nodes: Array) -> LossCells:
    """Treat P-mass beyond e^l of a cell's Q-mass, l its right node, as rounding: move it to an infinite loss, and
    Q-mass accordingly.
    """
    # Far out either mass may be a rounding of a number near 1 where the other one is exactly 0. Losses only grow.
    left, right = (np.clip(side, -_LARGE_LOSS, _LARGE_LOSS) for side in (nodes[:-1], nodes[1:]))
    p = np.where(nodes[1:] < _LARGE_LOSS, np.minimum(cells.p, cells.q * np.exp(right)), cells.p)
    q = np.where(nodes[:-1] > -_LARGE_LOSS, np.minimum(cells.q, cells.p * np.exp(-left)), cells.q)
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
        t, _ = self._guide.thresholds(nodes)
        t = np.unique(np.clip(t, -_FAR, _FAR))
        q = self.one.sample_rate
        value, rest = self.one.curve(t)
        mirrored, beside = self.one.curve(-t)
        power = np.where(value[:-1] < 0.5, -np.diff(value), np.diff(rest))
        level = np.where(mirrored[1:] < 0.5, np.diff(mirrored), -np.diff(beside))
        plain = interval_masses(np.concatenate([[-np.inf], t, [np.inf]]))
        power = np.concatenate([rest[:1], power, value[-1:]])
        level = np.concatenate([mirrored[:1], level, beside[-1:]])
        present, absent = ((1.0 - q) * plain + q * part for part in (power, level))
        return by_node(nodes, *(np.array(part) for part in merged(present, np.maximum(absent, _LEAST_MASS))))
