r"""An epoch of random allocation as one step of the engine: every sample in exactly one of t steps.

The epoch is dominated by a pair whose likelihood ratio is W = (V_1 + … + V_t)/t, with independent V_i that have the
law of one unsampled step's ratio under Q: (R1) of ``docs/theory/random_allocation.md``.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, ClassVar

import numpy as np
from numpy.typing import NDArray

from dprmt.accounting.basics._bounds import Side
from dprmt.accounting.basics._numbers import Array
from dprmt.accounting.laws._laws import NormLaw
from dprmt.accounting.pairs._pairs import LARGE_LOSS, AtomicPair, LossCells, StepPair
from dprmt.accounting.pairs._ratio_sum import (
    RatioCells,
    RatioLaw,
    merged,
    never_less_private,
    never_more_private,
    ratio_cells,
    sum_from_above,
    sum_from_below,
)

if TYPE_CHECKING:
    from dprmt.accounting.pairs._steps import ClippingStep

_MESH = 0.03  # of the grid in deviations of V, and of two nodes in deviations of log V


@dataclass(frozen=True)
class RatioPlan:
    """Cells for V.

    Attributes
    ----------
    mesh : float
        Spacing of the linear grid.
    small : ndarray of int64, shape (n + 1,)
        Nodes on the grid, in units of ``mesh``; the first is 0.
    large : ndarray, shape (m,)
        Nodes beyond the grid, if any.
    """

    mesh: float
    small: NDArray[np.int64]
    large: Array

    def nodes(self) -> Array:
        """Return all nodes."""
        return np.concatenate([self.small * self.mesh, self.large])


def ratio_plan(pair: StepPair, deviation: float, copies: int, fineness: float, tail: float) -> RatioPlan:
    """Choose nodes for a law of V."""
    low, high = pair.loss_range(tail)
    low, high = max(low, -LARGE_LOSS), min(high, LARGE_LOSS)
    cells = ratio_cells(pair, np.append(0.0, np.exp(np.linspace(low, high, 257))))
    ratio, mass = np.append(cells.means(), cells.nodes[-1]), np.append(cells.mass, cells.mass_above)
    points = 2**17  # of a linear grid, beyond which large ratios are convolved separately
    boundary, mesh = float(np.exp(high)), _mesh(ratio, mass, np.exp(high), copies, fineness, tail)
    if 2 * boundary + copies > points * mesh:  # which is 0 where nearly all of V lies at one ratio
        beyond = np.cumsum(mass[::-1])[::-1] * copies <= 0.02  # of them in an epoch
        boundary = min(max(float(ratio[beyond].min(initial=boundary)), (points * mesh - copies) / 18), boundary)
        mesh = _mesh(ratio, mass, boundary, copies, fineness, tail)
        points *= 1 if copies > 8 else 4  # few ratios do not even out
        mesh = max(mesh, (2 * boundary + 20 * np.sqrt(copies) * _deviation(ratio, mass, boundary)) / points)
    spacing = min(deviation, 3.0) * _MESH / 2 * fineness
    losses = np.arange(low, high + spacing, spacing)
    middle = float(np.log(boundary))
    small = np.unique(np.rint(np.exp(losses[losses < middle]) / mesh).astype(np.int64))
    small = np.unique(np.concatenate([[0], small, [int(np.ceil(boundary / mesh))]]))
    large = np.empty(0)
    if small[-1] * mesh < np.exp(high):
        large = np.exp(np.arange(float(np.log(small[-1] * mesh)), high + 2 * spacing, 2 * spacing))[1:]
    return RatioPlan(mesh, small, large)


def _deviation(ratio: Array, mass: Array, boundary: float) -> float:
    small = np.minimum(ratio, boundary)
    return float(np.sqrt(mass @ (small - mass @ small) ** 2))


def _mesh(ratio: Array, mass: Array, boundary: float, copies: int, fineness: float, tail: float) -> float:
    """Return the mesh that suffices for the bulk, and for the lower tail of the sum, which decides adding a sample."""
    # Spreading on a mesh h multiplies E e^{-θV} by up to e^{θ²h²/12}, so it moves the ε of the add direction, whose
    # slope is θ·E[sum] of the tilted law, by θh²/12 over the tilted mean.
    small = np.minimum(ratio, boundary)
    mean = float(mass @ small)
    theta = np.exp(np.linspace(-8.0, 12.0, 81)) / max(mean, 1e-300)
    weight = np.exp(-np.multiply.outer(theta, small)) * mass
    total = np.maximum(weight.sum(axis=1), 1e-300)
    tilted_mean = weight @ small / total
    exponent = -copies * (np.log(total) + theta * tilted_mean)
    place = min(int(np.searchsorted(exponent, max(-np.log(tail) - 9.0, 5.0))), theta.size - 1)
    wanted = 2e-4 * max(1.0, -float(np.log(max(tilted_mean[place], 1e-300))))
    for_add = np.sqrt(12 * wanted * tilted_mean[place] / theta[place])
    return fineness * float(min(for_add, _MESH * _deviation(ratio, mass, boundary)))


_FIRST_BINS = 160


@dataclass(frozen=True)
class AllocationEpoch:
    """One epoch; the unit that the engine composes."""

    step: ClippingStep
    steps: int

    sample_rate: ClassVar[float] = 1.0
    """No outcome of an epoch bounds the loss from below, unlike a Poisson-sampled step."""
    is_exact: ClassVar[bool] = False
    """No epoch is cheap."""

    @property
    def law(self) -> NormLaw:
        """Law of the squared-norm ratio of the step."""
        return self.step.law

    def pairs(self, bins: int, tail: float) -> tuple[StepPair, StepPair]:
        """Return the dominating pairs; see :class:`dprmt.accounting.pairs._pairs.Step`."""
        # The same for many lengths of a run, and for many levels: powers of two and four. A finer law of estimated
        # norms takes time with its square, and narrows answers by less than a percent.
        tail = 2.0 ** math.floor(math.log2(tail))
        finer = max(math.ceil(math.log(bins / _FIRST_BINS, 4)), 0)
        bins = _FIRST_BINS * 4**finer if self.step.is_exact else min(bins, _FIRST_BINS)
        return _LazyPair(self, bins, tail, "upper"), _LazyPair(self, bins, tail, "lower")

    def upper_with_slack(self, bins: int, tail: float) -> StepPair:
        """See :meth:`ClippingStep.upper_with_slack`."""
        return self.pairs(bins, tail)[0]


@dataclass(frozen=True)
class _LazyPair:
    """One side of an epoch, computed when it is first asked about: a lower end is often not needed."""

    epoch: AllocationEpoch
    bins: int
    tail: float
    side: Side
    slack: float = 0.0

    def loss_range(self, tail: float) -> tuple[float, float]:
        """See :class:`dprmt.accounting.pairs._pairs.StepPair`."""
        return _pair(self).loss_range(tail)

    def cells(self, nodes: Array) -> LossCells:
        """See :class:`dprmt.accounting.pairs._pairs.StepPair`."""
        return _pair(self).cells(nodes)


@lru_cache(maxsize=16)
def _pair(side: _LazyPair) -> EpochPair:
    steps, tail = side.epoch.steps, side.tail
    plan, upper, lower = _plan(side.epoch, side.bins, tail)
    if side.side == "upper":
        above = never_more_private(ratio_cells(upper, plan.nodes()), upper.slack)
        return EpochPair.of(sum_from_above(above, plan.small.size, plan.mesh, steps, tail))
    below, on_grid = _from_below(ratio_cells(lower, plan.nodes()), plan)
    return EpochPair.of(sum_from_below(below, on_grid, plan.mesh, steps, tail))


@lru_cache(maxsize=16)
def _plan(epoch: AllocationEpoch, bins: int, tail: float) -> tuple[RatioPlan, StepPair, StepPair]:
    upper, lower = epoch.step.pairs(3 * bins // 2, tail)  # they are used once per epoch, not at every step
    return ratio_plan(upper, 1.0 / epoch.step.noise_multiplier, epoch.steps, _FIRST_BINS / bins, tail), upper, lower


def _from_below(cells: RatioCells, plan: RatioPlan) -> tuple[RatioLaw, int]:
    """Merge cells of small ratios into nodes of the grid, and cells of large ratios into their means."""
    count = plan.small.size - 1
    small = never_less_private(RatioCells(cells.nodes[: count + 1], cells.mass[:count], cells.moment[:count]))
    large = merged(RatioCells(cells.nodes[count:], cells.mass[count:], cells.moment[count:]))
    ratio, mass = np.append(small.ratio, large.ratio), np.append(small.mass, large.mass)
    return RatioLaw(ratio, mass), small.ratio.size


@dataclass(frozen=True)
class EpochPair(AtomicPair):
    """The pair of an epoch, from a law of W: its far atoms, which are many, are left out of the range."""

    @classmethod
    def of(cls, law: RatioLaw) -> EpochPair:
        """Return the pair; ratios below e^-700 count as 0."""
        order = np.argsort(law.ratio, kind="stable")
        ratio, mass = law.ratio[order], law.mass[order]
        seen = ratio > math.exp(-700.0)
        unclear = law.unclear + float(mass[~seen].sum())
        return cls(np.log(ratio[seen]), (ratio * mass)[seen], law.lost, vanishing=unclear)

    def loss_range(self, tail: float) -> tuple[float, float]:
        """Return an interval outside which P has mass at most ``tail`` above and Q at most ``tail`` below."""
        low = np.searchsorted(np.cumsum(self.p * np.exp(-self.losses)), tail)
        high = np.searchsorted(-np.cumsum(self.p[::-1])[::-1], -tail)
        left, right = (float(self.losses[min(int(end), self.losses.size - 1)]) for end in (low, high))
        return left - 1e-9, max(left, right) + 1e-9
