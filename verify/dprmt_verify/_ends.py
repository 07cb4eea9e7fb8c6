"""From answers about one step to whole numbers, and from their sums to bounds of δ: above (V1), below (V2)."""

from collections.abc import Callable, Sequence
from itertools import pairwise

from flint import arb, arb_poly, fmpz

from dprmt_verify._balls import ONE, ZERO, integer_above, integer_below, one_floor
from dprmt_verify._sums import Masses

Row = tuple[int, arb, arb]


def chords(points: Sequence[Row]) -> list[tuple[int, arb]]:
    """Masses of the law whose curve is 1 at 0, flat after the last (index, e^loss, value), and between them chords.

    Points that are surely above the chord of their neighbours are left out.
    """
    kept: list[Row] = [(0, ZERO, ONE)]
    for point in points:
        while len(kept) > 1 and _slope(kept[-2], kept[-1]) > _slope(kept[-1], point):
            kept.pop()
        kept.append(point)
    slopes = [*(_slope(low, high) for low, high in pairwise(kept)), ZERO]
    return [(at, s * (after - before)) for (at, s, _), (before, after) in zip(kept[1:], pairwise(slopes), strict=True)]


def on_grid(masses: Sequence[tuple[int, arb]], bits: int) -> tuple[list[fmpz], int]:
    """Integers that are no smaller, from the first index to the last one, and the first one."""
    first = masses[0][0]
    integers = [fmpz(0)] * (masses[-1][0] - first + 1)
    for at, mass in masses:
        integers[at - first] = integer_above(mass, bits)
    return integers, first


def law_above(points: Sequence[Row], mesh: arb, bits: int, level: int) -> Masses:
    """``chords`` in integers; numbers stand for losses on a grid of this mesh at level 0, what is lost is infinite."""

    def halve(level: int) -> tuple[fmpz, fmpz]:
        """P- and Q-mass are kept."""
        cell = mesh * 2**level
        return integer_above(1 / (1 + cell.exp()), bits), integer_above(1 / (1 + (-cell).exp()), bits)

    masses, first = on_grid(chords(points), bits)
    return Masses([masses], (1,), first, bits, halve, integer_above(points[-1][2], bits), level)


def bins_below(
    rows: Sequence[Row], number: Callable[[float], float], bits: int
) -> tuple[list[fmpz], list[fmpz], list[fmpz], int]:
    """P-masses at most, Q-masses at least and at most of what lies between half-lines, and the first number.

    Rows: index, P-mass, and Q-mass of the rest. Half-lines that are not surely on a concave curve of power over level
    are left out. What is between two has the number between theirs that ``number`` says of its log P/Q; any would do.
    """
    kept: list[Row] = [(rows[-1][0], ZERO, ONE)]
    for row in [*reversed(rows), (rows[0][0] - 1, ONE, ZERO)]:
        while len(kept) > 1 and not _bends(kept[-2], kept[-1], row):
            kept.pop()
        kept.append(row)
    first = rows[0][0] - 1
    p, many, few = ([fmpz(0)] * (rows[-1][0] - first + 1) for _ in range(3))
    for high, low in pairwise(kept):
        mass, absent, at = low[1] - high[1], high[2] - low[2], low[0]
        if mass > 0 and absent > 0:
            at = max(at, min(round(number(float((mass / absent).log()))), high[0] - 1))
        p[at - first] += integer_below(mass, bits)
        many[at - first] += integer_above(absent, bits)
        few[at - first] += integer_below(absent, bits)
    return p, many, few, first


def delta_above(law: Masses, origin: arb, mesh: arb, epsilon: float) -> arb:
    """δ at ε is at most this: P-mass minus e^ε Q-mass of all losses origin + number·mesh above ε, and what is lost."""
    start = min(max(one_floor((epsilon - origin) / mesh) + 1 - law.first, 0), len(law))
    masses, nearest = law.parts[0][start:], origin + (law.first + start) * mesh
    delta = sum(masses, law.lost) - (epsilon - nearest).exp() * arb_poly(masses or [0])((-mesh).exp())
    return (delta * arb(2) ** -law.bits).upper()


def delta_below(law: Masses, epsilon: float) -> arb:
    """δ at ε is at least this: P - e^ε Q of the best of the events that the sum is at least some number."""
    factor = integer_above(arb(epsilon).exp(), 64)
    best = max((p << 64) - factor * q for p, q in zip(*law.tails, strict=True))
    return (best * arb(2) ** (-law.bits - 64)).lower()


def _slope(low: Row, high: Row) -> arb:
    return (high[2] - low[2]) / (high[1] - low[1])


def _bends(a: Row, b: Row, c: Row) -> bool:
    more = a[2] - b[2]
    return bool(more > 0) and bool((b[1] - a[1]) * (b[2] - c[2]) > (c[1] - b[1]) * more)
