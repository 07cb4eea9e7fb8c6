r"""One step whose batch has a fixed size, or at most a size: ``docs/theory/fixed_size.md`` and ``batches.md``.

A sample that joins a batch displaces another, so the outcome is shifted by a difference of two gradients. With exact
norms the step's trade-off in each direction is a supremum over pairs

    (1-q) N(0, 1) + q N(u, 1)   against   (1-q) N(0, 1) + q N(v, 1),

attained (W2) at u = 2/σ for losses above 0, and by Poisson sampling's own pair below.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from scipy.special import betainc, ndtri

from dprmt.accounting.basics._numbers import Array
from dprmt.accounting.pairs._exact_replacement import SubsampledMixture
from dprmt.accounting.pairs._pairs import LossCells, PublicPair, StepPair, interval_masses, log_shift_ratio

_BINOMIAL_ERROR = 1e-9
"""Relative error of a binomial law's tail that is charged."""


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

    ``joined``: u, the shift of the outcome where the sample is in the batch; ``changed``: v, that in the neighbour, 0
    or u/2. The loss is negative left of (u + v)/2, where it falls and rises again, and increases right of it.
    """

    joined: float
    changed: float
    sample_rate: float
    slack: float = 0.0

    def loss_range(self, tail: float) -> tuple[float, float]:
        """Return an interval outside which P has mass at most ``tail`` above and Q at most ``tail`` below."""
        share = min(0.5 * tail / self.sample_rate, 0.5)
        last = max(self.joined - float(ndtri(share)), -float(ndtri(min(0.5 * tail, 0.5))))
        if self._has_least:
            low = self._least[0]
        elif self.sample_rate < 1.0:
            low = float(np.log1p(-self.sample_rate))
        else:
            low = float(self.loss(np.array([self.changed + ndtri(min(tail, 0.5))]))[0])
        low -= 1e-12  # many outcomes have the smallest loss up to rounding
        return low, float(self.loss(np.array([max(last, (self.joined + self.changed) / 2)]))[0])

    def loss(self, x: Array) -> Array:
        """Log of the likelihood ratio at an outcome."""
        q, u, v = self.sample_rate, self.joined, self.changed
        if q == 1.0:
            return np.asarray((u - v) * (x - (u + v) / 2))
        absent, log_q = np.log1p(-q), np.log(q)
        joined = np.logaddexp(absent, log_q + u * x - u**2 / 2)
        return np.asarray(joined - np.logaddexp(absent, log_q + v * x - v**2 / 2))

    @property
    def _has_least(self) -> bool:
        return self.changed > 0.0 and self.sample_rate < 1.0

    @cached_property
    def _log_spread(self) -> float:
        """Log of κ, where 1 - ρ is the discriminant in :meth:`outcomes` and ρ = κ e^{-l} (e^{-l} - 1)."""
        return float(np.log(4.0) + np.log1p(-self.sample_rate) - np.log(self.sample_rate) - self.changed**2)

    @cached_property
    def _least(self) -> tuple[float, float]:
        """Return the smallest loss and its outcome, of a pair whose loss has a minimum: there ρ = 1."""
        loss = float(np.log(2.0) - np.log1p(np.sqrt(1.0 + 4.0 * np.exp(-self._log_spread))))
        return loss, (loss + 1.5 * self.changed**2 - np.log(2.0)) / self.changed

    def outcomes(self, losses: Array) -> tuple[Array, Array]:
        """Return the largest and the smallest outcome with a loss of at most each of these; equal where there is none.

        With v = u/2 the loss is l where e^{vx} solves a quadratic equation, with roots A(1 ± √(1 - ρ)).
        """
        q, u, v = self.sample_rate, self.joined, self.changed
        if not self._has_least:
            largest = losses / (u - v) + (u + v) / 2 if q == 1.0 else log_shift_ratio(losses, q) / u + u / 2
            return largest, np.full(losses.shape, -np.inf)
        least, lowest = self._least
        at = np.maximum(losses, least)
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            spread = np.exp(self._log_spread - at) * np.expm1(-at)
            root = np.where(losses > least, np.sqrt(np.maximum(1.0 - spread, 0.0)), 0.0)
            log_a = at + 1.5 * v**2 - np.log(2.0)
            left = log_a + self._log_spread - at + np.log(np.expm1(-at)) - np.log1p(root)
        largest = np.maximum((log_a + np.log1p(root)) / v, lowest)
        smallest = np.where(at < 0.0, np.minimum(left / v, lowest), -np.inf)
        return largest, np.where(losses > least, smallest, lowest)  # no rounding puts mass below the smallest loss

    def masses(self, ends: Array) -> tuple[Array, Array]:
        """Return P and Q of the intervals between outcomes."""
        q = self.sample_rate
        absent = (1.0 - q) * interval_masses(ends)
        return absent + q * interval_masses(ends - self.joined), absent + q * interval_masses(ends - self.changed)

    def cells(self, nodes: Array) -> LossCells:
        """Return masses between increasing loss nodes: right of the smallest loss, and left of it."""
        largest, smallest = self.outcomes(nodes)
        lowest = self._least[1] if self._has_least else -np.inf
        p, q = self.masses(np.concatenate([[lowest], largest, [np.inf]]))
        p_left, q_left = self.masses(np.concatenate([[lowest], smallest, [-np.inf]])[::-1])
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
        """Return masses of the member's losses in the cells, those above 0 alone; 0 in the first, below all nodes."""
        ends = np.concatenate([self.member.outcomes(nodes)[0], [np.inf]])
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


