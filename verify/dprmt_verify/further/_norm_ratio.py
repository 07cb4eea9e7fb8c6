"""The ratio X of a sample's estimated squared norm to the true one: its worst law, in bins (V5)."""

import math
from collections.abc import Callable, Mapping
from itertools import count, pairwise
from typing import NamedTuple

from flint import arb, ctx

from dprmt_verify._balls import ONE, ZERO


class Bin(NamedTuple):
    """X between two numbers: its mean there, and the probability."""

    left: arb
    right: arb
    mean: arb
    mass: arb


class NormRatio:
    """X = h + (1 - h)·Y, Y with law Σ π_j Γ(jk/2)/(jk/2), in bins; beyond the last lies ``rest`` of the probability.

    Parameters
    ----------
    probes : int
        k.
    copies : mapping
        π_j for each j; of Hutchinson's estimator 1 for j = 1 (V5), of Hutch++ as in (V7).
    cut : float
        So much may lie in the first bin and beyond the last one.
    fineness : float
        Bins next to Y = 1, in units of the standard deviation of log Y.
    exact : float
        h, a dyadic number.
    """

    def __init__(self, probes: int, copies: Mapping[int, arb], cut: float, fineness: float, exact: float = 0.0) -> None:
        scale = math.sqrt(2 / (probes * max(copies)))
        shapes = [(arb(probes * j) / 2, weight) for j, weight in copies.items()]

        def end(y: arb) -> tuple[arb, ...]:
            parts = [[weight * one for one in gamma_below(shape, shape * y)] for shape, weight in shapes]
            return (y, *(sum(column, ZERO) for column in zip(*parts, strict=True)))

        def part(y: arb) -> arb:
            return exact + (1 - exact) * y

        sides = {0: end(ONE)}
        for sign in (1, -1):
            for i in count(sign, sign):
                sides[i] = end(arb(math.exp(3 * scale * math.sinh(i * fineness / 3))))
                if (1 - sides[i][1] if sign > 0 else sides[i][1]) < cut:
                    break
        ends = [(ZERO, ZERO, ZERO), *(sides[i] for i in sorted(sides))]
        self.rest = 1 - ends[-1][1]
        self.bins = [
            Bin(part(left), part(right), part((after - before) / (high - low)), high - low)
            for (left, low, before), (right, high, after) in pairwise(ends)
        ]

    def spread(self, bend: Callable[[arb], arb]) -> tuple[arb, list[tuple[arb, arb]]]:
        """Mass at 0, and (mass, x) of atoms: E f is no smaller if f falls and is convex in e^{ρx} in each bin.

        ``bend`` says ρ of a bin that starts there.
        """
        at = [ZERO] * (len(self.bins) - 1) + [self.rest]
        for i, cell in enumerate(self.bins[1:]):
            rho = bend(cell.left)
            share = _power(rho, cell.mean - cell.left) / _power(rho, cell.right - cell.left)
            right = cell.mass * share.lower().max(ZERO)
            at[i] += cell.mass - right
            at[i + 1] += right
        return self.bins[0].mass, [(mass, cell.right) for mass, cell in zip(at, self.bins, strict=True)]

    def pulled(self, bend: Callable[[arb], arb]) -> list[tuple[arb, arb]]:
        """Atoms with which E f of the same functions is no larger; what lies beyond the last bin is left out."""
        atoms = [(self.bins[0].mass, self.bins[0].right)]
        for cell in self.bins[1:]:
            x = cell.mean + bend(cell.left) * (cell.right - cell.left) ** 2 / 8
            atoms.append((cell.mass, x.upper().min(cell.right)))
        return atoms


def gamma_below(shape: arb, x: arb) -> tuple[arb, arb]:
    """P(G ≤ x) and E[G; G ≤ x]/a of G with law Γ(a): with t_n = x^n/((a + 1)…(a + n)), x^a e^{-x}/Γ(a + 1)·Σ t_n."""
    first, term, total, last = (shape * x.log() - x - (shape + 1).lgamma()).exp(), ONE, ONE, shape
    while not term < total * arb(2) ** -ctx.prec:
        last += 1
        term *= x / last
        total += term
    beyond = term * x / (last + 1 - x)  # a geometric series: terms rise and then fall, and here they fall
    below = first * total.union(total + beyond)
    return below, below - first


def _power(rho: arb, x: arb) -> arb:
    return (rho * x).expm1() / rho if rho > 0 else x
