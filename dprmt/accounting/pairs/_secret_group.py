r"""Several samples with secret probes and coins of their own, as one sample: (N10) of ``docs/theory/neighbours.md``.

Together they shift the output by S = Σ Zᵢ/σ over those that are drawn. So the group is one sample of rate
1 - (1-q)^m whose squared-norm ratio is Y = 1/(σS)², the power mean of exponent -1/2 of the drawn ratios, over j².
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from dprmt.accounting.basics import Array
from dprmt.accounting.laws import NormRatioBins
from dprmt.accounting.pairs._coin_mixtures import log_coin_weights
from dprmt.accounting.pairs._secret_lower_pair import SecretLowerPair
from dprmt.accounting.pairs._secret_upper_pair import SecretUpperPair

_SAME = 1e-12  # relative: ends of cells that lie on a lattice up to rounding
_MOST_NODES, _MOST_OF_ONE = 4096, 3072  # of a lattice of sums, and of one sample's shifts on it
_ROUNDING = 1e-12  # relative, of one more sum's masses: of at most 4,096 products each
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
    shift = 1.0 / np.sqrt(x)
    step = _lattice_step(float(shift.max()), np.abs(np.gradient(shift)) if x.size > 1 else shift, mass)
    each = _sums_above(x, mass, step, coins.weight.size)
    ratio = np.concatenate([part for part, _ in each])
    masses = np.concatenate([part * share for (_, part), share in zip(each, coins.weight, strict=True)])
    masses = masses * (1.0 + _ROUNDING * len(each))
    if len(each) > 1:
        ratio, masses = _split(ratio, masses, min(_nodes(1.0 / np.sqrt(ratio), step), x.size))
    small = float(coins.weight @ np.arange(1, coins.weight.size + 1, dtype=np.int64)) * law.below + coins.beyond
    excess = max(float(masses.sum()) + small - 1.0, 0.0)
    return SecretUpperPair(1.0 / (noise_multiplier * np.sqrt(ratio)), masses, coins.rate, below=small, excess=excess)


def secret_group_below(law: NormRatioBins, noise_multiplier: float, sample_rate: float, size: int) -> SecretLowerPair:
    """A pair that aligned gradients whose ratios have the law of ``law`` dominate."""
    first = _Cells.of(law)
    coins = _Coins.of(size, sample_rate, law.below)
    weight = np.append(coins.weight[:-1], coins.weight[-1] + coins.beyond)
    parts, one = [first.times(float(weight[0]))], _LatticeCells.of(first)
    for share, sums in zip(weight[1:], one.sums(weight.size), strict=True):
        parts.append(sums.cells().times(float(share)))
    joined = _Cells.joined(parts)
    cells = joined.merged(min(_nodes(joined.middle, one.step), first.mass.size))
    return SecretLowerPair(cells.bins(), noise_multiplier, coins.rate)


def _sums_above(x: Array, mass: Array, step: float, most: int) -> list[tuple[Array, Array]]:
    """Atoms of 1/(Σ xᵢ^{-1/2})² for 1 … ``most`` of them, spread in the convex order onto a lattice of sums."""
    one = _on_lattice(x, mass, step)
    sums, each = one, [(x, mass)]
    for _ in range(most - 1):
        sums = sums[0] + one[0], np.convolve(sums[1], one[1])
        if sums[1].size > _MOST_NODES:
            wider = 2 * step
            sums, one = (_on_lattice(_ratios(*atoms, step), atoms[1], wider) for atoms in (sums, one))
            step = wider
        each.append((_ratios(*sums, step), sums[1]))
    return each


def _lattice_step(largest: float, width: Array, mass: Array) -> float:
    """About a law's mean ``width``, not so narrow that sums are many; ``largest`` shift is a node."""
    usual = float(width @ mass) / float(mass.sum())
    return largest / max(min(round(largest / max(usual, 1e-300)), _MOST_OF_ONE), 1)


def _nodes(shift: Array, step: float) -> int:
    """How many nodes a geometric grid of all sums has that is as fine as the lattice is at a ratio of 1."""
    return math.ceil(math.log(float(shift.max() / shift[shift > 0.0].min())) / step) + 2