@dataclass(frozen=True)
class DirectSum:
    """One of several pairs, by lot, and the lot is seen: its curve is the mean of their curves."""

    parts: tuple[tuple[float, StepPair], ...]
    slack: float = 0.0

    def loss_range(self, tail: float) -> tuple[float, float]:
        """Return an interval outside which P has mass at most ``tail`` above and Q at most ``tail`` below."""
        ends = [pair.loss_range(min(tail / (len(self.parts) * weight), 0.5)) for weight, pair in self.parts]
        return min(low for low, _ in ends), max(high for _, high in ends)

    def cells(self, nodes: Array) -> LossCells:
        """Return masses between increasing loss nodes."""
        each = [(weight, vars(pair.cells(nodes))) for weight, pair in self.parts]
        return LossCells(**{name: sum(weight * cells[name] for weight, cells in each) for name in each[0][1]})


@dataclass(frozen=True)
class TruncatedStep:
    """One step with exact norms under Poisson sampling; of a batch of more than ``at_most`` a random part is dropped.

    ``samples``: n. ``is_replacement``, ``is_removal``: whether the neighbour has another sample in the sample's place,
    or no such place.
    """

    noise_multiplier: float
    sample_rate: float
    at_most: int
    samples: int
    is_replacement: bool
    is_removal: bool
    steps = 1
    is_exact = True

    @cached_property
    def crowding(self) -> tuple[float, float, float]:
        """w, the probability that the other samples alone fill the batch; that the sample is in it then, and ever."""
        n, most, q = self.samples, self.at_most, self.sample_rate
        if most >= n:
            return 0.0, 0.0, q
        full, fits = float(betainc(most, n - most, q)), float(betainc(n - most, most, 1.0 - q))
        share = most / n * float(betainc(most + 1, n - most, q))
        return full, share / full if full else 0.0, q * fits + share

    def pairs(self, bins: int, tail: float) -> tuple[StepPair, StepPair]:
        """Return Poisson sampling's pair, or a pair of fixed size for a full batch; Poisson at a lower rate."""
        full, rate, least = self.crowding
        plain, below = self._poisson(self.sample_rate), self._poisson(least * (1.0 - _BINOMIAL_ERROR))
        full *= 1.0 + _BINOMIAL_ERROR
        if full <= tail:
            return replace(plain, slack=full), below
        rate *= 1.0 + 3.0 * _BINOMIAL_ERROR
        crowded: StepPair = PublicPair(np.array([2.0 / self.noise_multiplier]), np.ones(1), rate)
        if not self.is_removal:
            crowded = FixedSizeStep(self.noise_multiplier, rate, self.is_replacement).pairs(bins, tail)[0]
        return DirectSum(((1.0 - full * (1.0 - 3.0 * _BINOMIAL_ERROR), plain), (full, crowded))), below

    def upper_with_slack(self, bins: int, tail: float) -> StepPair:
        """Return a pair that is never more private than the step, whatever losses are asked for."""
        return self.pairs(bins, tail)[0]

    def _poisson(self, rate: float) -> PublicPair | SubsampledMixture:
        if self.is_replacement:
            return SubsampledMixture(self.noise_multiplier, rate, 1, True)
        return PublicPair(np.array([1.0 / self.noise_multiplier]), np.ones(1), rate)
