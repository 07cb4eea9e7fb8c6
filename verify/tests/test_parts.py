"""Roundings, sums, chords and bins by themselves: errors here are too small to be seen in a run."""

from __future__ import annotations

import math
from fractions import Fraction

import pytest
from flint import arb, ctx, fmpz
from hypothesis import given
from hypothesis import strategies as st

from dprmt_verify._balls import integer_above, integer_below, one_floor
from dprmt_verify._ends import _bends, bins_below, chords, delta_above, delta_below, on_grid
from dprmt_verify._sums import Masses

integers = st.lists(st.integers(0, 2**20), min_size=2, max_size=12)


@pytest.fixture(autouse=True, scope="module")
def enough_bits() -> None:
    ctx.prec = 128


def shares(level: int) -> tuple[fmpz, fmpz]:
    """Unequal ones, so that an exchange is seen."""
    return fmpz(3 << 18), fmpz(1 << 18)


def masses(parts: list[list[int]], rounding: tuple[int, ...], first: int = 0, lost: int = 0) -> Masses:
    return Masses([[fmpz(mass) for mass in part] for part in parts], rounding, first, 20, shares, fmpz(lost))


@given(st.fractions(0, 1000), st.integers(1, 30))
def test_integers_are_on_their_side_and_next_to_the_number(number: Fraction, bits: int) -> None:
    ball = arb(number.numerator) / number.denominator
    assert number * 2**bits <= int(integer_above(ball, bits)) < number * 2**bits + 1.001
    assert number * 2**bits - 1.001 < int(integer_below(ball, bits)) <= number * 2**bits
    wide = ball.union(ball + arb(1) / 2**bits)
    assert int(integer_below(wide, bits)) < int(integer_above(wide, bits))


@given(integers, integers, st.integers(-5, 5))
def test_products_are_rounded_to_their_sides(one: list[int], other: list[int], first: int) -> None:
    product = masses([one, one], (1, 0), first).times(masses([other, other], (1, 0), 2))
    exact = [Fraction(0)] * (len(one) + len(other) - 1)
    for i, a in enumerate(one):
        for j, b in enumerate(other):
            exact[i + j] += Fraction(a * b, 2**20)
    assert product.first == first + 2
    assert all(mass > truth for mass, truth in zip(map(int, product.parts[0]), exact, strict=True))
    assert all(truth - 1 < mass <= truth for mass, truth in zip(map(int, product.parts[1]), exact, strict=True))


@given(integers, st.integers(0, 2**21))
def test_what_is_clipped_is_lost(part: list[int], spare: int) -> None:
    law = masses([part], (1,), 4, lost=7)
    clipped = law.clipped(fmpz(spare))
    assert int(sum(clipped.parts[0], clipped.lost)) == sum(part) + 7
    start = clipped.first - 4
    assert [int(mass) for mass in clipped.parts[0]] == part[start : start + len(clipped)]


