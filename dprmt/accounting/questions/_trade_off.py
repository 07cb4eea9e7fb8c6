"""Trade-off functions: the smallest false negative rate of any test at a given false positive rate."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from dprmt._validation import ParameterError
from dprmt.accounting.basics._bounds import Direction, band_html, band_text
from dprmt.accounting.basics._numbers import Array
from dprmt.accounting.composition._compose import ComposedLoss
from dprmt.accounting.composition._solve import Level
from dprmt.accounting.pairs._pairs import Schedule
from dprmt.accounting.pairs._steps import Neighbours
from dprmt.accounting.questions._by_curves import lines_by_curves

_DIRECTIONS: tuple[Direction, Direction] = ("remove", "add")


@dataclass(frozen=True)
class TradeOff:
    """A certified band around the trade-off function.

    Attributes
    ----------
    alpha : ndarray
        False positive rates.
    lower, estimate, upper : ndarray, shape of ``alpha``
        Bounds on, and a guess of, the smallest false negative rate β. ``lower`` is the safe side.
    """

    alpha: Array
    lower: Array
    estimate: Array
    upper: Array

    def __str__(self) -> str:
        return band_text(self)

    def _repr_html_(self) -> str:
        return band_html(self)


def checked_rates(alpha: ArrayLike) -> Array:
    """Check false positive rates and return them as an array."""
    try:
        rates = np.asarray(alpha)
        if rates.dtype.kind in "fiu" and np.all((rates >= 0) & (rates <= 1)):
            return rates.astype(np.float64)
    except (TypeError, ValueError, RuntimeError):  # rows of different lengths; tensors that numpy may not read
        pass
    raise ParameterError("alpha", alpha, "numbers in [0, 1]")


def trade_off(schedule: Schedule, alpha: ArrayLike, directions: Sequence[Direction] = _DIRECTIONS) -> TradeOff:
    """Return the smaller of both directions' trade-off functions of a composition, or the only one if they are equal.

    Notes
    -----
    f(α) = sup_ε (1 - δ(ε) - e^ε α) over all real ε: Dong, Roth & Su 2022 (arXiv:1905.02383v3), Proposition 6.
    """
    alpha = checked_rates(alpha)
    bands = [Level(schedule, None, direction, 0.5) for direction in directions]
    lower = np.min([_beta(band.whole("upper"), alpha, band.drift, safe=True) for band in bands], axis=0)
    upper = np.min([_beta(band.whole("lower"), alpha, band.drift, safe=False) for band in bands], axis=0)
    return _band(alpha, lower, np.maximum(np.minimum(upper, 1.0 - alpha), lower))


def _band(alpha: Array, lower: Array, upper: Array) -> TradeOff:
    """Return the band with an estimate: the upper side errs about twice as much."""
    return TradeOff(alpha, lower, lower + 0.33 * (upper - lower), upper)


def trade_off_by_curves(schedule: Schedule, alpha: ArrayLike, neighbours: Neighbours) -> TradeOff:
    """Compute the trade-off for a relation without a pair, from curves of one sample composed (N6).

    The upper side is the upper side of one sample.
    """
    one = trade_off(schedule, alpha)
    best = np.zeros(one.alpha.shape)
    each = [lines for side in _DIRECTIONS if (lines := lines_by_curves(schedule, side, neighbours, 1e-9))]
    if each:
        rates = one.alpha[..., None]
        with np.errstate(over="ignore"):
            rises = [np.where(rates > 0.0, np.exp(lines.epsilon), 0.0) * rates for lines in each]  # not ∞ · 0
        powers = [np.min(lines.delta + rise, axis=-1) for lines, rise in zip(each, rises, strict=True)]
        best = np.clip(1.0 - np.max(powers, axis=0), 0.0, 1.0)
    return _band(one.alpha, np.minimum(best, one.upper), one.upper)


def _beta(loss: ComposedLoss, alpha: Array, drift: float, safe: bool) -> Array:
    """Sup over grid points of 1 - δ(l) - e^l α; the maximizer has Q-mass α above it."""
    # For ``safe`` any grid point would do, and errors are subtracted; else the supremum is needed over all real
    # l, which is attained on the grid (or at l → -∞) because δ is linear in e^l between grid points.
    p = loss.mass * np.exp(loss.log_scale)
    with np.errstate(over="ignore", under="ignore"):
        q_above = np.cumsum((p * np.exp(-np.maximum(loss.losses, -700.0)))[::-1])[::-1]
        weight = np.exp(np.minimum(loss.losses, 700.0))
    p_above = np.cumsum(p[::-1])[::-1]
    error = loss.error * np.exp(loss.log_scale) + 1e-12 + drift
    place = np.searchsorted(-q_above, -alpha.ravel(), side="left")
    best = np.full(alpha.size, 1.0 - float(p.sum()) - loss.infinite)
    for shift in (-1, 0, 1):
        j = np.clip(place + shift, 0, p.size - 1)
        after = np.minimum(j + 1, p.size - 1)
        inside = j + 1 < p.size
        delta = np.where(inside, p_above[after] - weight[j] * q_above[after], 0.0) + loss.infinite
        best = np.maximum(best, 1.0 - delta - weight[j] * alpha.ravel())
    best = best - error if safe else best + error
    result: Array = np.clip(best, 0.0, 1.0).reshape(alpha.shape)
    return result
