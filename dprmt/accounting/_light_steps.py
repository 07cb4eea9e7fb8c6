"""δ of many steps whose losses stay small, at every real ε: the light part of a jump split (J1)."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from dprmt.accounting._composition import ComposedLoss, composed_powers, log_kappa, log_mgf, tilt_for_delta, window_of
from dprmt.accounting._discretization import LossPMF
from dprmt.accounting._solve import discounted_suffix_sums
from dprmt.accounting._types import Array

_TILT_SPACING = 3.5  # in standard deviations of the loss: halfway, Chernoff's bound is loose by e^{1.5}
_MOST_TILTS = 4
_RELATIVE_ROUNDING = 1e-13
_MOST_POINTS = 2**20


class WindowTooLongError(ValueError):
    """The mesh is too fine for the light part: ``factor`` is how much coarser it has to be."""

    def __init__(self, factor: float) -> None:
        super().__init__(f"a mesh {factor:.3g} times as wide is needed")
        self.factor = factor


@dataclass(frozen=True)
class LightCurve:
    """Bounds on D(ε) = E(1 - e^{ε - S})₊ of composed light steps at every multiple of the mesh.

    Attributes
    ----------
    first : int
        Grid index of the first value.
    low, high : ndarray, shape (n,)
        Bounds on D from there on.
    top : int
        Grid index of the largest loss of all steps together: D is 0 from there on.
    mass, discounted : float
        E 1 and E e^{-S}: left of the grid D lies within ``gap`` above mass - e^ε · discounted.
    """

    first: int
    low: Array
    high: Array
    mesh: float
    top: int
    mass: float
    discounted: float
    rounding: float

    def bounds(self, index: Array) -> tuple[Array, Array]:
        """Bounds on D at grid indices."""
        place = index - self.first
        inside = np.clip(place, 0, self.low.size - 1)
        low, high = self.low[inside], self.high[inside]
        if math.isfinite(self.discounted):
            linear = self._linear(index)
            gap = max(float(self.high[0]) - float(self._linear(np.array([self.first]))[0]), 0.0)
        else:
            linear, gap = np.zeros(index.size), self.mass
        slack = self.rounding * self.mass
        low = np.where(place < 0, np.maximum(linear - slack, 0.0), np.where(place >= self.low.size, 0.0, low))
        high = np.where(place < 0, linear + gap + slack, np.where(index >= self.top, 0.0, high))
        return low, np.minimum(high, self.mass + slack)

    def _linear(self, index: Array) -> Array:
        with np.errstate(over="ignore", divide="ignore"):  # e^ε beyond the largest number: nothing is left
            subtracted = np.exp(index * self.mesh + np.log(self.discounted))
        value: Array = np.maximum(self.mass - subtracted, 0.0)
        return value


@dataclass(frozen=True)
class NoStep:
    """D(ε) = (1 - e^ε)₊: nothing is left to compose."""

    mesh: float
    mass: float = 1.0

    def bounds(self, index: Array) -> tuple[Array, Array]:
        """As :meth:`LightCurve.bounds`."""
        value: Array = -np.expm1(np.minimum(index * self.mesh, 0.0))
        return value, value


def light_curves(pmf: LossPMF, counts: list[int], small: float) -> dict[int, LightCurve | NoStep]:
    """D of ``count`` light steps for each count, good to a small part of ``small``."""
    curves: dict[int, LightCurve | NoStep] = {0: NoStep(pmf.mesh)}
    positive = [count for count in counts if count > 0]
    if not positive:
        return curves
    parts: dict[int, list[tuple[int, Array, Array]]] = {count: [] for count in positive}
    for tilt in _tilts(pmf, max(positive), small):
        first, size = window_of(pmf, min(positive), max(positive), tilt)
        if size > _MOST_POINTS:
            raise WindowTooLongError(size / _MOST_POINTS)
        for count, loss in composed_powers(pmf, positive, tilt, first, size).items():
            parts[count].append((first, *_at_nodes(loss)))
    for count in positive:
        curves[count] = _best_of(parts[count], pmf, count)
    return curves


def _tilts(pmf: LossPMF, count: int, small: float) -> list[float]:
    """From the one that decides where D is about ``small`` down to 0."""
    phases = [(pmf, count)]
    largest = tilt_for_delta(phases, 1e-3 * small)
    steps = 1e-3 + float(np.sqrt(max(2 * (log_mgf(phases, np.array([largest]))[0] / (largest * (1 + largest))), 0.0)))
    number = int(min(max(np.ceil(largest * steps / _TILT_SPACING), 1), _MOST_TILTS))
    return [largest * i / number for i in range(number, -1, -1)]


def _at_nodes(loss: ComposedLoss) -> tuple[Array, Array]:
    """Bounds on D at each grid point of a composed loss; the trivial ones where its tilt says nothing."""
    around = float(loss.losses[-1])
    exponent = -loss.tilt * (loss.losses - around)
    seen = exponent < 600.0
    weight = loss.mass * np.exp(np.minimum(exponent, 600.0))
    kappa = float(np.exp(log_kappa(np.asarray(loss.tilt))))
    above = np.cumsum(weight[::-1])[::-1]
    value = above - discounted_suffix_sums(weight, loss.losses)
    error = loss.error * kappa * np.exp(np.minimum(exponent, 600.0)) + _RELATIVE_ROUNDING * above
    unit = loss.log_scale - loss.tilt * around
    with np.errstate(divide="ignore"):
        low = np.exp(np.minimum(np.log(np.maximum(value - error, 0.0)) + unit, 1.0))
        high = np.exp(np.minimum(np.log(value + error) + unit, 1.0))
    return np.where(seen, low, 0.0), np.where(seen, high, np.inf)


def mean_ratio(pmf: LossPMF) -> float:
    """E e^{-L} of the finite part; ∞ where it overflows."""
    used = pmf.mass > 0
    with np.errstate(over="ignore"):
        return float(np.sum(pmf.mass[used] * np.exp(-pmf.losses[used])))


def _best_of(parts: list[tuple[int, Array, Array]], pmf: LossPMF, count: int) -> LightCurve:
    first = min(start for start, _, _ in parts)
    last = max(start + low.size for start, low, _ in parts)
    low, high = np.zeros(last - first), np.full(last - first, np.inf)
    for start, part_low, part_high in parts:
        here = slice(start - first, start - first + part_low.size)
        low[here] = np.maximum(low[here], part_low)
        high[here] = np.minimum(high[here], part_high)
    high = np.minimum.accumulate(high)  # D falls with ε
    low = np.maximum.accumulate(low[::-1])[::-1]
    with np.errstate(under="ignore", over="ignore", divide="ignore"):
        mass = float(np.exp(count * np.log(pmf.mass.sum())))
        discounted = float(np.exp(count * math.log(mean_ratio(pmf))))
    eps = float(np.finfo(np.float64).eps)
    return LightCurve(
        first, low, high, pmf.mesh, count * int(pmf.index[-1]), mass, discounted, eps * (count + pmf.mass.size)
    )
