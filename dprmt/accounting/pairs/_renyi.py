"""A pair that dominates every mechanism with bounded Rényi divergences.

Proof: ``docs/theory/batches.md``, "Releases known by another definition".
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from dprmt.accounting.pairs._fixed_size import FixedSizeStep, TruncatedStep
from dprmt.accounting.pairs._pairs import AtomicPair, Schedule, StepPair
from dprmt.accounting.pairs._tight_pair import symmetric_pair

NOTHING = AtomicPair(np.zeros(1), np.ones(1), 0.0, reach=1e-3)
"""A pair of equal laws: what is released if nothing is known from below."""


@dataclass(frozen=True)
class RenyiStep:
    """A step with divergences of at most ``rho`` α, plus for each (orders, values, count) of ``curves`` count times
    these.

    Divergences grow with the order: between two orders the value of the larger one holds.
    """

    rho: float = 0.0
    curves: tuple[tuple[tuple[float, ...], tuple[float, ...], int], ...] = ()
    steps = 1
    is_exact = True

    @cached_property
    def _pair(self) -> AtomicPair:
        orders = np.unique(
            np.concatenate([np.array(orders) for orders, _, _ in self.curves] or [1.0 + np.geomspace(1e-4, 1e5, 400)])
        )
        total = self.rho * orders
        for known, values, count in self.curves:
            place = np.searchsorted(known, orders)
            total = total + count * np.append(values, np.inf)[place]
        orders, total = orders[np.isfinite(total)], total[np.isfinite(total)]
        losses = np.concatenate([np.linspace(0.0, 0.1, 101), np.geomspace(0.1, 700.0, 2000)[1:]])
        # The least δ that follows from Rényi divergences (Canonne, Kamath & Steinke 2020).
        exponent = (orders - 1.0) * (total - losses[:, None])
        constant = (orders - 1.0) * np.log1p(-1.0 / orders) - np.log(orders)
        return symmetric_pair(losses, np.exp(np.minimum(np.min(exponent + constant, axis=1), 0.0)))

    def pairs(self, bins: int, tail: float) -> tuple[StepPair, StepPair]:
        """Return a pair that dominates all such mechanisms, and one of equal laws."""
        del bins, tail
        return self._pair, NOTHING


def renyi_as_one(schedule: Schedule) -> Schedule:
    """Return the schedule with all steps of known divergences as one: divergences add up."""
    found = [(step, count) for step, count in schedule if isinstance(step, RenyiStep)]
    if sum(count for _, count in found) < 2:
        return schedule
    curves = tuple((orders, values, n * count) for step, count in found for orders, values, n in step.curves)
    rest = [(step, count) for step, count in schedule if not isinstance(step, RenyiStep)]
    return [*rest, (RenyiStep(sum(count * step.rho for step, count in found), curves), 1)]


def ends_stay_apart(schedule: Schedule) -> bool:
    """Return whether no mesh makes ends meet: no data set attains a step's upper pair, or nothing is known below."""
    return any(
        isinstance(s, FixedSizeStep | TruncatedStep | RenyiStep) or getattr(s, "below", None) is NOTHING
        for s, _ in schedule
    )
