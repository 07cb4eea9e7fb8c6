r"""One step whose batch is a uniform subset of fixed size: equations (W1) to (W3) of ``docs/theory/fixed_size.md``.

A sample that joins a batch displaces another, so the outcome is shifted by a difference of two gradients. With exact
norms the step's trade-off in each direction is a supremum over pairs

    (1-q) N(0, 1) + q N(u, 1)   against   (1-q) N(0, 1) + q N(v, 1),

attained (W2) at u = 2/σ for losses above 0, and by Poisson sampling's own pair below.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from scipy.special import ndtri

from dprmt.accounting.basics import Array
from dprmt.accounting.pairs._pairs import LossCells, StepPair, interval_masses
from dprmt.accounting.pairs._public_pair import log_shift_ratio

_BEYOND = 39.0
"""Standard deviations from a mean beyond which a normal law has no mass in double precision."""
_FLAT = 1e-12
"""Loss by which the smallest one is undercut: around it many outcomes have the same loss up to rounding."""
_CELLS = 2**14
"""Outcomes whose loss is tabulated before their cells are halved."""
_HALVINGS = 40
"""Bisections of a cell of some hundredth of a standard deviation: to the last bits of a double."""


@dataclass(frozen=True)
class FixedSizeStep:
    """One step with exact norms whose batch is a uniform subset of fixed size.

    ``sample_rate``: q = batch size over number of samples.
    ``is_replacement``: whether the neighbour has another sample in the sample's place, or one without a gradient.
    """

    noise_multiplier: float
    sample_rate: float
    is_replacement: bool
    steps = 1
    tail_share = 1e-4
    is_exact = True

    def pairs(self, bins: int, tail: float) -> tuple[StepPair, StepPair]:
        """Return the pair of the supremum (W3), and the member of the family that is worst for losses above 0 (W2)."""
        joined, changed = 2.0 / self.noise_multiplier, (0.0 if self.is_replacement else 1.0) / self.noise_multiplier
        member = DisplacedPair(joined, changed, self.sample_rate)
        return SupremumPair(member, joined - changed), member

    def upper_with_slack(self, bins: int, tail: float) -> StepPair:
        """Return a pair that is never more private than the step, whatever losses are asked for."""
        return self.pairs(bins, tail)[0]


@dataclass(frozen=True)
class DisplacedPair:
    """The pair of one data set in which all other samples have one gradient, opposite to the sample's gradient.

    ``joined``: u, the shift of the outcome if the sample is in the batch. ``changed``: v in [0, u), the shift in the
    neighbour. The loss is negative left of (u + v)/2, where it falls and rises again, and increases right of it.
    """

    joined: float
    changed: float
    sample_rate: float
    slack: float = 0.0

    def loss_range(self, tail: float) -> tuple[float, float]:
        """Return an interval outside which P has mass at most ``tail`` above and Q at most ``tail`` below."""
        share = min(0.5 * tail / self.sample_rate, 0.5)
        last = max(self.joined - float(ndtri(share)), -float(ndtri(min(0.5 * tail, 0.5))))
        low = float(self.loss(np.array([self._lowest]))[0])
        return low - _FLAT, float(self.loss(np.array([max(last, self._no_loss)]))[0])

    def loss(self, x: Array) -> Array:
        """Log of the likelihood ratio at an outcome."""
        q, u, v = self.sample_rate, self.joined, self.changed
        if q == 1.0:
            return np.asarray((u - v) * (x - (u + v) / 2))
        absent, log_q = np.log1p(-q), np.log(q)
        joined = np.logaddexp(absent, log_q + u * x - u**2 / 2)
        return np.asarray(joined - np.logaddexp(absent, log_q + v * x - v**2 / 2))

    @property
    def _no_loss(self) -> float:
        """The outcome right of which the loss is positive."""
        return (self.joined + self.changed) / 2

    @cached_property
    def _lowest(self) -> float:
        """The outcome of the smallest loss; -∞ where it has none."""
        if self.sample_rate == 1.0 or self.changed == 0.0:
            return -_BEYOND
        q, u, v = self.sample_rate, self.joined, self.changed

        def slope(x: float) -> float:
            """Compute the slope of the loss, times both densities over N(0, 1)'s and over e^{vx - v²/2}."""
            ahead = np.exp((u - v) * x - (u**2 - v**2) / 2)
            return float((1 - q) * (u * ahead - v) + q * (u - v) * np.exp(u * x - u**2 / 2))

        low, high = -_BEYOND, self._no_loss
        for _ in range(2 * _HALVINGS):
            middle = (low + high) / 2
            low, high = (middle, high) if slope(middle) < 0.0 else (low, middle)
        return (low + high) / 2

    def outcomes(self, losses: Array) -> Array:
        """Return the largest outcome with a loss of at most each of these."""
        found = self._where(losses, self._lowest, self.joined + _BEYOND)
        return np.where(losses < self.loss(np.array([self._lowest])), -np.inf, found)

    def _first_outcomes(self, losses: Array) -> Array:
        """Return the smallest outcome with a loss of at most each of these: -∞ from a loss of 0 on."""
        found, seen = np.full(losses.shape, -np.inf), (losses < 0.0) & (self._lowest > -_BEYOND)
        found[seen] = self._where(losses[seen], self._lowest, -_BEYOND)
        return found

    def _where(self, losses: Array, least: float, largest: float) -> Array:
        """Halve cells to find each loss between outcomes of a smaller and a larger one, where the loss is monotone.

        The result is the end with the smaller loss.
        """
        grid = np.linspace(least, largest, _CELLS + 1)
        cell = np.clip(np.searchsorted(np.maximum.accumulate(self.loss(grid)), losses, side="right"), 1, _CELLS)
        low, high = grid[cell - 1], grid[cell]
        for _ in range(_HALVINGS):
            middle = (low + high) / 2
            reached = self.loss(middle) > losses
            low, high = np.where(reached, low, middle), np.where(reached, middle, high)
        return low

    def masses(self, ends: Array) -> tuple[Array, Array]:
        """Return P and Q of the intervals between outcomes."""
        q = self.sample_rate
        absent = (1.0 - q) * interval_masses(ends)
        return absent + q * interval_masses(ends - self.joined), absent + q * interval_masses(ends - self.changed)

    def cells(self, nodes: Array) -> LossCells:
        """Return the masses between increasing loss nodes: right of the smallest loss, and left of it."""
        ends = np.maximum(self.outcomes(nodes), self._lowest)
        p, q = self.masses(np.concatenate([[self._lowest], ends, [np.inf]]))
        left = np.minimum(self._first_outcomes(nodes), self._lowest)
        p_left, q_left = self.masses(np.concatenate([[self._lowest], left, [-np.inf]])[::-1])
        p, q = p + p_left[::-1], q + q_left[::-1]
        return LossCells(p[1:-1], q[1:-1], float(p[0]), float(q[0]), float(p[-1]), float(q[-1]))


