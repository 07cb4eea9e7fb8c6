"""Bounds of δ of a whole run on one mesh, in each direction."""

import math
from collections.abc import Callable, Sequence
from functools import reduce
from typing import NamedTuple

from flint import arb, ctx, fmpz

from dprmt_verify._balls import ZERO, integer_below
from dprmt_verify._ends import bins_below, delta_above, delta_below, law_above
from dprmt_verify._sums import Masses
from dprmt_verify._table import Direction, Step, Table, deviation_and_width

CLIPPED = 2.0**-20  # of δ may be lost by all windows of one length of run
LONGEST = 1 << 13  # numbers of a sum for each cell


class Phase(NamedTuple):
    """So many equal steps, each built late, in the precision of the day, from what may be cut off, and the cells."""

    steps: int
    build: Callable[[float, int], Step]


class Part:
    """A phase on a grid."""

    def __init__(self, phase: Phase, cut: float, farthest: float, cells: int) -> None:
        self.step, self.count, self._ends = phase.build(cut, cells), phase.steps, (cut, farthest)
        self.deviation, width = deviation_and_width(self.step, *self._ends)
        self.mesh = max(self.deviation / cells, width / (cells * LONGEST))
        least, self._grade, self.origin = self.step.least, 5 * cells, ZERO
        if least is not None and -float(least) < 30 * self.deviation:
            self.origin = least  # most losses are near it
        self._tables: dict[bool, Table] = {}

    def law(self, direction: Direction, above: bool, exponent: int, bits: int) -> Masses:
        """Of one step, on a mesh that is 2^exponent at level 0."""
        level = math.floor(math.log2(self.mesh)) - exponent
        mesh = arb(2) ** (exponent + level)
        if above not in self._tables:
            ask = self.step.curve if above else self.step.tails
            self._tables[above] = Table(ask, self.origin, mesh, *self._ends, self._grade)
        if above:
            return law_above(self._tables[above].points(direction), arb(2) ** exponent, bits, level)
        rows, origin = self._tables[above].facing(direction)
        p, many, _, first = bins_below(rows, lambda loss: (loss - float(origin)) / float(mesh) - 0.5, bits)
        return Masses([p, many], (0, 1), first, bits, lambda level: (fmpz(1) << bits, fmpz(0)), level=level)


class Run:
    """δ of some phases from above and from below, on one mesh; each direction computed when asked for.

    Parameters
    ----------
    phases : sequence of Phase
    delta : float
        What the bounds are to be good for: masses of 2^-20 of it may be clipped.
    epsilon : float
        The largest ε that will be asked about: e^ε Q has to be resolved.
    cells : int
        In a standard deviation of a step's loss.
    """

    def __init__(self, phases: Sequence[Phase], delta: float, epsilon: float, cells: int) -> None:
        steps, farthest = sum(phase.steps for phase in phases), 1.5 * epsilon + 20
        self._cut, self._cells = delta * CLIPPED / steps, cells
        self._bits = 30 + math.ceil(math.log2(steps) + math.log2(cells * LONGEST) - math.log2(delta))
        self._extra = math.ceil(1.5 * epsilon)
        ctx.prec = max(64, self._bits + math.ceil(1.5 * farthest) + 64)  # e^loss, and differences over meshes of 2^-44
        self._parts = [Part(phase, self._cut, farthest, cells) for phase in phases]
        self._exponent = math.floor(math.log2(min(part.mesh for part in self._parts)))
        self._laws: dict[tuple[Direction, bool], Masses] = {}

    def above(self, direction: Direction, epsilon: float) -> arb:
        """δ at ε is at most this."""
        law, origin = self._law(direction, True), sum((part.origin * part.count for part in self._parts), ZERO)
        mesh = arb(2) ** (self._exponent + law.level)
        return delta_above(law, origin if direction == "remove" else -origin, mesh, epsilon)

    def below(self, direction: Direction, epsilon: float) -> arb:
        """δ at ε is at least this."""
        return delta_below(self._law(direction, False), epsilon)

    def _law(self, direction: Direction, above: bool) -> Masses:
        if (direction, above) not in self._laws:
            bits, most = self._bits + (0 if above else self._extra), (self._cells * LONGEST, 8.0 * self._cells)
            spare, laws = integer_below(arb(self._cut), bits), []
            for part in self._parts:
                step = part.law(direction, above, self._exponent, bits)
                laws.append(step.power(part.count, spare, part.deviation / 2.0**self._exponent, *most))
            self._laws[direction, above] = reduce(lambda one, other: one.times(other).thinned(0.0, *most), laws)
        return self._laws[direction, above]
