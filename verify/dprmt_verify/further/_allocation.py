"""Random allocation: each sample takes part in one step of an epoch, drawn for it; an epoch is one step (V8)."""

import math
from collections.abc import Sequence
from dataclasses import replace

from flint import arb, ctx, fmpz

from dprmt_verify._balls import ONE, ZERO, floor, integer_above, integer_below, one_floor
from dprmt_verify._ends import bins_below, chords, on_grid
from dprmt_verify._sums import Masses
from dprmt_verify._table import Step, Table, deviation_and_width

_LONGEST = 1 << 20  # numbers on the grid of V


class Allocation(Step):
    """An epoch of t steps, in one of which the sample takes part: dP/dQ = W = (V_1 + … + V_t)/t.

    Parameters
    ----------
    inner : Step
        One step without sampling, of ratio V.
    steps : int
        t, at least 2.
    cut : float
        So much probability may be left out.
    cells : int
        Half the points of V's grid in a standard deviation of log V.
    """

    def __init__(self, inner: Step, steps: int, cut: float, cells: int) -> None:
        deviation, _ = deviation_and_width(inner, cut, 30.0)
        mesh = arb(2) ** min(math.floor(math.log2(deviation / (2 * cells))), 0)
        grid = (ONE, mesh, cut / 8, float(mesh) * _LONGEST, 5 * cells)  # numbers are (V - 1)/mesh
        self._steps, self._mesh = steps, mesh / steps
        self._spare = integer_below(arb(cut) / (64 * steps), ctx.prec)

        def excess(v: arb) -> tuple[arb, arb]:
            """E(V - v)₊ and E(v - V)₊, at most."""
            return (inner.removed(v), inner.removed(v) - 1 + v) if v > 0 else (1 - v, ZERO)

        rows = [(at, 1 + at * mesh, value) for at, value, _ in Table(excess, *grid).facing("remove")[0]]
        self._set_above([row for row in rows if row[1] > 0], -round(1 / float(mesh)))

        def tails(v: arb) -> tuple[arb, arb]:
            return inner.half_line(v) if v > 0 else (ONE, ZERO)

        lines = [row for row in Table(tails, *grid).facing("remove")[0] if 1 + row[0] * mesh > 0]
        p, many, few, first = bins_below(lines, lambda log: math.expm1(log) / float(mesh) - 0.5, ctx.prec)
        once = Masses([p, many], (0, 1), first, ctx.prec, _never)
        self._below = self._sum(once, replace(once, parts=[few, many]))

    def _set_above(self, points: Sequence[tuple[int, arb, arb]], zero: int) -> None:
        """The law of W under P, at least, and sums of its masses and of those divided by W, at most."""
        atoms, ratio = chords(points), {at: v for at, v, _ in points}
        absent = [(at, mass / ratio[at]) for at, mass in atoms]
        none = (zero, 1 - sum((mass for _, mass in absent), ZERO))
        (p, first), (q, start) = on_grid(atoms, ctx.prec), on_grid([none, *absent], ctx.prec)
        once = Masses([p], (1,), first, ctx.prec, _never, integer_above(points[-1][2], ctx.prec))
        self._above = self._sum(once, Masses([q], (1,), start, ctx.prec, _never))
        masses = self._above.parts[0]
        shares = [floor(mass / (1 + at * self._mesh)) for at, mass in enumerate(masses, self._above.first)]
        self._above = replace(self._above, parts=[masses, shares])

    def _sum(self, once: Masses, others: Masses) -> Masses:
        """Of the step in which the sample takes part and the other ones."""
        return once.clipped(self._spare).times(others.power(self._steps - 1, self._spare, 0.0, 4 * _LONGEST, math.inf))

    def removed(self, s: arb) -> arb:
        """δ: E(1 - s/W)₊ under P, and what is lost."""
        law, (p, q) = self._above, self._above.tails
        start = min(max(one_floor((s - 1) / self._mesh) + 1 - law.first, 0), len(law))
        return ((p[start] - s * q[start] + law.lost) * arb(2) ** -law.bits).upper()

    def half_line(self, s: arb) -> tuple[arb, arb]:
        """P of about all larger ratios, Q of the others."""
        number = round(float((s - 1) / self._mesh) - self._steps / 2)
        at = min(max(number - self._below.first, 0), len(self._below))
        p, q = (tails[at] * arb(2) ** -self._below.bits for tails in self._below.tails)
        return p, 1 - q


def _never(level: int) -> tuple[fmpz, fmpz]:
    raise ArithmeticError("a sum of ratios is too long")