def _ratios(first: int, mass: Array, step: float) -> Array:
    """1/S² of consecutive nodes S of a lattice."""
    return 1.0 / (step * np.arange(first, first + mass.size, dtype=np.int64)) ** 2


def _on_lattice(ratio: Array, mass: Array, step: float) -> tuple[int, Array]:
    """Atoms moved to both neighbouring sums, means of the ratio kept: E of every convex function of it grows.

    Returns: the number of the first node, and masses of it and those after it.
    """
    left = np.maximum((1.0 / (np.sqrt(ratio) * step)).astype(np.int64), 1)
    largest, smallest = 1.0 / (step * left) ** 2, 1.0 / (step * (left + 1)) ** 2
    to_right = np.clip((largest - ratio) / (largest - smallest), 0.0, 1.0)
    first = int(left.min())
    place = left - first
    count = int(place.max()) + 2
    masses = np.bincount(place, mass * (1.0 - to_right), count) + np.bincount(place + 1, mass * to_right, count)
    return first, masses


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


@dataclass(frozen=True)
class _LatticeCells:
    """Cells of sums that begin at consecutive nodes of a lattice.

    ``first``: number of the first node; ``offset``: by how much middles lie beyond their nodes, times the mass;
    ``width``: of all cells, in nodes.
    """

    first: int
    mass: Array
    offset: Array
    width: int
    step: float

    @classmethod
    def of(cls, cells: _Cells) -> _LatticeCells:
        """Cells of any ends, each put into the next wider one."""
        high, middle, low, mass = _without_wide(*cells.shifts, cells.mass)
        step = _lattice_step(float(high.max()), high - low, mass)
        node = np.floor(low / step * (1.0 + _SAME)).astype(np.int64)
        first = int(node.min())
        return cls(
            first,
            np.bincount(node - first, mass),
            np.bincount(node - first, mass * (middle - node * step)),
            int(np.ceil(high / step * (1.0 - _SAME) - node).max()),
            step,
        )

    def sums(self, most: int) -> Iterator[_LatticeCells]:
        """Of 2 … ``most`` independent shifts, whose middles add up as (N10) asks."""
        one = sums = self
        for _ in range(most - 1):
            sums = sums._plus(one)
            if sums.mass.size > _MOST_NODES:
                sums, one = sums._on_every_other_node(), one._on_every_other_node()
            yield sums

    def _plus(self, other: _LatticeCells) -> _LatticeCells:
        offset = np.convolve(self.offset, other.mass) + np.convolve(self.mass, other.offset)
        mass = np.convolve(self.mass, other.mass)
        return replace(self, first=self.first + other.first, mass=mass, offset=offset, width=self.width + other.width)

    def _on_every_other_node(self) -> _LatticeCells:
        node = np.arange(self.first, self.first + self.mass.size, dtype=np.int64)
        place = node // 2 - self.first // 2
        offset = self.offset + (node % 2) * self.step * self.mass
        return _LatticeCells(
            self.first // 2,
            np.bincount(place, self.mass),
            np.bincount(place, offset),
            self.width // 2 + 1,
            2 * self.step,
        )

    def cells(self) -> _Cells:
        """1/S² of the middles in a cell is at most its chord at their mean."""
        seen = np.flatnonzero(self.mass > _LEAST_MASS)
        low = self.step * (self.first + seen)
        high = low + self.step * self.width
        share = np.clip(self.offset[seen] / self.mass[seen] / (self.step * self.width), 0.0, 1.0)
        with np.errstate(divide="ignore", invalid="ignore"):
            ratio = 1.0 / low**2 + share * (1.0 / high**2 - 1.0 / low**2)
            middle = np.where(low > 0.0, 1.0 / np.sqrt(ratio), 0.0)
        return _Cells(high * (1.0 + _SAME), middle, low * (1.0 - _SAME), self.mass[seen])


def _without_wide(high: Array, middle: Array, low: Array, mass: Array) -> tuple[Array, Array, Array, Array]:
    """Cells much wider than most, which are rare, at their least shift: else their neighbours would be as wide."""
    with np.errstate(divide="ignore"):
        width = np.log(high) - np.log(low)
    usual = np.isfinite(width)
    wide = width > _WIDE * float(width[usual] @ mass[usual]) / float(mass[usual].sum())
    return np.where(wide, low, high), np.where(wide, low, middle), low, mass
