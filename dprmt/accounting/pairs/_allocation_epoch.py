r"""An epoch of random allocation as one step of the engine: every sample in exactly one of t steps.

The epoch is dominated by a pair whose likelihood ratio is W = (V_1 + … + V_t)/t, with independent V_i that have the
law of one unsampled step's ratio under Q: (R1) of ``docs/theory/random_allocation.md``.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from dprmt.accounting.basics import Array
from dprmt.accounting.laws import NormLaw
from dprmt.accounting.pairs._cells import LossCells, StepPair
from dprmt.accounting.pairs._clipping_step import ClippingStep
from dprmt.accounting.pairs._likelihood_ratio import (
    RatioCells,
    RatioLaw,
    merged,
    never_less_private,
    never_more_private,
    ratio_cells,
)
from dprmt.accounting.pairs._likelihood_ratio_cuts import RatioPlan, ratio_plan
from dprmt.accounting.pairs._likelihood_ratio_sum import SumLaw, sum_from_above, sum_from_below

_FIRST_BINS = 160
_LEAST_BINS = 384  # of the law of the sensitivity: it enters once an epoch, where the engine asks at every step


@dataclass(frozen=True)
class AllocationEpoch:
    """One epoch; the unit that the engine composes."""

    step: ClippingStep
    steps: int

    @property
    def sample_rate(self) -> float:
        """1: no outcome of an epoch bounds the loss from below, unlike that of a Poisson-sampled step."""
        return 1.0

    @property
    def law(self) -> NormLaw:
        """Of the step."""
        return self.step.law

    @property
    def noise_multiplier(self) -> float:
        """σ of the step."""
        return self.step.noise_multiplier

    @property
    def tail_share(self) -> float:
        """See :class:`dprmt.accounting.pairs._schedule.Step`."""
        return self.step.tail_share

    @property
    def is_exact(self) -> bool:
        """See :class:`dprmt.accounting.pairs._schedule.Step`."""
        return self.step.is_exact

    def pairs(self, bins: int, tail: float) -> tuple[StepPair, StepPair]:
        """See :class:`dprmt.accounting.pairs._schedule.Step`."""
        # The same for many lengths of a run: powers of two.
        return _pairs(self.step, self.steps, bins, 2.0 ** math.floor(math.log2(tail)))

    def upper_with_slack(self, bins: int, tail: float) -> StepPair:
        """See :meth:`ClippingStep.upper_with_slack`."""
        return self.pairs(bins, tail)[0]


@lru_cache(maxsize=16)
def _pairs(step: ClippingStep, steps: int, bins: int, tail: float) -> tuple[StepPair, StepPair]:
    upper, lower = step.pairs(max(_LEAST_BINS, 3 * bins), tail)
    fineness = _FIRST_BINS / bins
    plan = ratio_plan(upper, 1.0 / step.noise_multiplier, steps, fineness, tail)
    above = never_more_private(ratio_cells(upper, plan.nodes()), upper.slack)
    whole = sum_from_above(above, plan.small.size, plan.mesh, steps, tail)
    below, on_grid = _from_below(ratio_cells(lower, plan.nodes()), plan)
    part = sum_from_below(below, on_grid, plan.mesh, steps, tail)
    return EpochPair(whole), EpochPair(part)


def _from_below(cells: RatioCells, plan: RatioPlan) -> tuple[RatioLaw, int]:
    """Cells of small ratios merge into nodes of the grid, those of large ones into their means."""
    count = plan.small.size - 1
    small = never_less_private(RatioCells(cells.nodes[: count + 1], cells.mass[:count], cells.moment[:count], 0.0, 0.0))
    large = merged(RatioCells(cells.nodes[count:], cells.mass[count:], cells.moment[count:], 0.0, 0.0))
    ratio = np.concatenate([small.ratio, large.ratio])
    return RatioLaw(ratio, np.concatenate([small.mass, large.mass]), 0.0), small.ratio.size


class EpochPair:
    """The pair of an epoch, from a law of W."""

    slack = 0.0

    def __init__(self, law: SumLaw) -> None:
        order = np.argsort(law.ratio, kind="stable")
        ratio, mass = law.ratio[order], law.mass[order]
        with np.errstate(divide="ignore"):
            self._loss = np.log(ratio)
        self._q = np.append(0.0, np.cumsum(mass))
        self._mass, self._moment = mass, mass * ratio
        self._lost, self._unclear = law.lost, law.unclear

    def loss_range(self, tail: float) -> tuple[float, float]:
        """An interval outside which P has mass at most ``tail`` above and Q at most ``tail`` below."""
        from_top = np.cumsum(self._moment[::-1])[::-1]
        finite = int(np.searchsorted(self._loss, -700.0))
        low = max(int(np.searchsorted(self._q[1:], tail)), finite)
        high = int(np.searchsorted(-from_top, -tail))
        low, high = min(low, self._loss.size - 1), min(high, self._loss.size - 1)
        return float(self._loss[low]) - 1e-9, float(self._loss[max(high, low)]) + 1e-9

    def cells(self, nodes: Array) -> LossCells:
        """Masses between increasing loss nodes."""
        ends = np.searchsorted(self._loss, nodes, side="right")
        q, p = (_between(masses, ends) for masses in (self._mass, self._moment))
        return LossCells(
            p=p[1:-1],
            q=q[1:-1],
            p_below=float(p[0]),
            q_below=float(q[0]) + self._unclear,
            p_above=float(p[-1]) + self._lost,
            q_above=float(q[-1]),
        )


def _between(masses: Array, ends: Array) -> Array:
    """Sums of consecutive stretches, without differences."""
    place = np.repeat(np.arange(ends.size + 1, dtype=np.intp), np.diff(np.concatenate([[0], ends, [masses.size]])))
    return np.bincount(place, weights=masses, minlength=ends.size + 1)
