r"""Rare large-loss events composed apart from the small-loss part: (J1) of ``docs/theory/randomized_clipping.md``.

δ_T(ε) = Σ_j C(T,j) ∫ ν^{*j}(dl) D_{T-j}(ε - l): ν is the law of one step's loss above a loss B, on a mesh of its own,
and D_n(ε) = E(1 - e^{ε - S})₊ that of n steps of the rest.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import gammaln

from dprmt.accounting.basics import Array, Side
from dprmt.accounting.composition._small_losses import mean_ratio, small_loss_curves
from dprmt.accounting.pairs import LossPMF

_NEGLIGIBLE = 1e-5  # share of δ that may be charged for more large losses than are counted
_MOST_EVENTS = 60
_FEW_STEPS = 2**12  # with more, a step more or less hardly matters
_SUMS = 1e-11  # relative, of convolutions and of the number of ways
_EPS = float(np.finfo(np.float64).eps)
_LAST_INDEX = 2**61
_WIDE_MESH = 500.0  # e^mesh is then far from the largest number, and from 1


@dataclass(frozen=True)
class LargeLosses:
    """The laws of 0, 1, … large losses, each at its sums, one after the other.

    Attributes
    ----------
    number : ndarray of int64, shape (n,)
        How many large losses.
    index : ndarray of int64, shape (n,)
        Their sum, in units of the small-loss part's mesh.
    mass : ndarray, shape (n,)
        P-mass, times the number of ways to choose the steps that have them.
    infinite : ndarray, shape (m,)
        For each number of large losses the P-mass beyond all nodes that counts as infinite.
    """

    number: NDArray[np.int64]
    index: NDArray[np.int64]
    mass: Array
    infinite: Array


class SplitCurve:
    """δ(ε) of a composition with rare large-loss events: the same questions as to a :class:`DeltaCurve`.

    ``pmf``: one step's loss; what lies above ``cut`` on multiples of ``stride``.
    ``offset``: what has to be added to each step's loss.
    ``cut``, ``stride``: last index of the small-loss part, and the large losses' mesh in units of the small ones'.
    """

    def __init__(
        self, pmf: LossPMF, steps: int, cut: int, stride: int, side: Side, small: float, offset: float = 0.0
    ) -> None:
        self.mesh, self.side = pmf.mesh, side
        self.steps, self.offset = steps, steps * offset
        small_part = pmf.index <= cut
        rest = LossPMF(pmf.index[small_part], pmf.mass[small_part], pmf.mesh, 0.0)
        large = _dense(pmf.index[~small_part] // stride, rounded(pmf.mass[~small_part], side))
        kept, leaves = float(rest.mass.sum()), float(large.sum())
        most, self.charged = events_to_count(steps, kept, leaves, small)
        events = _large_losses(large, steps, most, stride, rest.mesh, side)
        self._compose(rest, events, [_stand_in(steps, j, most, side) for j in range(most + 1)], small)
        self.infinite = 0.0
        if side == "upper":
            never = steps * math.log1p(-pmf.infinite) if pmf.infinite < 1.0 else -math.inf
            self.infinite = min(-math.expm1(never) + self.charged, 1.0)
        self.last = int(pmf.index[-1])

    def _compose(self, rest: LossPMF, events: LargeLosses, plan: list[int], small: float) -> None:
        """What small losses add to the large ones: ``plan`` is their number beside 0, 1, … large ones (J2)."""
        counts = sorted(set(plan))
        self.small_part = small_loss_curves(rest, counts, small, self.side)
        row = np.searchsorted(counts, plan)
        # Steps that the stand-in has too many.
        extra = np.array(plan) - (self.steps - np.arange(len(plan), dtype=np.int64))
        mass = float(rest.mass.sum())
        drift = extra * (math.log(mean_ratio(rest) / mass) / rest.mesh)
        shift = (np.ceil(drift) if self.side == "upper" else np.floor(drift)).astype(np.int64)
        factor = np.exp(-extra * math.log(mass))
        self.rows, self.places = row[events.number], events.index + shift[events.number]
        self.weights = events.mass * factor[events.number]
        self.beyond = float(events.infinite @ (factor * self.small_part.most[row])) if self.side == "upper" else 0.0

    def at(self, index: int) -> float:
        """The bound on δ at a grid point, without infinite losses."""
        value = float(self.weights @ self.small_part.at(self.rows, index - self.places)) + self.beyond
        rounding = _SUMS + _EPS * self.weights.size
        return value * (1.0 - rounding if self.side == "lower" else 1.0 + rounding)

    def delta_bounds(self, epsilon: float) -> tuple[float, float]:
        """As :meth:`DeltaCurve.delta_bounds`; the side that was not asked for is trivial."""
        epsilon -= self.offset
        left = math.floor(epsilon / self.mesh)
        if left > _LAST_INDEX:  # beyond all that is numbered: δ falls
            return 0.0, 1.0 if self.side == "lower" else min(self.at(_LAST_INDEX) + self.infinite, 1.0)
        at_left, at_right = self.at(left), self.at(left + 1)
        share = _share_of_cell(epsilon - left * self.mesh, self.mesh)
        value = at_left + min(max(share, 0.0), 1.0) * (at_right - at_left)
        if self.side == "lower":
            return min(value, 1.0), 1.0
        return 0.0, min(value + self.infinite, 1.0)

    def epsilon_above(self, delta: float) -> float:
        """As :meth:`DeltaCurve.epsilon_above`."""
        if delta <= self.infinite:
            return math.inf
        return self._crossing(delta - self.infinite)[1]

    def epsilon_below(self, delta: float) -> float:
        """As :meth:`DeltaCurve.epsilon_below`."""
        return self._crossing(delta)[0]

    def _crossing(self, delta: float) -> tuple[float, float]:
        """Ends of an interval in which the bound falls through ``delta``: (0, 0) or (·, ∞) where it does not."""
        low = math.floor(-self.offset / self.mesh)
        high = max(self.last, 0) + max(low, 0) + 1
        at_low, at_high = self.at(low), self.at(high)
        if at_low <= delta:
            return 0.0, 0.0
        if at_high > delta:
            return max(high * self.mesh + self.offset, 0.0), math.inf
        while high - low > 1:
            middle = _between(low, at_low, high, at_high, delta)
            value = self.at(middle)
            if value > delta:
                low, at_low = middle, value
            else:
                high, at_high = middle, value
        share = (at_low - delta) / (at_low - at_high)
        epsilon = low * self.mesh + _place_in_cell(share, self.mesh)
        rounding = 1e-15 * (abs(epsilon) + abs(self.offset))
        return max(epsilon + self.offset - rounding, 0.0), max(epsilon + self.offset + rounding, 0.0)


def _share_of_cell(offset: float, mesh: float) -> float:
    """(e^offset - 1)/(e^mesh - 1), also where the mesh is so wide that both overflow."""
    if mesh < _WIDE_MESH:
        return math.expm1(offset) / math.expm1(mesh)
    return math.exp(offset - mesh)


def _place_in_cell(share: float, mesh: float) -> float:
    """The offset that has this share."""
    if mesh < _WIDE_MESH:
        return math.log1p(share * math.expm1(mesh))
    return max(mesh + math.log(share), 0.0) if share > 0.0 else 0.0


def _between(low: int, at_low: float, high: int, at_high: float, delta: float) -> int:
    """Halfway, or the logarithm's chord where both ends are near."""
    if at_high > 0.0 and at_low < 30 * at_high:
        share = math.log(at_low / delta) / math.log(at_low / at_high)
        guess = low + round(share * (high - low))
        margin = max(1, (high - low) // 32)
        return min(max(guess, low + margin), high - margin) if high - low > 2 * margin else (low + high) // 2
    return (low + high) // 2


def rounded(mass: Array, side: Side) -> Array:
    """Masses with the rounding of the tails that they are differences of charged (F1)."""
    charge = 64 * _EPS * np.cumsum(mass[::-1])[::-1]
    return mass + charge if side == "upper" else np.maximum(mass - charge, 0.0)


def _dense(index: Array, mass: Array) -> Array:
    return np.bincount(index.astype(np.intp), weights=mass) if index.size else np.zeros(1)


def events_to_count(steps: int, kept: float, leaves: float, small: float) -> tuple[int, float]:
    """The largest number of large losses that is followed up, and a bound on the probability of more."""
    most = min(steps, _MOST_EVENTS)
    if leaves <= 0.0:
        return 0, 0.0
    j = np.arange(most + 1, dtype=np.int64)
    log_term = _log_ways(steps, j) + j * math.log(leaves) + (steps - j) * math.log(kept)
    # Beyond the last term each is at most T·leaves/(kept·j) of the one before.
    ratio = steps * leaves / (kept * (most + 1))
    beyond = 0.0 if most == steps else math.exp(log_term[-1]) * (ratio / (1 - ratio) if ratio < 1 else math.inf)
    more = np.append(np.cumsum(np.exp(log_term)[::-1])[::-1][1:], 0.0) + beyond
    enough = np.flatnonzero(more <= _NEGLIGIBLE * small)
    count = int(enough[0]) if enough.size else most
    return count, min(float(more[count]) * (1 + _SUMS), 1.0)


def _log_ways(steps: int, j: Array) -> Array:
    """Log of the binomial coefficient: a sum of logs for few j, where gammaln of a large T would cancel."""
    value: Array = np.cumsum(np.log(np.maximum(steps - j + 1.0, 1.0))) - math.log(steps + 1.0) - gammaln(j + 1.0)
    return value


def _large_losses(large: Array, steps: int, most: int, stride: int, mesh: float, side: Side) -> LargeLosses:
    """The laws of up to ``most`` large losses among all steps; ``large`` is that of one on multiples of ``stride``."""
    laws, infinite = [np.ones(1)], [0.0]
    for j in range(1, most + 1):
        law, lost = _one_more(laws[-1], infinite[-1], large, stride * mesh, side)
        ways = (steps - j + 1) / j  # more than for one large loss less
        laws.append(law * ways)
        infinite.append(lost * ways)
    used = [np.flatnonzero(law) for law in laws]
    return LargeLosses(
        np.repeat(np.arange(most + 1, dtype=np.int64), [places.size for places in used]),
        np.concatenate(used).astype(np.int64) * stride,
        np.concatenate([law[places] for law, places in zip(laws, used, strict=True)]),
        np.array(infinite),
    )


def _stand_in(steps: int, j: int, most: int, side: Side) -> int:
    """The number of small-loss steps that is composed for T - j: another one where that costs next to nothing (J2)."""
    if steps <= _FEW_STEPS or j < 2:
        return steps - j
    return steps - 1 if side == "upper" else steps - most


def _one_more(law: Array, infinite: float, large: Array, mesh: float, side: Side) -> tuple[Array, float]:
    """One large loss more; what lies beyond the last node is shared between it and ∞, or moved down to it."""
    last = large.size - 1
    both = np.convolve(law, large)
    inside, beyond = both[: last + 1].copy(), both[last + 1 :]
    if inside.size < last + 1:
        inside = np.append(inside, np.zeros(last + 1 - inside.size))
    infinite *= float(large.sum())
    if beyond.size:
        kept = beyond if side == "lower" else beyond * np.exp(-mesh * np.arange(1, beyond.size + 1, dtype=np.int64))
        inside[last] += float(kept.sum())
        infinite += 0.0 if side == "lower" else float((beyond - kept).sum())
    return inside, infinite