@given(integers, st.integers(-5, 5))
def test_halving_keeps_mass_and_says_where_it_went(part: list[int], first: int) -> None:
    """Even numbers are halved, odd ones shared: three quarters below, a quarter above."""
    halved = masses([part], (1,), first).coarser()
    exact: dict[int, Fraction] = {}
    for number, mass in enumerate(part, first):
        for at, share in ((number // 2, 3), (number // 2 + 1, 1)) if number % 2 else ((number // 2, 4),):
            exact[at] = exact.get(at, Fraction(0)) + Fraction(mass * share, 4)
    for at, mass in enumerate(map(int, halved.parts[0]), halved.first):
        assert exact.get(at, 0) <= mass <= exact.get(at, 0) + 2


@pytest.mark.parametrize("count", [1, 2, 3, 5, 6, 11])
def test_powers_have_as_many_factors(count: int) -> None:
    power = masses([[2**19, 2**19]], (1,), 1).power(count, fmpz(0), 0.0, 1000, 1000.0)
    assert (power.first, len(power)) == (count, count + 1)


def test_chords_of_a_curve_are_its_law() -> None:
    """Losses log ½, 0 and log 2 with masses ¼, ¼, ¼, and ¼ at infinity: E(1 - s/V)₊ + ¼ at nodes gives them back."""
    values = [arb(1) / 2, arb(1), arb(2), arb(4)]
    law = dict(zip(range(3), values[:3], strict=True))

    def curve(s: arb) -> arb:
        return sum(((1 - s / v).nonnegative_part() / 4 for v in law.values()), arb(1) / 4)

    found = chords([(at, s, curve(s)) for at, s in enumerate(values)])
    assert all(abs(float(mass) - (0.25 if at in law else 0.0)) < 1e-30 for at, mass in found)
    grid, first = on_grid(found, 40)
    assert first == 0
    assert all(2**38 <= int(mass) <= 2**38 + 1 for mass in grid[:3])


def test_a_point_above_the_chords_is_left_out() -> None:
    points = [(0, arb(1), arb(1) / 2), (1, arb(2), arb(1) / 2), (2, arb(3), arb(0))]
    assert [at for at, _ in chords(points)] == [0, 2]


def test_bins_hold_what_lies_between_half_lines() -> None:
    rows = [(1, arb(3) / 4, arb(1) / 2), (2, arb(1) / 4, arb(7) / 8)]
    p, many, few, first = bins_below(rows, lambda loss: 1.0, 20)
    assert first == 0
    assert [int(mass) for mass in p] == [2**18, 2**19, 2**18]
    assert [int(mass) for mass in many] == [2**19, 3 * 2**17, 2**17]
    assert all(low <= high for low, high in zip(few, many, strict=True))


def test_a_test_of_a_smaller_level_is_left_out() -> None:
    """Power may not be counted twice where levels go back: (½, ½), (2/5, 9/10), (1, 1) turn right all the way."""
    back = [(2, arb(1) / 2, arb(1) / 2), (1, arb(9) / 10, arb(6) / 10), (0, arb(1), arb(0))]
    assert not _bends(*back)
    assert _bends((2, arb(1) / 2, arb(1) / 2), (1, arb(9) / 10, arb(4) / 10), (0, arb(1), arb(0)))


@given(integers, st.integers(-5, 5), st.integers(0, 99), st.integers(-9, 9))
def test_delta_from_above_is_that_of_the_masses(part: list[int], first: int, lost: int, eighths: int) -> None:
    """P-mass minus e^ε Q-mass of losses above ε, term by term; at a loss itself, too."""
    mesh, origin, epsilon = 0.25, 0.125, eighths / 8
    gains = [mass * max(1 - math.exp(epsilon - origin - number * mesh), 0.0) for number, mass in enumerate(part, first)]
    found = delta_above(masses([part], (1,), first, lost=lost), arb(origin), arb(mesh), epsilon)
    assert float(found) == pytest.approx((math.fsum(gains) + lost) / 2**20, rel=1e-12, abs=1e-15)


@given(integers, integers, st.integers(-9, 9))
def test_delta_from_below_is_that_of_the_best_half_line(p: list[int], q: list[int], eighths: int) -> None:
    size = min(len(p), len(q))
    p, q, epsilon = p[:size], q[:size], eighths / 8
    best = max(sum(p[at:]) - math.exp(epsilon) * sum(q[at:]) for at in range(size + 1))
    assert float(delta_below(masses([p, q], (0, 1)), epsilon)) == pytest.approx(best / 2**20, rel=1e-9, abs=1e-12)


def test_a_place_that_is_not_known_decides_nothing() -> None:
    assert one_floor(arb(-3)) == -3
    assert one_floor(arb(5) / 2) == 2
    for wide in (arb(3, "0.1"), arb(5, 3), arb("nan")):
        with pytest.raises(ArithmeticError):
            one_floor(wide)
    with pytest.raises(ArithmeticError):
        delta_above(masses([[1, 2, 3]], (1,)), arb(0, 2), arb(1), 0.5)
