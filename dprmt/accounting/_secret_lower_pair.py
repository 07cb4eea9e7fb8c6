r"""One step with secret probes from below: chords of a trade-off curve that is nowhere too high.

Equation (C5) of ``docs/theory/randomized_clipping.md``.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from scipy.special import log_ndtr

from dprmt.accounting._cells import LossCells
from dprmt.accounting._gaussian_cells import interval_masses
from dprmt.accounting._isotonic import isotonic_regression
from dprmt.accounting._norm_ratio import NormRatioBins
from dprmt.accounting._secret_pair import SecretUpperPair, inflection_shift
from dprmt.accounting._shifted_normals import SEEN, blocks, prefix_sums, suffix_sums, two_sides
from dprmt.accounting._types import Array

_FAR = 35.0  # thresholds beyond which Q-masses are kept as logarithms: Φ(-38.5) is 0


@dataclass(frozen=True)
class SecretLowerPair:
    """A pair that the law of ``bins`` dominates: chords of a trade-off curve that is nowhere too high."""

    bins: NormRatioBins
    noise_multiplier: float
    sample_rate: float
    slack: float = 0.0

    def _guide(self) -> SecretUpperPair:
        x, mass = self.bins.concentrate(0.0)
        return SecretUpperPair(self._shift(x), mass, self.sample_rate, is_law=True)

    def _shift(self, x: Array) -> Array:
        with np.errstate(divide="ignore", invalid="ignore"):
            value: Array = 1.0 / (self.noise_multiplier * np.sqrt(x))
        return value

    def loss_range(self, tail: float) -> tuple[float, float]:
        """As in :class:`SecretUpperPair`."""
        return self._guide().loss_range(tail)

    def _curve(self, t: Array) -> tuple[Array, Array]:
        """A lower bound of E Φ(μ - t), and 1 minus it; each without cancellation where it is small (C5)."""
        # Bin by bin: Jensen's inequality where convex, a chord where concave, else the right end. Shifts fall along
        # the bins: those far above t count in full, those far below not at all.
        bins = self.bins
        at_left, at_right, at_mean = (self._shift(x) for x in (bins.left, bins.right, bins.mean))
        with np.errstate(divide="ignore", invalid="ignore"):
            to_right = (bins.mean - bins.left) / (bins.right - bins.left)
        before, after = prefix_sums(bins.mass), suffix_sums(bins.mass)
        star, value, rest = inflection_shift(t)[:, None], np.empty(t.size), np.empty(t.size)
        for rows in blocks(t.size):
            first = int(np.searchsorted(-at_right, -(float(t[rows].max()) + SEEN)))
            last = max(int(np.searchsorted(-at_left, SEEN - float(t[rows].min()))), first)
            some = slice(first, last)
            convex = (at_left[some] <= star[rows]) & np.isfinite(at_mean[some])
            concave = (at_right[some] >= star[rows]) & np.isfinite(to_right[some]) & ~convex
            share = np.clip(np.where(concave, to_right[some], 1.0), 0.0, 1.0)
            one_up, one_down = two_sides(np.where(convex, at_mean[some], at_right[some]) - t[rows, None])
            up, down = two_sides(at_left[some] - t[rows, None])
            value[rows] = (share * one_up + (1.0 - share) * up) @ bins.mass[some] + before[first]
            rest[rows] = (share * one_down + (1.0 - share) * down) @ bins.mass[some] + after[last]
        up, down = two_sides(at_left[0] - t)
        return value + bins.below * up, rest + bins.below * down

    def cells(self, nodes: Array) -> LossCells:
        """Masses between increasing loss nodes, after merging outcomes between thresholds."""
        q = self.sample_rate
        t, _ = self._guide().thresholds(nodes)
        t = np.unique(t[np.isfinite(t)])
        value, rest = self._curve(t)
        value, rest = np.concatenate([[1.0], value, [0.0]]), np.concatenate([[0.0], rest, [1.0]])
        step = np.where(value[:-1] < 0.5, -np.diff(value), np.diff(rest))
        ends = np.concatenate([[-np.inf], t, [np.inf]])
        absent = interval_masses(ends)
        present = (1.0 - q) * absent + q * step
        far = int(np.searchsorted(ends, _FAR))
        p_masses, q_masses, ratio = _merged(present[:far], absent[:far])
        _merge_far(p_masses, q_masses, ratio, present[far:], _log_masses(ends[far:]))
        return _by_node(nodes, np.array(p_masses), np.array(q_masses), np.array(ratio))


def _log_masses(points: Array) -> Array:
    """Log of Φ(-points[i]) - Φ(-points[i + 1]), for points far above 0."""
    above = log_ndtr(-points)
    with np.errstate(divide="ignore", invalid="ignore"):
        share = np.where(np.isneginf(above[1:]), 0.0, np.exp(above[1:] - above[:-1]))
        value: Array = above[:-1] + np.log1p(-share)
    return value


def _merged(present: Array, absent: Array) -> tuple[list[float], list[float], list[float]]:
    """Outcomes merged into a monotone likelihood ratio: P-masses, Q-masses, logs of the ratio."""
    keep = absent > 0
    weights = np.maximum(absent[keep], 1e-300)
    ratio = np.maximum(isotonic_regression(present[keep] / weights, weights), 0.0)
    with np.errstate(divide="ignore"):
        return (ratio * absent[keep]).tolist(), absent[keep].tolist(), np.log(ratio).tolist()


def _merge_far(p: list[float], q: list[float], ratio: list[float], present: Array, log_absent: Array) -> None:
    """Go on, in place, with outcomes whose Q-masses are given as logarithms."""
    logs = [math.log(mass) for mass in q]
    for mass, log_mass in zip(present.tolist(), log_absent.tolist(), strict=True):
        p.append(mass)
        logs.append(log_mass)
        ratio.append(_log_ratio(mass, log_mass))
        while len(p) > 1 and ratio[-1] <= ratio[-2]:
            p[-2:] = [p[-2] + p[-1]]
            logs[-2:] = [_log_sum(logs[-2], logs[-1])]
            ratio[-2:] = [_log_ratio(p[-1], logs[-1])]
    q[:] = [math.exp(log_mass) for log_mass in logs]


def _log_ratio(mass: float, log_mass: float) -> float:
    return math.log(mass) - log_mass if mass > 0.0 else -math.inf


def _log_sum(a: float, b: float) -> float:
    high, low = max(a, b), min(a, b)
    return high + math.log1p(math.exp(low - high)) if low > -math.inf else high


def _by_node(nodes: Array, p: Array, q: Array, log_ratio: Array) -> LossCells:
    place = np.searchsorted(nodes, log_ratio, side="right")
    p_cells = np.bincount(place, weights=np.maximum(p, 0.0), minlength=nodes.size + 1)
    q_cells = np.bincount(place, weights=q, minlength=nodes.size + 1)
    return LossCells(
        p=p_cells[1:-1],
        q=q_cells[1:-1],
        p_below=float(p_cells[0]),
        q_below=float(q_cells[0]),
        p_above=float(p_cells[-1]),
        q_above=float(q_cells[-1]),
    )