@dataclass(frozen=True)
class SupremumPair:
    """The pair whose trade-off in either direction is the supremum over all data sets (W3).

    ``member``: its losses above 0. ``shift``: the shift of Poisson sampling's pair, N(0, 1) against (1-q) N(0, 1) + q
    N(shift, 1), whose losses are those below 0. The remaining mass is at 0.
    """

    member: DisplacedPair
    shift: float
    slack: float = 0.0

    def loss_range(self, tail: float) -> tuple[float, float]:
        """Return an interval outside which P has mass at most ``tail`` above and Q at most ``tail`` below."""
        q, high = self.member.sample_rate, self.member.loss_range(tail)[1]
        last = self.shift - float(ndtri(min(0.5 * tail / q, 0.5)))
        last = max(last, -float(ndtri(min(0.5 * tail, 0.5))))
        return -float(DisplacedPair(self.shift, 0.0, q).loss(np.array([last]))[0]), high

    def cells(self, nodes: Array) -> LossCells:
        """Return the masses between increasing loss nodes."""
        p, q = self._above(np.maximum(nodes, 0.0))
        p_below, q_below = self._below(np.minimum(nodes, 0.0))
        p, q = p + p_below, q + q_below
        at_zero = int(np.searchsorted(nodes, 0.0))
        rest = max(1.0 - float(p.sum()), 1.0 - float(q.sum()), 0.0)
        p[at_zero] += rest
        q[at_zero] += rest
        return LossCells(p[1:-1], q[1:-1], float(p[0]), float(q[0]), float(p[-1]), float(q[-1]))

    def _above(self, nodes: Array) -> tuple[Array, Array]:
        """Return the masses of the member's losses above 0 in the cells; 0 in the first, below all nodes."""
        ends = np.concatenate([self.member.outcomes(nodes), [np.inf]])
        p, q = self.member.masses(ends)
        return np.append(0.0, p), np.append(0.0, q)

    def _below(self, nodes: Array) -> tuple[Array, Array]:
        """Return the masses of the negated losses below 0 of Poisson sampling's pair; 0 in the last cell."""
        rate = self.member.sample_rate
        # -L of the pair (1-q) N(0, 1) + q N(s, 1) against N(0, 1) is at most l where the outcome is at least this:
        first = log_shift_ratio(-nodes, rate) / self.shift + self.shift / 2
        ends = np.concatenate([[np.inf], first])[::-1]
        absent, joined = interval_masses(ends), interval_masses(ends - self.shift)
        p, q = absent[::-1], ((1.0 - rate) * absent + rate * joined)[::-1]
        return np.append(p, 0.0), np.append(q, 0.0)
