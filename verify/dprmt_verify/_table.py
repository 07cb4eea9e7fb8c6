"""What a mechanism says of one step, at the nodes of a grid (V1, V2)."""

import math
from collections.abc import Callable
from typing import Literal

from flint import arb

from dprmt_verify._balls import ONE, ZERO
from dprmt_verify._ends import Row, chords

Direction = Literal["remove", "add"]
Ask = Callable[[arb], tuple[arb, arb]]
_FINEST = arb(2) ** -44


class Step:
    """One step of a mechanism. Losses are those of removing a sample; all exceed ``least``, if that is not None."""

    least: arb | None = None

    def curve(self, loss: arb) -> tuple[arb, arb]:
        """Upper bounds of δ: of removing at ε = loss, of adding at ε = -loss."""
        removed = 1 - loss.exp() if self._all_exceed(loss) else self.removed(loss.exp())
        return removed, 1 - (1 - removed) / loss.exp()

    def tails(self, loss: arb) -> tuple[arb, arb]:
        """Of a half-line of outcomes, about those of a larger loss: its P-mass at least, and Q-mass of the rest."""
        return (ONE, ZERO) if self._all_exceed(loss) else self.half_line(loss.exp())

    def removed(self, s: arb) -> arb:
        """An upper bound of δ of removing at ε = log s."""
        raise NotImplementedError

    def half_line(self, s: arb) -> tuple[arb, arb]:
        """``tails`` at log s."""
        raise NotImplementedError

    def _all_exceed(self, loss: arb) -> bool:
        return self.least is not None and (loss is self.least or bool(loss < self.least))


class Table:
    """Answers at nodes origin + index·mesh until both are below ``cut`` or the loss is too far out.

    From index ``grade`` on nodes are wider and wider apart.
    """

    def __init__(self, ask: Ask, origin: arb, mesh: arb, cut: float, farthest: float, grade: int) -> None:
        self._origin, self._mesh, sides = origin, mesh, []
        for sign in (1, -1):
            side: list[Row] = [(0, *ask(origin))]
            while side[-1][sign] > cut and abs(side[-1][0]) * float(mesh) < farthest:
                at = side[-1][0]
                at += sign << max(0, (abs(at) // grade).bit_length() - 1)
                side.append((at, *ask(origin + at * mesh)))
            sides.append(side)
        self._rows = [*reversed(sides[1]), *sides[0][1:]]

    def facing(self, direction: Direction) -> tuple[list[Row], arb]:
        """By increasing loss of this direction, with the loss at index 0."""
        if direction == "remove":
            return self._rows, self._origin
        return [(-at, there, here) for at, here, there in reversed(self._rows)], -self._origin

    def points(self, direction: Direction) -> list[Row]:
        """(index, e^loss, bound of the curve)."""
        rows, origin = self.facing(direction)
        return [(at, (origin + at * self._mesh).exp(), value) for at, value, _ in rows]


def deviation_and_width(step: Step, cut: float, farthest: float) -> tuple[float, float]:
    """Of the loss, roughly, the smaller deviation of both directions: these choose meshes and prove nothing."""
    table, deviations = Table(step.curve, ZERO, _FINEST, cut, farthest, 1), []
    for points in (table.points("remove"), table.points("add")):
        law = [(at * float(_FINEST), float(mass)) for at, mass in chords(points)]
        mean = sum(loss * mass for loss, mass in law)
        deviations.append(math.sqrt(sum((loss - mean) ** 2 * mass for loss, mass in law)))
    return min(deviations), law[-1][0] - law[0][0]
