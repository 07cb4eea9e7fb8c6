r"""One step with secret probes from below: chords of a trade-off curve that is nowhere too high.

Equation (C5) of ``docs/theory/randomized_clipping.md``.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from scipy.special import log_ndtr, ndtr

from dprmt.accounting.basics import Array, isotonic_regression
from dprmt.accounting.laws import NormRatioBins
from dprmt.accounting.pairs._cells import LossCells, interval_masses
from dprmt.accounting.pairs._secret_upper_pair import SecretUpperPair, inflection_shift
from dprmt.accounting.pairs._shifted_normals import FULL, blocks, normal_sums, prefix_sums, reach, suffix_sums

_FAR = 35.0  # thresholds beyond which Q-masses are kept as logarithms: Φ(-38.5) is 0


@dataclass(frozen=True)
class SecretLowerPair:
    """A pair that the law of ``bins`` dominates: chords of a trade-off curve that is nowhere too high."""

    bins: NormRatioBins
    noise_multiplier: float
    sample_rate: float
    slack: float = 0.0

    @cached_property
    def guide(self) -> SecretUpperPair:
        """The pair whose thresholds say where outcomes are merged."""
        x, mass = self.bins.concentrate(0.0)
        return SecretUpperPair(self._shift(x), mass, self.sample_rate)

    def _shift(self, x: Array) -> Array:
        with np.errstate(divide="ignore", invalid="ignore"):
            value: Array = 1.0 / (self.noise_multiplier * np.sqrt(x))
        return value

    def loss_range(self, tail: float) -> tuple[float, float]:
        """As in :class:`SecretUpperPair`."""
        return self.guide.loss_range(tail)

    def curve(self, t: Array) -> tuple[Array, Array]:
        """A lower bound of E Φ(μ - t), and 1 minus it; each without cancellation where it is small (C5)."""
        bins = self._points
        value, rest = np.empty(t.size), np.empty(t.size)
        for rows in blocks(t.size):
            beyond = t[rows] >= bins.middle
            if beyond.all():
                value[rows] = bins.above(t[rows])
                rest[rows] = bins.whole - value[rows]
                continue
            rest[rows] = bins.beside(t[rows])
            value[rows] = bins.whole - rest[rows]
            if beyond.any():
                value[rows] = np.where(beyond, bins.above(t[rows]), value[rows])
        return value, rest

    @cached_property
    def _points(self) -> _Points:
        return _Points.of(self.bins, self._shift)

    def thresholds(self, nodes: Array) -> Array:
        """Where outcomes are told apart; any will do."""
        return self.guide.thresholds(nodes)[0]

    def cells(self, nodes: Array) -> LossCells:
        """Masses between increasing loss nodes, after merging outcomes between thresholds."""
        t = finite(self.thresholds(nodes))
        return cells_of_curve(nodes, t, *self.curve(t), self.sample_rate)


@dataclass(frozen=True)
class _Points:
    """Bins by falling shifts: at their left end, their mean, their right end; an atom for what lies below them."""

    at_left: Array
    at_mean: Array
    at_right: Array
    mass: Array
    to_right: Array
    before: Array
    after: Array
    middle: float

    @classmethod
    def of(cls, bins: NormRatioBins, shift: Callable[[Array], Array]) -> _Points:
        first = bins.left[:1]
        left, right = (np.concatenate([first, ends]) for ends in (bins.left, bins.right))
        mean, mass = np.concatenate([first, bins.mean]), np.concatenate([[bins.below], bins.mass])
        with np.errstate(divide="ignore", invalid="ignore"):
            to_right = np.clip((mean - left) / (right - left), 0.0, 1.0)
        at_left, at_right = shift(left), shift(right)
        before = prefix_sums(mass)
        middle = int(np.searchsorted(before[1:], before[-1] / 2))
        return cls(
            at_left,
            np.where(np.isfinite(mean), shift(mean), at_right),
            at_right,
            mass,
            np.where(np.isfinite(to_right), to_right, 1.0),
            before,
            suffix_sums(mass),
            float(at_left[min(middle, mass.size - 1)]),
        )

    @property
    def whole(self) -> float:
        """All mass."""
        return float(self.before[-1])

    def above(self, t: Array) -> Array:
        """Σ of lower bounds of E[Φ(μ - t); bin]: those far above t count in full, those far below not at all."""
        lowest, highest = float(t.min()), float(t.max())
        seen = reach(float(self.before[np.searchsorted(-self.at_left, -highest)]) / 2)
        first = int(np.searchsorted(-self.at_right, -(highest + FULL)))
        last = max(int(np.searchsorted(-self.at_left, seen - lowest)), first)
        return self._between(t, first, last, 1.0) + self.before[first]

    def beside(self, t: Array) -> Array:
        """The mass less :meth:`above`, summed by itself."""
        lowest, highest = float(t.min()), float(t.max())
        seen = reach(float(self.after[np.searchsorted(-self.at_left, -lowest)]) / 2)
        first = int(np.searchsorted(-self.at_right, -(highest + seen)))
        last = max(int(np.searchsorted(-self.at_left, FULL - lowest)), first)
        return self._between(t, first, last, -1.0) + self.after[last]

    def _between(self, t: Array, first: int, last: int, sign: float) -> Array:
        """Jensen's inequality where all of a bin is convex, a chord where it is concave, else the right end."""
        star = inflection_shift(t)
        chords = int(np.searchsorted(-self.at_right, -float(star.max()), side="right"))
        means = int(np.searchsorted(-self.at_left, -float(star.min())))
        chords, means = min(max(chords, first), last), min(max(means, first), last)
        means = max(means, chords)
        value = normal_sums(t, self.at_mean[means:last], self.mass[means:last], sign)
        value += normal_sums(t, self.at_right[first:chords], (self.mass * self.to_right)[first:chords], sign)
        value += normal_sums(t, self.at_left[first:chords], (self.mass * (1.0 - self.to_right))[first:chords], sign)
        some = slice(chords, means)
        if chords == means:
            return value
        convex = self.at_left[some] <= star[:, None]
        concave = ~convex & (self.at_right[some] >= star[:, None])
        share = np.where(concave, self.to_right[some], 1.0)
        one = ndtr(sign * (np.where(convex, self.at_mean[some], self.at_right[some]) - t[:, None]))
        left = ndtr(sign * (self.at_left[some] - t[:, None]))
        result: Array = value + (share * one + (1.0 - share) * left) @ self.mass[some]
        return result


