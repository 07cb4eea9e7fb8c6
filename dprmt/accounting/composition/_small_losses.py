"""δ of many steps whose losses stay small, at every real ε: the small-loss part of a split composition (J1)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dprmt.accounting.basics import Array, Side
from dprmt.accounting.composition._composed_loss import (
    ComposedRows,
    composed_rows,
    log_kappa,
    log_mgf,
    tilt_for_delta,
    window_of,
)
from dprmt.accounting.composition._delta_curve import discounted_suffix_sums
from dprmt.accounting.pairs import LossPMF

_TILT_SPACING = 3.5  # in standard deviations of the loss: halfway, Chernoff's bound is loose by e^{1.5}
_MOST_TILTS = 4
_LARGE, _LARGE_PER_STEP = 3e-6, 1e-8  # compared with which what is charged without a tilt is nothing
_MOST_POINTS = 2**20
_POINTS_AT_A_TIME = 2**17
_LARGEST_EXPONENT = 600.0
_EPS = float(np.finfo(np.float64).eps)


class WindowTooLongError(ValueError):
    """The mesh is too fine for the small-loss part: ``factor`` is how much coarser it has to be."""

    def __init__(self, factor: float) -> None:
        super().__init__(f"a mesh {factor:.3g} times as wide is needed")
        self.factor = factor


@dataclass(frozen=True)
class SmallLossCurves:
    """A bound on D(ε) = E(1 - e^{ε - S})₊ at every multiple of the mesh, for several numbers of small-loss steps.

    Attributes
    ----------
    first : int
        Grid index of the first value.
    values : ndarray, shape (m, n + 1)
        Bounds on D from there on; the last one holds for everything to the right.
    mass, log_discounted : ndarray, shape (m,)
        E 1 and log E e^{-S}: left of the grid D lies at most a little above mass - e^ε · E e^{-S}.
    gap, most : ndarray, shape (m,)
        What is added there, from below less than nothing, and what D never exceeds.
    """

    first: int
    values: Array
    mesh: float
    mass: Array
    log_discounted: Array
    gap: Array
    most: Array

    def at(self, rows: NDArray[np.int64], index: NDArray[np.int64]) -> Array:
        """Bounds on D of the numbers of steps in ``rows``, at grid indices."""
        place = index - self.first
        width = self.values.shape[1]
        found: Array = np.take(self.values, (rows * width + np.clip(place, 0, width - 1)).astype(np.intp))
        left = np.flatnonzero(place < 0)
        found[left] = self._left_of_the_grid(rows[left], index[left])
        return found

    def _left_of_the_grid(self, rows: NDArray[np.int64], index: NDArray[np.int64]) -> Array:
        with np.errstate(over="ignore"):  # e^ε beyond the largest number: nothing is left
            linear = np.maximum(self.mass[rows] - np.exp(index * self.mesh + self.log_discounted[rows]), 0.0)
        value: Array = np.clip(linear + self.gap[rows], 0.0, self.most[rows])
        return np.maximum(value, self.values[rows, 0])  # D falls


def small_loss_curves(pmf: LossPMF, counts: Sequence[int], small: float, side: Side) -> SmallLossCurves:
    """D of as many small-loss steps as each of the increasing ``counts`` says, good to a small part of ``small``."""
    positive = [count for count in counts if count > 0]
    parts = []
    for tilt in _tilts(pmf, max(positive), small) if positive else []:
        first, size = window_of(pmf, min(positive), max(positive), tilt)
        if size > _MOST_POINTS:
            raise WindowTooLongError(size / _MOST_POINTS)
        parts.append((first, _at_nodes(pmf, positive, tilt, first, size, side)))
    first, values = _best_of(parts, side) if parts else (0, np.zeros((0, 1)))
    steps = np.array(positive)
    _leave_out_the_impossible(values, first, steps * int(pmf.index[-1]))
    if len(positive) < len(counts):
        nothing = _no_step(first, values.shape[1], pmf.mesh, side)
        values, steps = np.vstack([nothing, values]), np.append(0, steps)
    return _with_what_lies_left(pmf, steps, first, values, side)


def _no_step(first: int, size: int, mesh: float, side: Side) -> Array:
    """D(ε) = (1 - e^ε)₊ of nothing; the last value holds for everything to the right."""
    value: Array = -np.expm1(np.minimum((first + np.arange(size, dtype=np.int64)) * mesh, 0.0))
    if side == "lower":
        value[-1] = 0.0
    return value


def _tilts(pmf: LossPMF, count: int, small: float) -> list[float]:
    """From the one that decides where D is about ``small`` down to 0; that one alone where it is good enough."""
    if small > _LARGE + count * _LARGE_PER_STEP:
        return [0.0]
    phases = [(pmf, count)]
    largest = tilt_for_delta(phases, 1e-3 * small)
    steps = 1e-3 + float(np.sqrt(max(2 * (log_mgf(phases, np.array([largest]))[0] / (largest * (1 + largest))), 0.0)))
    number = int(min(max(np.ceil(largest * steps / _TILT_SPACING), 1), _MOST_TILTS))
    return [largest * i / number for i in range(number, -1, -1)]


def _at_nodes(pmf: LossPMF, counts: list[int], tilt: float, first: int, size: int, side: Side) -> Array:
    """Bounds on D at each point of a window, one row for each number of steps."""
    losses = (first + np.arange(size, dtype=np.int64)) * pmf.mesh
    chunk = max(_POINTS_AT_A_TIME // size, 1)
    found = [_bound(loss, losses, tilt, side) for loss in composed_rows(pmf, counts, tilt, first, size, chunk)]
    return np.vstack(found)


def _bound(rows: ComposedRows, losses: Array, tilt: float, side: Side) -> Array:
    """Bounds on D at each grid point of composed losses; the trivial ones where their tilt says nothing."""
    largest = float(rows.log_scale.max())
    exponent = largest - tilt * losses
    growth = _exp(exponent, side)
    weight = rows.mass * growth
    above = np.cumsum(weight[:, ::-1], axis=1)[:, ::-1]
    value = above - discounted_suffix_sums(weight, losses)
    kappa = float(np.exp(log_kappa(np.asarray(tilt))))
    charged = (kappa * rows.error[:, None]) * growth + (2 * _EPS * losses.size + 1e-13) * above
    bound = value + charged if side == "upper" else np.maximum(value - charged, 0.0)
    bound *= _exp(rows.log_scale - largest, side)[:, None]
    bound[:, exponent > _LARGEST_EXPONENT] = np.inf if side == "upper" else 0.0
    return bound


def _exp(exponent: Array, side: Side) -> Array:
    """Numbers beyond the range of floating point are on the safe side: too large from above, too small from below."""
    lowest = -_LARGEST_EXPONENT if side == "upper" else -np.inf
    with np.errstate(under="ignore"):
        value: Array = np.exp(np.clip(exponent, lowest, _LARGEST_EXPONENT))
    return value


def mean_ratio(pmf: LossPMF) -> float:
    """E e^{-L} of the finite part; ∞ where it overflows."""
    used = pmf.mass > 0
    with np.errstate(over="ignore"):
        return float(np.sum(pmf.mass[used] * np.exp(-pmf.losses[used])))


def _best_of(parts: list[tuple[int, Array]], side: Side) -> tuple[int, Array]:
    """The best of several bounds at each node; D falls, so each serves its neighbours, and what lies to the right."""
    first = parts[-1][0]  # without a tilt: left of there D is linear, and other tilts say nothing
    last = max(start + part.shape[1] for start, part in parts)
    best = np.full((parts[0][1].shape[0], last - first + 1), np.inf if side == "upper" else 0.0)
    choose = np.minimum if side == "upper" else np.maximum
    for start, part in parts:
        seen = part[:, max(first - start, 0) :]
        here = best[:, max(start - first, 0) : max(start - first, 0) + seen.shape[1]]
        choose(here, seen, out=here)
    if side == "upper":
        return first, np.minimum.accumulate(best, axis=1)
    return first, np.maximum.accumulate(best[:, ::-1], axis=1)[:, ::-1]


def _leave_out_the_impossible(values: Array, first: int, top: NDArray[np.int64]) -> None:
    """D is 0 from the largest loss of all steps on."""
    for row, beyond in zip(values, np.maximum(top - first, 0), strict=True):
        row[beyond:] = 0.0


def _with_what_lies_left(
    pmf: LossPMF, steps: NDArray[np.int64], first: int, values: Array, side: Side
) -> SmallLossCurves:
    """The part of D that is linear in e^ε, and how far D may lie above it left of the grid: most at the first node."""
    mass = np.exp(steps * np.log(pmf.mass.sum()))
    log_ratio = math.log(mean_ratio(pmf))
    log_discounted = steps * log_ratio
    rounding = 2 * _EPS * (steps * (1.0 + abs(log_ratio)) + pmf.mass.size) * mass
    if side == "lower":
        return SmallLossCurves(first, values, pmf.mesh, mass, log_discounted, -rounding, mass)
    with np.errstate(over="ignore"):
        gap = np.maximum(values[:, 0] - (mass - np.exp(first * pmf.mesh + log_discounted)), 0.0) + rounding
    gap = np.where(steps == 0, rounding, gap)  # (1 - e^ε)₊ is what it is
    most = mass + rounding
    return SmallLossCurves(first, np.minimum(values, most[:, None]), pmf.mesh, mass, log_discounted, gap, most)
