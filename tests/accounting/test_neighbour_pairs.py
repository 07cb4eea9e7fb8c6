"""Pairs of replaced samples and of several at once: against literal sums, curves composed, and each other."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.special import ndtr
from scipy.stats import binom

from dprmt import ParameterError
from dprmt.accounting import DPSGD, AddRemove, Group, Hutchinson, RandomAllocation, ReplaceOne, compose
from dprmt.accounting.laws._laws import RankOneLaw
from dprmt.accounting.pairs._exact_replacement import SubsampledMixture
from dprmt.accounting.pairs._pairs import LossCells
from dprmt.accounting.pairs._secret_replacement import _with_masses_that_agree
from dprmt.accounting.pairs._steps import ClippingStep, Neighbours, related
from dprmt.accounting.questions._by_curves import Lines, changed_at_once, lines_of

from .oracles.gaussian import gaussian_delta

Array = NDArray[np.float64]
Q = 2000 / 67349
LOSSES = np.array([0.0, 0.01, 0.05, 0.2, 1.0, 3.0])


def half_line_curve(power: Array, level: Array, losses: Array) -> Array:
    """sup_t P(x > t) - e^l Q(x > t)."""
    return np.array([np.max(power - math.exp(loss) * level) for loss in losses])


def mixture(size: int, q: float, sigma: float, t: Array, sign: float) -> Array:
    """P(x > t) of Σ Bin(m, q)(j) N(±j/σ, 1)."""
    j = np.arange(size + 1)
    value: Array = ndtr(sign * j / sigma - t[:, None]) @ binom.pmf(j, size, q)
    return value


def curve_above(cells: LossCells, nodes: Array, at: Array) -> Array:
    """δ of the cells with every outcome at the upper end of its cell."""
    return np.array([cells.p_above + float(cells.p @ np.maximum(-np.expm1(loss - nodes[1:]), 0.0)) for loss in at])


def curve_below(cells: LossCells, at: Array) -> Array:
    """δ if outcomes of a cell are one: (p - e^l q)₊, whatever their losses."""
    p, q = np.append(cells.p, cells.p_above), np.append(cells.q, cells.q_above)
    return np.array([float(np.maximum(p - math.exp(loss) * q, 0.0).sum()) for loss in at])


@pytest.mark.parametrize("size", [1, 2, 5])
@pytest.mark.parametrize("is_replacement", [False, True])
@pytest.mark.parametrize(("sigma", "q"), [(1.0, 0.03), (0.5, 0.2), (3.0, 0.001), (2.0, 1.0)])
def test_cells_of_coin_mixtures_hold_the_literal_curve(size: int, is_replacement: bool, sigma: float, q: float) -> None:
    """(N1): from both sides, within the mesh."""
    t = np.linspace(-12.0, 12.0 + size / sigma, 200_001)
    level = mixture(size, q, sigma, t, -1.0) if is_replacement else ndtr(-t)
    exact = half_line_curve(mixture(size, q, sigma, t, 1.0), level, LOSSES)
    nodes = np.arange(-4000, 20001) * 2e-3
    cells = SubsampledMixture(sigma, q, size, is_replacement).cells(nodes)
    above, below = curve_above(cells, nodes, LOSSES), curve_below(cells, LOSSES)
    assert np.all(above >= exact * (1 - 1e-9) - 1e-13)
    assert np.all(below <= exact * (1 + 1e-6) + 1e-13)
    assert np.all(above - below <= 3e-3 * np.maximum(1.0 - exact, exact))
    assert float(cells.p.sum()) + cells.p_below + cells.p_above == pytest.approx(1.0, abs=1e-12)
    assert float(cells.q.sum()) + cells.q_below + cells.q_above == pytest.approx(1.0, abs=1e-12)


def spectrum(draw: np.random.Generator, size: int) -> Array:
    weights = draw.dirichlet(np.full(size, 0.3))
    return np.asarray(weights)


@pytest.mark.parametrize(
    ("sigma", "q", "probes", "width"),
    [
        (1.0, Q, 32, 0.02),
        pytest.param(2.0, 0.01, 4, 0.06, marks=pytest.mark.slow),
        pytest.param(0.6, 0.3, 16, 0.02, marks=pytest.mark.slow),
    ],
)
def test_secret_probes_hold_for_two_spectra(sigma: float, q: float, probes: int, width: float) -> None:
    """(N2): power and level of half-lines for drawn spectra; a rank-one law for both lies between both ends."""
    step = related(ClippingStep(sigma, q, RankOneLaw(probes), secret=True), ReplaceOne())[0]
    above, under = step.pairs(160, 1e-9)
    nodes = np.arange(-4000, 8001) * 1e-3
    bound = curve_above(above.cells(nodes), nodes, LOSSES)
    lower = curve_below(under.cells(nodes), LOSSES)
    draw = np.random.default_rng(7)
    t = np.linspace(-10.0, 14.0, 4001)
    for trial in range(8):
        curves = []
        for sign in (1.0, -1.0):
            weights = spectrum(draw, 4) if trial else np.eye(4)[0]
            z = 1.0 / (sigma * np.sqrt(draw.chisquare(probes, (4000, 4)) / probes @ weights))
            curves.append((1 - q) * ndtr(-t) + q * ndtr(sign * z[:, None] - t).mean(axis=0))
        found = half_line_curve(curves[0], curves[1], LOSSES)
        assert np.all(found <= bound * 1.03 + 4e-3 * q)  # 4,000 draws
        if trial == 0:
            assert np.all(lower[:5] <= found[:5] * 1.03 + 4e-3 * q)
    assert np.all(lower <= bound * (1 + 1e-9))
    assert np.all(bound[:4] - lower[:4] <= width * bound[:4])
    above, under = step.pairs(8, 1e-9)  # where it shows to which side the mass of a bin goes
    assert np.all(lower <= curve_above(above.cells(nodes), nodes, LOSSES) * (1 + 1e-9))
    assert np.all(curve_below(under.cells(nodes), LOSSES) <= bound * (1 + 1e-9))


@pytest.mark.parametrize("size", [2, 3, 5])
def test_composed_curves_of_gaussian_mechanisms_are_those_of_the_sum(size: int) -> None:
    """(N6): b_μ∘b_ν = b_{μ+ν}; never below it, and close."""
    epsilon = np.linspace(0.0, 14.0, 401)
    one = lines_of(epsilon, gaussian_delta(epsilon, 0.6), gaussian_delta(epsilon, 0.6))
    many, replaced = changed_at_once(one, one, size, False), changed_at_once(one, one, size, True)
    for lines, mu in ((many, 0.6 * size), (replaced, 1.2 * size)):
        at = np.linspace(0.0, 8.0, 33)
        exact = gaussian_delta(at, mu)
        assert np.all(lines.at(at) >= exact * (1 - 1e-9))
        assert np.all(lines.at(at) <= exact * 1.05 + 1e-6)
        found = lines.epsilon_at(1e-3)
        assert float(gaussian_delta(np.array([found]), mu)[0]) <= 1e-3
        assert float(gaussian_delta(np.array([found * 0.98 - 0.01]), mu)[0]) > 1e-3


def test_lines_between_points_lie_above_the_curve() -> None:
    epsilon = np.linspace(0.0, 6.0, 7)
    lines = lines_of(epsilon, gaussian_delta(epsilon, 1.0), gaussian_delta(epsilon, 1.0))
    at = np.concatenate([np.linspace(-9.0, -6.0, 13), np.linspace(-5.9, 5.9, 119), np.linspace(6.0, 9.0, 13)])
    negative = 1.0 - np.exp(at) + np.exp(at) * gaussian_delta(-at, 1.0)
    exact = np.where(at < 0.0, negative, gaussian_delta(at, 1.0))
    assert np.all(lines.at(at) >= exact * (1 - 1e-12))
    assert Lines(epsilon, gaussian_delta(epsilon, 1.0)).epsilon_at(1e-300) == math.inf


def test_lines_a_thousand_apart_stay_numbers() -> None:
    """e^ε overflows between and at such nodes; of two changes the sum of both largest losses is still known."""
    epsilon, delta = np.array([0.0, 1e3, 2e3]), np.array([1.0, 0.5, 0.0])
    lines = lines_of(epsilon, delta, delta)
    at = np.array([-2e3, 0.0, 500.0, 999.0, 1999.0, 2e3])
    assert np.all(np.diff(lines.at(at)) <= 0.0)
    assert lines.at(np.array([1999.0]))[0] == pytest.approx(0.5 * (1 - math.exp(-1.0)), rel=1e-12)
    twice = changed_at_once(lines, lines, 2, False)
    assert not np.isnan(twice.delta).any()
    assert twice.epsilon_at(1e-9) == pytest.approx(4e3, rel=1e-12)
    assert lines.epsilon_at(0.3) == pytest.approx(2e3 + math.log(0.4), rel=1e-12)


@pytest.mark.parametrize("q", [0.05, 0.5])
def test_lines_of_negative_slope_come_from_the_exchanged_pair(q: float) -> None:
    """(N6): sup_A P(A) - e^ε Q(A) of a sampled Gaussian step and of the same exchanged, by half-lines."""
    epsilon, t = np.linspace(0.0, 3.0, 61), np.linspace(-12.0, 14.0, 20001)
    power, level = (1 - q) * ndtr(-t) + q * ndtr(1.0 - t), ndtr(-t)
    removed, added = half_line_curve(power, level, epsilon), half_line_curve(1 - level, 1 - power, epsilon)
    for lines, p, q_mass in (
        (lines_of(epsilon, removed, added), power, level),
        (lines_of(epsilon, added, removed), 1 - level, 1 - power),
    ):
        assert lines.at(-epsilon) == pytest.approx(half_line_curve(p, q_mass, -epsilon), abs=1e-9)


@pytest.mark.parametrize("neighbours", [ReplaceOne(), Group(3), Group(2, ReplaceOne())])
def test_what_the_inversion_misses_is_charged_above_only(neighbours: Neighbours) -> None:
    """(C7): a threshold that is off moves mass; from above that counts, from below merging makes it harmless."""
    above, under = related(ClippingStep(1.0, 0.1), neighbours)[0].pairs(40, 1e-9)
    assert isinstance(above, SubsampledMixture)
    assert under == replace(above, is_charged=False)


def test_masses_without_a_partner_are_infinite_losses() -> None:
    """Losses in (0, 1], (1, 2]: P has all of its mass in the first cell, of which Q allows e times 0.05."""
    nodes = np.array([0.0, 1.0, 2.0])
    cells = LossCells(np.array([0.5, 0.2]), np.array([0.05, 0.5]), 0.1, 0.2, 0.2, 0.25)
    found = _with_masses_that_agree(cells, nodes)
    assert found.p == pytest.approx([0.05 * math.e, 0.2])
    assert found.q == pytest.approx([0.05, 0.2 / math.e])
    assert found.p.sum() + found.p_below + found.p_above == pytest.approx(1.0)
    assert found.q.sum() + found.q_below + found.q_above == pytest.approx(1.0)


kinds = st.sampled_from([DPSGD(1.0, 0.1).norms, Hutchinson(16, secret=True)])
runs = st.builds(DPSGD, st.floats(0.6, 4.0), st.floats(1e-3, 0.1), kinds)


@settings(deadline=None, max_examples=8)
@given(run=runs, steps=st.integers(1, 3000), delta=st.sampled_from([1e-4, 1e-6]))
def test_replacing_costs_at_least_as_much_as_leaving_out(run: DPSGD, steps: int, delta: float) -> None:
    alone = run.epsilon(steps=steps, delta=delta)
    replaced = replace(run, neighbours=ReplaceOne()).epsilon(steps=steps, delta=delta)
    assert replaced.upper >= alone.lower
    both = replace(run, neighbours=ReplaceOne()).epsilon_by_direction(steps=steps, delta=delta)
    assert both["add"].upper == pytest.approx(both["remove"].upper, rel=1e-3)
    assert replace(run, neighbours=Group(1)).epsilon(steps=steps, delta=delta) == alone
    assert replace(run, neighbours=AddRemove()).epsilon(steps=steps, delta=delta) == alone


@settings(deadline=None, max_examples=5)
@given(sigma=st.floats(0.7, 4.0), q=st.floats(1e-3, 0.05), steps=st.integers(1, 1000), size=st.integers(1, 6))
def test_groups_grow_and_stay_below_composed_curves(sigma: float, q: float, steps: int, size: int) -> None:
    """(N1) grows with the group; (N6), which holds for all mechanisms, is never below it."""
    smaller, larger = (DPSGD(sigma, q, neighbours=Group(m)).epsilon(steps=steps, delta=1e-5) for m in (size, size + 1))
    assert larger.upper >= smaller.lower
    by_curves = DPSGD(sigma, RandomAllocation(1), neighbours=Group(2)).epsilon(steps=min(steps, 20), delta=1e-5)
    by_pairs = DPSGD(sigma, 1.0, neighbours=Group(2)).epsilon(steps=min(steps, 20), delta=1e-5)
    assert by_pairs.lower <= by_curves.upper <= by_pairs.upper * 1.05 + 0.05


def test_what_has_no_pair_is_composed_of_curves() -> None:
    """(N6): exact replacement by curves costs 7.11 where the pair says 5.81; allocation has nothing else."""
    allocated = DPSGD(1.0, RandomAllocation(34))
    shuffled = replace(allocated, neighbours=ReplaceOne())
    assert not shuffled.has_pairs
    alone, replaced = (run.epsilon(steps=340, delta=1e-5) for run in (allocated, shuffled))
    assert 0.99 * alone.lower <= replaced.lower <= alone.upper < replaced.upper < 6.7
    assert not replaced.is_narrow
    curve = shuffled.epsilon(steps=[34, 340], delta=1e-5)
    assert curve.upper[1] == pytest.approx(replaced.upper)
    deltas = shuffled.delta(steps=340, epsilon=[1.0, replaced.upper])
    assert deltas.upper[1] == pytest.approx(1e-5, rel=0.05)
    band, one = (run.trade_off(steps=340, alpha=[0.01, 0.1]) for run in (shuffled, allocated))
    assert np.all(band.lower <= one.lower)
    assert np.all(band.upper <= one.upper + 1e-12)
    with pytest.raises(ParameterError, match="neighbours"):
        shuffled.to_pld()


def test_replacements_compose_over_phases_and_calibrate_the_same_way() -> None:
    replaced = DPSGD(1.0, Q, neighbours=ReplaceOne())
    once, twice = replaced.epsilon(steps=400, delta=1e-5), compose([(replaced, 100), (replaced, 300)]).epsilon(1e-5)
    assert once == twice
    mixed = compose([(replaced, 200), (DPSGD(1.001, Q, neighbours=ReplaceOne()), 200)]).epsilon(1e-5)
    assert 0.99 * once.lower < mixed.lower < mixed.upper < once.upper * 1.001
    with pytest.raises(ParameterError, match="the same neighbours"):
        compose([(replaced, 100), (DPSGD(1.0, Q), 100)])
