"""How many copies of the probes a Gaussian sketch is worth, for every spectrum: the law of J (V7)."""

import math
from collections.abc import Callable
from functools import cache
from itertools import pairwise, product

from flint import arb, ctx

from dprmt_verify._balls import ONE, ZERO, floor, integer_above, normal_above

LONGEST = 128  # columns that count; more leave no more
_SOLVED, _CELLS = 40, 8  # columns that ``_solved`` counts, and cells of the large directions' sum
_ROOM, _ERROR, _RARE = arb("1e-3"), arb("1e-5"), arb("1e-30")
# What may be chosen freely: μ and a of the comparison, with and without a power iteration; θ over its usual size.
_SHIFTS = {
    True: ((0.15, 9), (0.2, 9), (0.3, 8), (0.45, 6), (0.7, 2.5), (0.95, 0.5)),
    False: ((0.5, 5), (0.6, 3), (0.7, 1.5), (0.8, 1), (0.9, 0.5), (0.95, 0)),
}
_CUTS = (0.65, 0.85, 1.05, 1.25)


@cache
def copies(sketch: int, iterated: bool) -> dict[int, arb]:
    """π_j for each j: E g(X) ≤ Σ π_j E g(χ²(jk)/(jk)) for every convex g, spectrum and k; ``iterated``: of MᵀMS."""
    bits, ctx.prec = ctx.prec, 96
    law, last, at_most = {}, 0, ZERO
    while at_most < 1:
        before, j = at_most, max(last + 1, int(1.07 * last))
        starts = [(1 + arb(i) / (3 * j)) / (j + 1) for i in range(3)]  # of thirds between 1/(j + 1) and 1/j
        tails = [left_over(share, sketch, iterated) for share in starts]
        at_most = at_most.max(sum(tails, ZERO) / 3).min(ONE).upper()
        law[last + 1], last = at_most - before, j
    ctx.prec = bits
    return law


def left_over(share: arb, sketch: int, iterated: bool) -> arb:
    """P(m > share) at most, m the largest share of the squared norm that the sketch leaves in one direction."""
    total = (1 + _ROOM) / share
    length = 2 * sketch * arb(2).log() - 4 * _RARE.log()
    missed = _ERROR * length.sqrt() * (total if iterated else total.sqrt())
    best, sketch = ONE, min(sketch, LONGEST)
    for mu, a in _SHIFTS[iterated]:
        best = best.min(_compared(total, sketch, iterated, missed, arb(mu), arb(a))).upper()
    for factor in _CUTS:
        cut = factor * 0.75 * math.sqrt(max(float(total) - 1, 0.1) / sketch)
        best = _solved(total, min(sketch, _SOLVED), iterated, arb(max(min(cut, 0.95), 0.02)), missed, best)
    return best + _RARE


def _compared(total: arb, sketch: int, iterated: bool, missed: arb, mu: arb, a: arb) -> arb:
    """Gordon's comparison: E ψ(cap·W) over Φ(-a), ψ a convex majorant of P(χ_s ≤ √y - a)."""
    half = arb(sketch) / 2
    cap = 1 / (1 - mu / 4) if iterated else total / (total * (1 - mu) + mu)
    weight = total / (2 * mu.sqrt() - mu if iterated else mu)
    low, high = (_turn(arb(sketch - i).sqrt() + a, sketch) for i in (2, 1))
    density = 2 * high ** (sketch - 1) * (-high * high / 2).exp() / (arb(2) ** half * half.gamma())
    value, slope = (low * low / 2).gamma_lower(half, 1), density / (2 * (low + a))

    def majorant(y: arb) -> arb:
        below = ((y.sqrt() - a).nonnegative_part() ** 2 / 2).gamma_lower(half, 1)
        return below.max(value + slope * (y - (low + a) ** 2))

    def expected(terms: int) -> arb:
        atoms = _squares(terms, math.ceil(1.2 * math.sqrt(max(terms, sketch)) + 17))
        return sum((mass * majorant(cap * y) for mass, y in atoms), ZERO)

    return _between(expected, weight / cap) / normal_above(a + missed)


def _turn(x: arb, sketch: int) -> arb:
    """The v at which (s - 1)/v - v = 1/x."""
    return ((1 / x**2 + 4 * (sketch - 1)).sqrt() - 1 / x) / 2


@cache
def _squares(terms: int, top: int) -> list[tuple[arb, arb]]:
    """Atoms (mass, y) that spread χ²(terms) up to top²; what lies beyond, at its mean."""
    if terms == 0:
        return [(ONE, ZERO)]
    half, edges = arb(terms) / 2, [arb(i * i) / 36 for i in range(6 * top + 1)]
    beyond = [((y / 2).gamma_upper(half, 1), terms * (y / 2).gamma_upper(half + 1, 1)) for y in edges]
    masses = [ZERO] * len(edges)
    for i, ((more, before), (less, after)) in enumerate(pairwise(beyond)):
        far = (before - after - edges[i] * (more - less)) / (edges[i + 1] - edges[i])
        masses[i] += more - less - far
        masses[i + 1] += far
    rest, moment = beyond[-1]
    return [*zip(masses, edges, strict=True), (rest, moment / rest)]


def _solved(total: arb, sketch: int, iterated: bool, cut: arb, missed: arb, best: arb) -> arb:
    """The smaller of ``best`` and the bound by solving for the directions above ``cut``."""
    worst, weight = ZERO, (cut**2 if iterated else cut) / (1 - cut)
    error = missed**2 / (_ROOM * weight)
    if not (total < 1 + (sketch - 1) * cut and error < 1):
        return best
    for solved, large in product(range(1, sketch), range(1, int(floor(total.upper())) + 1)):
        most = total - large - (solved - large) * cut
        if large > solved or most < 0:
            continue
        width = (most.min(arb(large)) if iterated else most) / _CELLS
        for i in range(_CELLS):
            mean = 1 + (i + 1) * width / large
            gain = large * (mean - 1) / (mean**2 if iterated else mean)
            tail = _tail(gain * weight, sketch - solved + 1)
            worst = worst.max(large * _between(tail, (most - i * width) / cut + error)).upper()
            if not worst < best:
                return best
    return worst


def _tail(scale: arb, dof: int) -> Callable[[int], arb]:
    """P(scale·χ²(n) ≥ χ²(dof)) at most, by a convex majorant: the tangent where the distribution function turns."""
    nu, flex = arb(dof) / 2, arb(dof - 2) / 2
    slope, start = flex ** (nu - 1) * (-flex).exp() / nu.gamma(), flex / scale

    def bound(terms: int) -> arb:
        n = arb(terms) / 2
        excess = n * start.gamma_upper(n + 1, 1) - start * start.gamma_upper(n, 1)
        return (scale / (1 + scale)).beta_lower(nu, n, 1) + slope * scale * excess if terms else ZERO

    return bound


def _between(bound: Callable[[int], arb], terms: arb) -> arb:
    """Of whole numbers on both sides."""
    whole, part = divmod(int(integer_above(terms, 20)), 1 << 20)
    share = arb(part) / (1 << 20)
    return (1 - share) * bound(whole) + share * bound(whole + 1)