def finite(thresholds: Array) -> Array:
    """Increasing ones."""
    return np.unique(thresholds[np.isfinite(thresholds)])


def cells_of_curve(nodes: Array, t: Array, value: Array, rest: Array, sample_rate: float) -> LossCells:
    """Masses between loss nodes of the pair whose curve joins the points at thresholds ``t``; ``rest`` is 1 - value."""
    ends = np.concatenate([[-np.inf], t, [np.inf]])
    present, absent = masses_between(ends, value, rest, sample_rate)
    far = int(np.searchsorted(ends, _FAR))
    p_masses, q_masses, ratio = merged(present[:far], absent[:far])
    _merge_far(p_masses, q_masses, ratio, present[far:], _log_masses(ends[far:]))
    return by_node(nodes, np.array(p_masses), np.array(q_masses), np.array(ratio))


def masses_between(ends: Array, value: Array, rest: Array, sample_rate: float) -> tuple[Array, Array]:
    """P- and Q-masses between thresholds, the first of which is -∞ and the last ∞, by a curve at the inner ones."""
    value, rest = np.concatenate([[1.0], value, [0.0]]), np.concatenate([[0.0], rest, [1.0]])
    step = np.where(value[:-1] < 0.5, -np.diff(value), np.diff(rest))
    absent = interval_masses(ends)
    return (1.0 - sample_rate) * absent + sample_rate * step, absent


def _log_masses(points: Array) -> Array:
    """Log of Φ(-points[i]) - Φ(-points[i + 1]), for points far above 0."""
    above = log_ndtr(-points)
    with np.errstate(divide="ignore", invalid="ignore"):
        share = np.where(np.isneginf(above[1:]), 0.0, np.exp(above[1:] - above[:-1]))
        value: Array = above[:-1] + np.log1p(-share)
    return value


def merged(present: Array, absent: Array) -> tuple[list[float], list[float], list[float]]:
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


def by_node(nodes: Array, p: Array, q: Array, log_ratio: Array) -> LossCells:
    """Cells of outcomes with the given masses and losses."""
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
