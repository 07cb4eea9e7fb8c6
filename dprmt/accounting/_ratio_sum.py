r"""The law of W = (V_1 + … + V_t)/t under Q, from above and from below: one FFT, and a few rare jumps.

Equations (R4)-(R6) of ``docs/theory/random_allocation.md``.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy import fft
from scipy.special import comb
from scipy.stats import binom

from dprmt.accounting._power_convolution import GridMeasure, GridWindow, chernoff_window, power_convolution
from dprmt.accounting._ratio_law import RatioCells, RatioLaw, merged, never_more_private
from dprmt.accounting._types import Array

_MOST_JUMPS = 12
_OUTSIDE = 1e-9  # mass outside the window of the FFT, relative to the tail that may be charged


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
    """Atoms of the sum with a number of jumps, and what rounding and truncation may have misplaced."""

    law: RatioLaw
    lost: float
    unclear: float


def sum_from_above(law: RatioLaw, light: int, mesh: float, copies: int, tail: float) -> SumLaw:
    """A law of W that is never more private, for a law of V that is not.

    Parameters
    ----------
    law : RatioLaw
        Of V; its first ``light`` atoms are multiples of ``mesh``.
    light : int
        Number of atoms that are summed by FFT; the others are jumps.
    mesh : float
        Spacing of the grid.
    copies : int
        t ≥ 1.
    tail : float
        P-mass that may be charged.

    Returns
    -------
    SumLaw
        With all charges.
    """
    small, jumps = _split(law, light, mesh)
    jump_mass, jump_moment = float(jumps.mass.sum()), float(jumps.mass @ jumps.ratio)
    light_moment = float(small.mass @ small.index) * mesh
    most = _most_jumps(copies, jump_mass, jump_moment, tail)
    parts = _parts(small, jumps, mesh, copies, most, tail, above=True)
    beyond = float(binom.sf(most, copies, jump_mass)) if jumps.mass.size else 0.0
    lost = law.lost + sum(part.lost for part in parts)
    if beyond > 0:  # to W = 0: its P-mass, E[V_1; more than ``most`` jumps], is lost
        lost += light_moment * float(binom.sf(most, copies - 1, jump_mass))
        lost += jump_moment * float(binom.sf(most - 1, copies - 1, jump_mass))
    unclear = beyond + sum(part.unclear for part in parts)
    return _joined(parts, copies, lost, unclear)


def sum_from_below(law: RatioLaw, light: int, mesh: float, copies: int, tail: float) -> SumLaw:
    """A law of W that is never less private, for a law of V that is not. Arguments as in :func:`sum_from_above`.

    Returns
    -------
    SumLaw
        A sub-probability; nothing is charged.
    """
    small, jumps = _split(law, light, mesh)
    jump_mass, jump_moment = float(jumps.mass.sum()), float(jumps.mass @ jumps.ratio)
    most = _most_jumps(copies, jump_mass, jump_moment, tail)
    return _joined(_parts(small, jumps, mesh, copies, most, tail, above=False), copies, 0.0, 0.0)


def _split(law: RatioLaw, light: int, mesh: float) -> tuple[GridMeasure, RatioLaw]:
    index = np.rint(law.ratio[:light] / mesh).astype(np.int64)
    jumps = np.arange(law.mass.size) >= light
    return GridMeasure(index, law.mass[:light]), law.part(jumps & (law.mass > 0))


def _joined(parts: list[_Charged], copies: int, lost: float, unclear: float) -> SumLaw:
    ratio = np.concatenate([part.law.ratio for part in parts]) / copies
    mass = np.concatenate([part.law.mass for part in parts])
    keep = mass > 0
    return SumLaw(ratio[keep], mass[keep], min(lost, 1.0), min(unclear, 1.0))


def _most_jumps(copies: int, jump_mass: float, jump_moment: float, tail: float) -> int:
    """So many that the P-mass of more is a hundredth of ``tail``."""
    if jump_mass == 0.0:
        return 0
    numbers = np.arange(_MOST_JUMPS + 1)
    rest = binom.sf(numbers, copies - 1, jump_mass) + jump_moment * binom.sf(numbers - 1, copies - 1, jump_mass)
    enough = rest <= 1e-2 * tail
    return min(int(np.argmax(enough)) if enough.any() else _MOST_JUMPS, copies)


def _parts(
    small: GridMeasure, jumps: RatioLaw, mesh: float, copies: int, most: int, tail: float, above: bool
) -> list[_Charged]:
    """The sums with 0, 1, … jumps; each is C(t, j) times so many light summands convolved with j jumps."""
    log_outside = float(np.log(tail * _OUTSIDE))
    log_weight = float(np.log(mesh / copies))
    parts = []
    several = None
    for number in range(most + 1):
        lights = copies - number
        if number:
            several = jumps if several is None else _convolved(several, jumps, above)
        ways = float(comb(copies, number))
        base = _light_sum(small, mesh, lights, log_outside, log_weight) if lights else _nothing(mesh)
        parts.append(_with_jumps(base, several, ways, mesh, copies, above))
    return parts


@dataclass(frozen=True)
class _LightSum:
    index: Array
    mass: Array
    error: float  # of each point
    outside: float  # mass, and first moment over t, folded into the window


def _nothing(mesh: float) -> _LightSum:
    del mesh
    return _LightSum(np.zeros(1), np.ones(1), 0.0, 0.0)


def _light_sum(small: GridMeasure, mesh: float, lights: int, log_outside: float, log_weight: float) -> _LightSum:
    del mesh
    reach = chernoff_window(small, lights, log_outside, log_weight)
    window = GridWindow(reach.first, int(fft.next_fast_len(reach.size, real=True)))
    mass, error = power_convolution(small, lights, window)
    index = window.first + np.arange(window.size, dtype=np.float64)
    return _LightSum(index, mass, error, 2.0 * float(np.exp(log_outside)))


def _with_jumps(
    base: _LightSum, jumps: RatioLaw | None, ways: float, mesh: float, copies: int, above: bool
) -> _Charged:
    value = base.index * mesh
    points = base.mass.size
    if not above:
        mass = np.maximum(base.mass - base.error - base.outside, 0.0)
        light = RatioLaw(value, mass, 0.0)
        if jumps is None:
            return _Charged(light, 0.0, 0.0)
        law = _convolved(_coarser(light, above), jumps, above)
        return _Charged(RatioLaw(law.ratio, ways * law.mass, 0.0), 0.0, 0.0)
    light = RatioLaw(value, base.mass, 0.0)
    if jumps is None:
        lost = base.error * float(value.sum()) / copies + base.outside
        return _Charged(light, lost, base.error * points + base.outside)
    law = _convolved(_coarser(light, above), jumps, above)
    jump_mass, jump_moment = float(jumps.mass.sum()), float(jumps.mass @ jumps.ratio)
    misplaced = base.error * points + base.outside
    lost = jump_mass * (base.error * float(value.sum()) / copies + base.outside) + jump_moment * misplaced / copies
    return _Charged(RatioLaw(law.ratio, ways * law.mass, 0.0), ways * lost, ways * jump_mass * misplaced)


def _coarser(law: RatioLaw, above: bool) -> RatioLaw:
    """A law on a few hundred atoms, as far apart as what is added to it allows."""
    total = float(law.mass.sum())
    if law.mass.size < 400 or total <= 0.0:
        return law
    center = float(law.mass @ law.ratio) / total
    deviation = max(float(np.sqrt(law.mass @ (law.ratio - center) ** 2 / total)), 1e-300)
    offsets = np.concatenate([np.linspace(0.0, 6.0, 91), np.geomspace(6.0, 1e6, 300)[1:]]) * deviation
    nodes = center + np.concatenate([-offsets[::-1], offsets[1:]])
    first, last = float(law.ratio[0]), float(law.ratio[-1])
    inside = nodes[(nodes > first) & (nodes < last)]
    return _regrouped(law, np.concatenate([[first], inside, [last]]), above)


def _convolved(first: RatioLaw, second: RatioLaw, above: bool) -> RatioLaw:
    """The law of a sum of two independent ratios, on nodes in geometric progression."""
    ratio = np.add.outer(first.ratio, second.ratio).ravel()
    mass = np.multiply.outer(first.mass, second.mass).ravel()
    low, high = float(ratio.min()), float(ratio.max())
    if not high > low:
        return RatioLaw(ratio[:1], mass.sum(keepdims=True), 0.0)
    nodes = np.geomspace(low, high, int(np.clip(200 * np.log(high / low), 200, 4000)))
    nodes[0], nodes[-1] = low, high
    return _regrouped(RatioLaw(ratio, mass, 0.0), nodes, above)


def _regrouped(law: RatioLaw, nodes: Array, above: bool) -> RatioLaw:
    """Spread to nodes that cover the law, or merge between them."""
    place = np.clip(np.searchsorted(nodes, law.ratio, side="right") - 1, 0, nodes.size - 2)
    mass = np.bincount(place, weights=law.mass, minlength=nodes.size - 1)
    moment = np.bincount(place, weights=law.mass * law.ratio, minlength=nodes.size - 1)
    cells = RatioCells(nodes, mass, moment, 0.0, 0.0)
    return never_more_private(cells, 0.0) if above else merged(cells)
