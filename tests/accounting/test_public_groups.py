"""Groups of samples with public probes (N9): valid under every coupling that is drawn, and near equal ratios."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.special import ndtr
from scipy.stats import binom

from dprmt.accounting import DPSGD, Group, Hutchinson, HutchPlusPlus, ReplaceOne
from dprmt.accounting.laws._rank_one_law import RankOneLaw
from dprmt.accounting.pairs import AtomicPair, ClippingStep, related
from dprmt.accounting.pairs import Group as GroupRelation
from dprmt.accounting.pairs._public_group import EqualGroup, _expected, _majorants, _Tests, changed_together

Array = NDArray[np.float64]
FIRST = 2000 / 67349
LOSSES = np.array([0.0, 0.01, 0.1, 1.0, 2.0])
THRESHOLDS = np.linspace(-9.0, 16.0, 500)


def removed(pair: AtomicPair, losses: Array) -> Array:
    """H_{e^l}(P‖Q), every outcome at its own loss."""
    return np.array([pair.infinite + float(pair.p @ np.maximum(-np.expm1(l - pair.losses), 0.0)) for l in losses])


def added(pair: AtomicPair, losses: Array) -> Array:
    """H_{e^l}(Q‖P)."""
    q = pair.p * np.exp(-pair.losses)
    assert pair.vanishing is not None
    return np.array([pair.vanishing + float(q @ np.maximum(-np.expm1(l + pair.losses), 0.0)) for l in losses])


def literal(shifts: Array, q: float, losses: Array, t: Array = THRESHOLDS) -> tuple[Array, Array]:
    """Both directions for samples with these shifts, over all subsets that may be drawn, by half-lines."""
    size = shifts.size
    power = np.zeros(t.size)
    for code in range(2**size):
        drawn = [bool(code >> i & 1) for i in range(size)]
        power += q ** sum(drawn) * (1 - q) ** (size - sum(drawn)) * ndtr(shifts[drawn].sum() - t)
    level = ndtr(-t)
    both = [(np.max(power - math.exp(l) * level), np.max((1 - level) - math.exp(l) * (1 - power))) for l in losses]
    return np.array([a for a, _ in both]), np.array([b for _, b in both])


def pair_of(sigma: float, q: float, probes: int, size: int, bins: int = 100) -> AtomicPair:
    law = ClippingStep(sigma, q, RankOneLaw(probes)).norm_ratio(bins, 1e-13)
    x, mass = law.spread(0.0)
    return changed_together(x, mass, law.below, sigma, q, size, bins, 1e-10)


@pytest.mark.parametrize(("sigma", "q", "probes", "size"), [(1.0, FIRST, 32, 2), (2.0, 0.1, 12, 3), (0.8, 0.3, 24, 2)])
def test_no_coupling_that_spectra_make_exceeds_the_bound(sigma: float, q: float, probes: int, size: int) -> None:
    """Equal gradients, gradients of disjoint directions, drawn spectra of the same probes; equal ones come near."""
    pair = pair_of(sigma, q, probes, size)
    above, beside = removed(pair, LOSSES), added(pair, LOSSES[:2])
    draw, count = np.random.default_rng(3), 250
    closest = np.zeros(LOSSES.size)
    for trial in range(6):
        chi = draw.chisquare(probes, (count, 4)) / probes
        if trial == 0:
            weights = np.tile(np.eye(4)[0], (size, 1))
        elif trial == 1:
            weights = np.eye(4)[:size]
        else:
            weights = draw.dirichlet(np.full(4, 0.3), size)
        shifts = 1.0 / (sigma * np.sqrt(chi @ weights.T))
        each = [literal(row, q, LOSSES) for row in shifts]
        first, second = np.array([a for a, _ in each]), np.array([b for _, b in each])
        assert np.all(first.mean(0) <= above + 4 * first.std(0) / math.sqrt(count))
        assert np.all(second.mean(0)[:2] <= beside + 4 * second.std(0)[:2] / math.sqrt(count))
        closest = np.maximum(closest, first.mean(0) / above)
    assert np.all(closest[:3] > 0.9)


@pytest.mark.parametrize(("sigma", "q", "size"), [(1.0, FIRST, 2), (2.0, 0.05, 8)])
def test_the_bound_is_nearly_what_equal_ratios_cost(sigma: float, q: float, size: int) -> None:
    """By Gauss-Legendre quadrature over χ²(32)/32, both directions."""
    from scipy.stats import chi2

    node, weight = np.polynomial.legendre.leggauss(80)
    low, high = math.log(0.1), math.log(4.0)
    x = np.exp((high - low) / 2 * (node + 1) + low)
    mass = weight * (high - low) / 2 * chi2.pdf(32 * x, 32) * 32 * x
    number, exact = np.arange(size + 1), np.zeros((2, LOSSES.size))
    for value, share in zip(x, mass, strict=True):
        power = ndtr(number / (sigma * math.sqrt(value)) - THRESHOLDS[:, None]) @ binom.pmf(number, size, q)
        level = ndtr(-THRESHOLDS)
        for place, loss in enumerate(LOSSES):
            exact[0, place] += share * np.max(power - math.exp(loss) * level)
            exact[1, place] += share * np.max(1 - level - math.exp(loss) * (1 - power))
    pair = pair_of(sigma, q, 32, size, 160)
    above, beside = removed(pair, LOSSES), added(pair, LOSSES[:2])
    assert np.all(above >= exact[0] * (1 - 1e-6))
    assert np.all(above <= exact[0] * 1.01)
    assert np.all(beside >= exact[1, :2] * (1 - 1e-6))
    assert np.all(beside <= exact[1, :2] * 1.01)


@settings(deadline=None, max_examples=60)
@given(
    t=st.floats(-6.0, 12.0),
    middle=st.floats(0.05, 4.0),
    shifts=st.lists(st.floats(0.05, 8.0), min_size=2, max_size=6),
)
def test_a_sum_of_majorants_exceeds_every_power(t: float, middle: float, shifts: list[float]) -> None:
    """Φ(Σ a_i - t) ≤ mean K_{t,j}, whatever the middle; K is convex in the ratio and 1 - K is what it says."""
    a, j = np.array(shifts), len(shifts)
    value, rest = _majorants(np.array([t]), a, a**-2.0, j, middle)
    assert float(value.mean()) >= float(ndtr(a.sum() - t)) * (1 - 1e-12)
    assert np.allclose(value + rest, 1.0, atol=1e-12)
    x = np.linspace(0.02, 9.0, 400)
    curve = _majorants(np.array([t]), x**-0.5, x, j, middle)[0][0]
    assert np.all(np.diff(curve, 2) >= -1e-12 * (1 + curve[:-2]))


@pytest.mark.parametrize(("sigma", "q"), [(1.0, 0.1), (0.5, 0.02), (3.0, 0.5)])
@pytest.mark.parametrize("spacing", [0.3, 1.5])
def test_every_two_ratios_cost_at_most_their_mean(sigma: float, q: float, spacing: float) -> None:
    """(N9) itself, for thresholds so far apart that what happens between them counts; both directions."""
    x = np.array([0.15, 0.4, 0.8, 1.0, 1.5, 4.0])
    tests = _Tests.of(x, np.full(x.size, 1 / x.size), sigma, q, 2, spacing)
    shifts, losses = 1 / (sigma * np.sqrt(x)), np.array([0.0, 0.3 * q, q, 3 * q, 1.0, 3.0])
    removing = np.array([tests.removing(math.exp(l)) for l in losses])
    adding = np.array([tests.adding(math.exp(l)) for l in losses[:4]])
    for i in range(x.size):
        for j in range(i + 1):
            first, second = literal(shifts[[i, j]], q, losses)
            assert np.all((removing[:, i] + removing[:, j]) / 2 >= first * (1 - 1e-9) - 1e-15)
            assert np.all((adding[:, i] + adding[:, j]) / 2 >= second[:4] * (1 - 1e-9) - 1e-15)


@pytest.mark.parametrize("tiny", [1e-9, 0.02, 0.45])
def test_ratios_below_the_smallest_atom_are_charged(tiny: float) -> None:
    """A tenth of the probability lies there, for both samples at once or for one of them."""
    q, below, x, mass = 0.2, 0.1, np.array([0.5, 0.9, 1.3]), np.array([0.2, 0.4, 0.3])
    pair = changed_together(x, mass, below, 1.0, q, 2, 60, 1e-10)
    above, beside = removed(pair, LOSSES), added(pair, LOSSES[:2])
    shifts = np.append(1.0 / np.sqrt(x), tiny**-0.5)
    shifts[-1] = min(shifts[-1], 60.0)
    equal = [(share, shifts[[i, i]]) for i, share in enumerate(np.append(mass, below))]
    apart = [(0.1, shifts[[3, 0]]), (0.1, shifts[[0, 3]]), (0.1, shifts[[0, 0]]), *equal[1:3]]
    for parts in (equal, apart):
        both = [(share, *literal(two, q, LOSSES)) for share, two in parts]
        assert np.all(above >= sum(share * first for share, first, _ in both) - 1e-12)
        assert np.all(beside >= sum(share * second[:2] for share, _, second in both) - 1e-12)


def test_what_is_expected_is_of_a_convex_function() -> None:
    """Left of the smallest atom it goes on as a line, to 5 at 0: 3/2 + 2/5 + 1/2."""
    x, value = np.array([1.0, 2.0]), np.array([3.0, 1.0])
    assert _expected(value, x, np.array([0.5, 0.4]), 0.1) == pytest.approx(0.5 * 3 + 0.4 * 1 + 0.1 * 5)


def test_from_below_there_are_ends_where_some_ratios_tell_nothing() -> None:
    """The last bin of the law reaches to infinity: a shift of 0."""
    pair = EqualGroup(np.array([2.0, 1.0, 0.0]), np.array([0.3, 0.5, 0.2]), 0.1, 2)
    low, high = pair.loss_range(1e-6)
    assert 2 * math.log1p(-0.1) - 1e-9 <= low < 0 < 5 < high
    nodes = np.linspace(-1.0, 12.0, 2000)
    cells = pair.cells(nodes)
    fine = np.linspace(-9.0, 16.0, 20_001)
    exact = sum(w * literal(np.full(2, s), 0.1, LOSSES, fine)[0] for s, w in zip(pair.shift, pair.mass, strict=True))
    for loss, value in zip(LOSSES, np.asarray(exact), strict=True):
        found = cells.p_above + float(np.maximum(cells.p - math.exp(loss) * cells.q, 0.0).sum())
        assert 0.97 * value - 1e-4 <= found <= value * (1 + 1e-6) + 1e-15


def test_two_samples_at_the_first_setting() -> None:
    """Wanted at most 10.4; equal ratios of rank-one gradients cost 10.076, doubled tails 11.8."""
    bounds = DPSGD(1.0, FIRST, Hutchinson(32, secret=False), Group(2)).epsilon(steps=400, delta=1e-5)
    assert 10.0 < bounds.lower <= 10.0775
    assert 10.0755 <= bounds.upper < 10.1


def test_sides_keep_their_order() -> None:
    step = related(ClippingStep(1.5, 0.02, RankOneLaw(16)), GroupRelation(3))
    above, under = step.pairs(60, 1e-10)
    nodes = np.arange(-400, 3000) * 4e-3
    upper, lower = above.cells(nodes), under.cells(nodes)
    for loss in LOSSES:
        high = upper.p_above + float(upper.p @ np.maximum(-np.expm1(loss - nodes[1:]), 0.0))
        low = lower.p_above + float(np.maximum(lower.p - math.exp(loss) * lower.q, 0.0).sum())
        assert low <= high
        assert low >= 0.9 * high - 4e-3 * 0.06


@pytest.mark.parametrize(
    "run",
    [
        DPSGD(1.0, FIRST, Hutchinson(4, secret=False), Group(2)),
        DPSGD(1.0, FIRST, Hutchinson(4, secret=True), Group(2)),
        DPSGD(5.0, 1.0, Hutchinson(32, secret=False), Group(2)),
        DPSGD(1.0, FIRST, Hutchinson(32, secret=False), Group(2, of=ReplaceOne())),
    ],
)
def test_what_has_no_pair_is_composed_of_curves(run: DPSGD) -> None:
    assert not run.has_pairs
    assert math.isfinite(run.delta(steps=3, epsilon=1.0).upper)


def test_sketches_have_pairs_too() -> None:
    one, two = (DPSGD(2.0, 0.01, HutchPlusPlus(32, 32, secret=False), Group(m)) for m in (1, 2))
    assert two.has_pairs
    assert one.delta(steps=50, epsilon=1.0).upper < two.delta(steps=50, epsilon=1.0).lower
