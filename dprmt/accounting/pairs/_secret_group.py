r"""Several samples with secret probes and coins of their own, as one sample: (N10) of ``docs/theory/neighbours.md``.

Together they shift the output by S = Σ Zᵢ/σ over those that are drawn. So the group is one sample of rate
1 - (1-q)^m whose squared-norm ratio is Y = 1/(σS)², the power mean of exponent -1/2 of the drawn ratios, over j².
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from dprmt.accounting.basics import Array
from dprmt.accounting.laws import NormRatioBins
from dprmt.accounting.pairs._coin_mixtures import log_coin_weights
from dprmt.accounting.pairs._secret_lower_pair import SecretLowerPair
from dprmt.accounting.pairs._secret_upper_pair import SecretUpperPair

_NODES_A_BIN = 2
_ROUNDING = 1e-12  # of masses that are products of many
_WIDE = 3.0  # times the mean width
_LEAST_MASS = 1e-200  # of what is followed from below: smaller ones are lost in the rounding of all others


@dataclass(frozen=True)
class _Coins:
    """How many samples are drawn, if any is: ``weight[j-1]`` for j up to the largest number that is followed.

    ``rate``: probability that any is drawn; ``beyond``: of more than are followed, if any is.
    """

    rate: float
    weight: Array
    beyond: float

    @classmethod
    def of(cls, size: int, sample_rate: float, tail: float) -> _Coins:
        rate = -math.expm1(size * math.log1p(-sample_rate)) if sample_rate < 1.0 else 1.0
        drawn = np.exp(log_coin_weights(size, sample_rate))[1:]
        left = np.append(np.cumsum(drawn[::-1])[::-1][1:], 0.0)  # of more than 1, 2, …
        most = 1 + int(np.count_nonzero(left > tail * rate))
        return cls(rate, drawn[:most] / rate, float(left[most - 1]) / rate)


def secret_group_above(law: NormRatioBins, noise_multiplier: float, sample_rate: float, size: int) -> SecretUpperPair:
    """A pair that dominates groups of every spectrum.

    ``law``: bins of one sample's ratio, of a law that is the worst in the convex order.
    """
    x, mass = law.spread(0.0)
    coins = _Coins.of(size, sample_rate, law.below)
    each = _sums_above(x, mass, coins.weight.size, _NODES_A_BIN * x.size)
    ratio = np.concatenate([part for part, _ in each])
    masses = np.concatenate([part * share for (_, part), share in zip(each, coins.weight, strict=True)])
    ratio, masses = _split(ratio, masses * (1.0 + _ROUNDING), _NODES_A_BIN * x.size)
    small = float(coins.weight @ np.arange(1, coins.weight.size + 1, dtype=np.int64)) * law.below + coins.beyond
    excess = max(float(masses.sum()) + small - 1.0, 0.0)
    return SecretUpperPair(1.0 / (noise_multiplier * np.sqrt(ratio)), masses, coins.rate, below=small, excess=excess)


def secret_group_below(law: NormRatioBins, noise_multiplier: float, sample_rate: float, size: int) -> SecretLowerPair:
    """A pair that aligned gradients whose ratios have the law of ``law`` dominate."""
    first = _Cells.of(law)
    coins = _Coins.of(size, sample_rate, law.below)
    weight = np.append(coins.weight[:-1], coins.weight[-1] + coins.beyond)
    sums, parts = first, [first.times(float(weight[0]))]
    for share in weight[1:]:
        sums = sums.plus(first).merged(_NODES_A_BIN * first.mass.size)
        parts.append(sums.times(float(share)))
    all_of_them = _Cells.joined(parts).merged(_NODES_A_BIN * first.mass.size)
    return SecretLowerPair(all_of_them.bins(), noise_multiplier, coins.rate)


def _sums_above(x: Array, mass: Array, most: int, nodes: int) -> list[tuple[Array, Array]]:
    """Atoms of 1/(Σ xᵢ^{-1/2})² for 1 … ``most`` of them, spread in the convex order after each."""
    shift = 1.0 / np.sqrt(x)
    each = [(x, mass)]
    for _ in range(most - 1):
        ratio, before = each[-1]
        both = 1.0 / np.add.outer(1.0 / np.sqrt(ratio), shift) ** 2
        each.append(_split(both.ravel(), np.multiply.outer(before, mass).ravel(), nodes))
    return each


def _split(ratio: Array, mass: Array, nodes: int) -> tuple[Array, Array]:
    """Atoms moved to both neighbours on a geometric grid, means kept: E of every convex function grows."""
    low, high = float(ratio.min()), float(ratio.max())
    if ratio.size <= nodes or high <= low * (1.0 + 1e-9):
        return ratio, mass
    grid = np.geomspace(low, high, nodes)
    grid[0], grid[-1] = low, high
    right = np.clip(np.searchsorted(grid, ratio), 1, nodes - 1)
    to_right = np.clip((ratio - grid[right - 1]) / (grid[right] - grid[right - 1]), 0.0, 1.0)
    masses = np.bincount(right, mass * to_right, nodes) + np.bincount(right - 1, mass * (1.0 - to_right), nodes)
    kept = masses > 0.0
    return grid[kept], masses[kept]


@dataclass(frozen=True)
class _Cells:
    """Where a sum of shifts lies: at most ``high``, at least ``low``, and 1/``middle``² at least the mean of 1/S²."""

    high: Array
    middle: Array
    low: Array
    mass: Array

    @classmethod
    def of(cls, law: NormRatioBins) -> _Cells:
        """Shifts of one sample, σ left out; what lies below the first bin is put at its left end."""
        left, right = (np.concatenate([law.left[:1], ends]) for ends in (law.left, law.right))
        mean = np.concatenate([law.left[:1], np.where(np.isfinite(law.mean), law.mean, law.right)])
        mass = np.concatenate([[law.below], law.mass])
        return cls(1.0 / np.sqrt(left), 1.0 / np.sqrt(mean), 1.0 / np.sqrt(right), mass)

    @classmethod
    def joined(cls, parts: list[_Cells]) -> _Cells:
        """All cells of several laws."""
        return cls(*(np.concatenate([getattr(part, name) for part in parts]) for name in cls.__dataclass_fields__))

    def times(self, share: float) -> _Cells:
        """The same cells with a part of their mass."""
        return _Cells(self.high, self.middle, self.low, self.mass * share)

    def plus(self, other: _Cells) -> _Cells:
        """Cells of a sum: E Y ≤ Y(means), as the power mean is concave."""
        high, middle, low = (np.add.outer(a, b).ravel() for a, b in zip(self.shifts, other.shifts, strict=True))
        return _Cells(high, middle, low, np.multiply.outer(self.mass, other.mass).ravel())

    @property
    def shifts(self) -> tuple[Array, Array, Array]:
        """The three shifts of each cell."""
        return self.high, self.middle, self.low

    def merged(self, count: int) -> _Cells:
        """Neighbours in one cell."""
        kept = np.flatnonzero(self.mass > _LEAST_MASS)
        high, middle, low, mass = _without_wide(*(part[kept] for part in (*self.shifts, self.mass)))
        order = np.argsort(middle)
        high, middle, low, mass = high[order], middle[order], low[order], mass[order]
        least = middle[np.flatnonzero(middle)[0]]  # a mean that is not known may be infinite
        place = np.floor(count * np.log(np.maximum(middle, least) / least) / max(math.log(middle[-1] / least), 1e-9))
        start = np.flatnonzero(np.append(True, np.diff(place) > 0))
        total = np.add.reduceat(mass, start)
        with np.errstate(divide="ignore"):
            mean = np.add.reduceat(mass / middle**2, start) / total
        return _Cells(np.maximum.reduceat(high, start), 1.0 / np.sqrt(mean), np.minimum.reduceat(low, start), total)

    def bins(self) -> NormRatioBins:
        """Of Y, by falling shifts."""
        order = np.argsort(-self.middle)
        with np.errstate(divide="ignore"):
            left, mean, right = (1.0 / shift[order] ** 2 for shift in self.shifts)
        return NormRatioBins(left, right, self.mass[order], mean, 0.0)


def _without_wide(high: Array, middle: Array, low: Array, mass: Array) -> tuple[Array, Array, Array, Array]:
    """Cells much wider than most, which are rare, at their least shift: else their neighbours would be as wide."""
    with np.errstate(divide="ignore"):
        width = np.log(high) - np.log(low)
    usual = np.isfinite(width)
    wide = width > _WIDE * float(width[usual] @ mass[usual]) / float(mass[usual].sum())
    return np.where(wide, low, high), np.where(wide, low, middle), low, mass
