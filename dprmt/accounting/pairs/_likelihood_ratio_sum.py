r"""The law of W = (V_1 + … + V_t)/t under Q, from above and from below: one FFT, and a few rare large summands.

Equations (R4)-(R6) of ``docs/theory/random_allocation.md``.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import bdtrc, comb

from dprmt.accounting.basics import Array
from dprmt.accounting.pairs._likelihood_ratio import RatioCells, RatioLaw, merged, spread
from dprmt.accounting.pairs._power_convolution import GridMeasure, sum_on_grid

_MOST_LARGE = 12
_FEW_NODES = 800  # nodes for several large summands
_OUTSIDE = 1e-9  # mass outside the window of the FFT, relative to the tail that may be charged
_ENOUGH = 3.0  # rounding, relative to the same, below which one FFT will do


@dataclass(frozen=True)
class SumLaw:
    """A law of W.

    Attributes
    ----------
    ratio, mass : ndarray, shape (n,)
        Values of W and their Q-masses.
    lost : float
        P-mass to charge to an infinite loss.
    unclear : float
        Q-mass to charge to a loss of -∞.
    """

    ratio: Array
    mass: Array
    lost: float
    unclear: float


@dataclass(frozen=True)
class _Charged:
    """Atoms of the sum with a number of large summands, and what rounding and truncation may have misplaced."""

    law: RatioLaw
    lost: float
    unclear: float


def sum_from_above(law: RatioLaw, on_grid: int, mesh: float, copies: int, tail: float) -> SumLaw:
    """A law of W that is never more private, for a law of V that is not.

    ``on_grid``: number of atoms that are summed by FFT; the others are the large summands.
    """
    small, large = _split(law, on_grid, mesh)
    large_mass, large_moment = float(large.mass.sum()), float(large.mass @ large.ratio)
    small_moment = float(small.mass @ small.index) * mesh
    most = _most_large(copies, large_mass, large_moment, tail)
    parts = _parts(small, large, mesh, copies, most, tail, above=True)
    beyond = _more_than(most, copies, large_mass)
    lost = law.lost + sum(part.lost for part in parts)
    if beyond > 0:  # to W = 0: its P-mass, E[V_1; more than ``most`` large summands], is lost
        lost += small_moment * _more_than(most, copies - 1, large_mass)
        lost += large_moment * _more_than(most - 1, copies - 1, large_mass)
    unclear = beyond + sum(part.unclear for part in parts)
    return _joined(parts, copies, lost, unclear)


def sum_from_below(law: RatioLaw, on_grid: int, mesh: float, copies: int, tail: float) -> SumLaw:
    """A law of W that is never less private, for a law of V that is not. Arguments as in :func:`sum_from_above`."""
    small, large = _split(law, on_grid, mesh)
    large_mass, large_moment = float(large.mass.sum()), float(large.mass @ large.ratio)
    most = _most_large(copies, large_mass, large_moment, tail)
    return _joined(_parts(small, large, mesh, copies, most, tail, above=False), copies, 0.0, 0.0)


def _split(law: RatioLaw, on_grid: int, mesh: float) -> tuple[GridMeasure, RatioLaw]:
    index = np.rint(law.ratio[:on_grid] / mesh).astype(np.int64)
    large = np.arange(law.mass.size, dtype=np.int64) >= on_grid
    return GridMeasure(index, law.mass[:on_grid]), law.part(large & (law.mass > 0))


def _joined(parts: list[_Charged], copies: int, lost: float, unclear: float) -> SumLaw:
    ratio = np.concatenate([part.law.ratio for part in parts]) / copies
    mass = np.concatenate([part.law.mass for part in parts])
    keep = mass > 0
    return SumLaw(ratio[keep], mass[keep], min(lost, 1.0), min(unclear, 1.0))


def _most_large(copies: int, large_mass: float, large_moment: float, tail: float) -> int:
    """So many that the P-mass of more is a hundredth of ``tail``."""
    if large_mass == 0.0:
        return 0
    for number in range(min(_MOST_LARGE, copies)):
        rest = _more_than(number, copies - 1, large_mass)
        if rest + large_moment * _more_than(number - 1, copies - 1, large_mass) <= 1e-2 * tail:
            return number
    return min(_MOST_LARGE, copies)


def _more_than(number: int, copies: int, probability: float) -> float:
    """P(a binomial variable exceeds ``number``)."""
    if number < 0 or number >= copies:
        return 1.0 if number < 0 else 0.0
    return float(bdtrc(number, copies, probability))


def _parts(
    small: GridMeasure, large: RatioLaw, mesh: float, copies: int, most: int, tail: float, above: bool
) -> list[_Charged]:
    """The sums with 0, 1, … large summands; each is C(t, j) times t - j small ones convolved with j large ones."""
    parts = []
    several: RatioLaw | None = None
    few = _on_fewer_nodes(large, above) if most > 1 else large  # two together are rare enough for coarser nodes
    for number in range(most + 1):
        if number == 1:
            several = large
        elif number > 1:
            several = _convolved(few if several is None or number == 2 else several, few, above, 400)
        ways = float(comb(copies, number))
        share = ways * float(several.mass.sum()) if several is not None else 1.0
        small_sum, outside = _small_law(
            small, mesh, copies - number, copies, tail, _ENOUGH * tail / max(share, 1e-300), above
        )
        parts.append(_with_large(small_sum, outside, several, ways, copies, above))
    return parts


def _small_law(
    small: GridMeasure, mesh: float, copies_left: int, copies: int, tail: float, enough: float, above: bool
) -> tuple[RatioLaw, float]:
    """Sum of ``copies_left`` small summands, no mass too small (or too large); what may lie outside the grid."""
    if not copies_left:
        return RatioLaw(np.zeros(1), np.ones(1), 0.0), 0.0
    log_outside = float(np.log(tail * _OUTSIDE))
    first, mass, error = sum_on_grid(small, copies_left, log_outside, mesh / copies, enough)
    ratio = (first + np.arange(mass.size, dtype=np.float64)) * mesh
    return RatioLaw(ratio, mass + error if above else np.maximum(mass - error, 0.0), 0.0), 2.0 * tail * _OUTSIDE


def _with_large(
    small_sum: RatioLaw, outside: float, large: RatioLaw | None, ways: float, copies: int, above: bool
) -> _Charged:
    """``outside`` bounds the Q-mass, and the P-mass without large summands, that the sum of small ones leaves out."""
    if large is None:
        return _Charged(small_sum, outside, outside)
    law = _convolved(_coarser(small_sum, above), large, above, 2000)
    large_mass, large_moment = float(large.mass.sum()), float(large.mass @ large.ratio)
    lost = ways * outside * (large_mass + large_moment / copies)
    return _Charged(RatioLaw(law.ratio, ways * law.mass, 0.0), lost, ways * outside * large_mass)


def _coarser(law: RatioLaw, above: bool) -> RatioLaw:
    """A law on a few hundred atoms, as far apart as what is added to it allows."""
    total = float(law.mass.sum())
    if law.mass.size < 400 or total <= 0.0:
        return law
    center = float(law.mass @ law.ratio) / total
    deviation = max(float(np.sqrt(law.mass @ (law.ratio - center) ** 2 / total)), 1e-300)
    offsets = np.concatenate([np.linspace(0.0, 6.0, 61), np.geomspace(6.0, 1e6, 240)[1:]]) * deviation
    nodes = center + np.concatenate([-offsets[::-1], offsets[1:]])
    first, last = float(law.ratio[0]), float(law.ratio[-1])
    nodes = np.concatenate([[first], nodes[(nodes > first) & (nodes < last)], [last]])
    place = np.searchsorted(nodes, law.ratio, side="right") - 1
    return _regrouped(law, np.clip(place, 0, nodes.size - 2), nodes, above)


def _on_fewer_nodes(law: RatioLaw, above: bool) -> RatioLaw:
    """A law of large summands on some hundred nodes in geometric progression."""
    if law.mass.size <= _FEW_NODES:
        return law
    low, high = float(law.ratio[0]), float(law.ratio[-1])
    nodes = np.geomspace(low, high, _FEW_NODES + 1)
    nodes[0], nodes[-1] = low, high
    place = np.clip(np.searchsorted(nodes, law.ratio, side="right") - 1, 0, _FEW_NODES - 1)
    return _regrouped(law, place, nodes, above)


def _convolved(first: RatioLaw, second: RatioLaw, above: bool, most: int) -> RatioLaw:
    """The law of a sum of two independent ratios, on at most so many nodes in geometric progression."""
    ratio = np.add.outer(first.ratio, second.ratio).ravel()
    mass = np.multiply.outer(first.mass, second.mass).ravel()
    low, high = float(ratio.min()), float(ratio.max())
    if not high > low * (1.0 + 1e-9):
        return RatioLaw(np.array([low]), np.array([mass.sum()]), 0.0)
    span = float(np.log(high / low))
    count = int(np.clip(most / 10 * span, 100, most))
    nodes = low * np.exp(span / count * np.arange(count + 1, dtype=np.int64))
    nodes[-1] = max(nodes[-1], high)
    place = (np.log(ratio / low) * (count / span)).astype(np.intp)
    return _regrouped(RatioLaw(ratio, mass, 0.0), np.clip(place, 0, count - 1), nodes, above)


def _regrouped(law: RatioLaw, place: NDArray[np.intp], nodes: Array, above: bool) -> RatioLaw:
    """Spread to the ends of the cells in which the atoms lie, or merge in them."""
    mass = np.bincount(place, weights=law.mass, minlength=nodes.size - 1)
    moment = np.bincount(place, weights=law.mass * law.ratio, minlength=nodes.size - 1)
    cells = RatioCells(nodes, mass, moment, 0.0, 0.0)
    return spread(cells) if above else merged(cells)
