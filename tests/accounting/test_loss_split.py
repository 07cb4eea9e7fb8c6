"""(J1), (J2): the parts of a split loss, put together again, against direct convolution; one step without composing."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from dprmt.accounting.composition import _split_curve, composed_powers, window_of
from dprmt.accounting.composition._composed_loss import chernoff, composed, log_mgf, window
from dprmt.accounting.composition._delta_curve import discounted_suffix_sums
from dprmt.accounting.composition._one_step_curve import OneStepCurve
from dprmt.accounting.composition._small_losses import _tilts, small_loss_curves
from dprmt.accounting.composition._split_curve import SplitCurve
from dprmt.accounting.pairs import LossPMF, PublicPair, keep_at_last
from dprmt.accounting.pairs import from_above as dots_from_above

MESH, STRIDE, CUT = 0.03, 7, 4


def power(pmf: LossPMF, steps: int) -> tuple[int, np.ndarray]:
    """First index and masses of the composed finite part, by schoolbook convolution."""
    dense = np.bincount(pmf.index - pmf.index[0], weights=pmf.mass)
    law = np.ones(1)
    for _ in range(steps):
        law = np.convolve(law, dense)
    return int(pmf.index[0]) * steps, law


def exact_delta(pmf: LossPMF, steps: int, epsilon: float) -> float:
    first, law = power(pmf, steps)
    losses = (first + np.arange(law.size)) * pmf.mesh
    finite = float(law @ np.maximum(-np.expm1(np.minimum(epsilon - losses, 0.0)), 0.0))
    return finite - math.expm1(steps * math.log1p(-pmf.infinite))


@st.composite
def split_laws(draw) -> LossPMF:
    """Small losses at -3 … 4 meshes, large ones at multiples of 7."""
    large = sorted(draw(st.sets(st.integers(1, 9), min_size=1, max_size=5)))
    index = np.array([*range(-3, CUT + 1), *(STRIDE * j for j in large)])
    small_part = np.array(draw(st.lists(st.floats(0.01, 1.0), min_size=8, max_size=8)))
    tall = np.array(draw(st.lists(st.floats(1e-9, 0.05), min_size=len(large), max_size=len(large))))
    mass = np.append(small_part / small_part.sum(), tall)
    infinite = draw(st.sampled_from([0.0, 1e-9]))
    return LossPMF(index, mass / mass.sum() * (1 - infinite), MESH, infinite)


@given(split_laws(), st.integers(1, 9), st.floats(0.0, 2.5), st.sampled_from([2, 10**6]), st.sampled_from([1e-9, 0.3]))
@settings(max_examples=150)
def test_both_sides_hold_the_convolution(pmf, steps, epsilon, few_steps, negligible) -> None:
    """With stand-ins for a number of small-loss steps (J2) or without; all large losses counted, or some charged."""
    exact = exact_delta(pmf, steps, epsilon)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_split_curve, "_FEW_STEPS", few_steps)
        patch.setattr(_split_curve, "_NEGLIGIBLE", negligible)
        upper, lower = (SplitCurve(pmf, steps, CUT, STRIDE, side, max(exact, 1e-12)) for side in ("upper", "lower"))
        high, low = upper.delta_bounds(epsilon)[1], lower.delta_bounds(epsilon)[0]
    assert low <= exact * (1 + 1e-10)
    assert high >= min(exact, 1.0) * (1 - 1e-10)
    last = float(pmf.losses[-1])
    if few_steps > steps and negligible < 0.1 and epsilon < last - 0.5 and exact > 1e-9:
        beyond = math.exp(epsilon - last)  # of the mass beyond the last node, what is moved up or down
        uncounted = -math.expm1(steps * math.log1p(-pmf.infinite))  # from below infinite losses are left out
        assert high - low <= exact * (1e-6 + 2 * beyond) + uncounted


@given(split_laws(), st.integers(2, 9), st.floats(-8.0, -1.0))
def test_epsilon_is_the_inverse_of_delta(pmf, steps, exponent) -> None:
    delta = 10.0**exponent
    upper, lower = (SplitCurve(pmf, steps, CUT, STRIDE, side, delta) for side in ("upper", "lower"))
    above, below = upper.epsilon_above(delta), lower.epsilon_below(delta)
    if math.isfinite(above):
        assert exact_delta(pmf, steps, above) <= delta * (1 + 1e-9)
    if below > 0:
        assert exact_delta(pmf, steps, below) >= delta * (1 - 1e-9)
    assert below <= above


@given(split_laws(), st.integers(1, 40), st.floats(-3.0, 1.0))
@example(LossPMF(np.arange(-3, 5), np.array([*[0.152] * 6, 0.038, 0.019]), MESH, 0.0), 1, 0.25)
def test_small_losses_at_every_epsilon(pmf, steps, epsilon) -> None:
    """Also far to the left of all losses, where δ is linear in e^ε, and to the right, where it is 0."""
    small_part = LossPMF(pmf.index[:8], pmf.mass[:8], MESH, 0.0)
    counts = [0, steps, steps + 3]
    indices, rows = round(epsilon / MESH) * np.array([1, 3]), np.arange(3)
    for small in (1e-5, 1e-9):
        high, low = (small_loss_curves(small_part, counts, small, side) for side in ("upper", "lower"))
        for i in indices:
            index = np.full(3, i)
            for count, a, b in zip(counts, low.at(rows, index), high.at(rows, index), strict=True):
                exact = exact_delta(small_part, count, i * MESH)
                assert a <= exact * (1 + 1e-12)
                assert b >= exact * (1 - 1e-12)
                bounds = [
                    chernoff(small_part, count, tilt)[0] - tilt * i * MESH
                    for tilt in _tilts(small_part, steps + 3, small)
                ]
                assert b - a <= 1e-9 * (exact + math.exp(min(bounds)))  # of which 2e-10 is charged on either side


def test_left_of_its_grid_a_curve_is_at_least_what_it_is_there() -> None:
    """D falls: where e^ε E u overtakes all mass, far below all losses, its linear part says nothing."""
    small_part = LossPMF(np.array([-33, 33]), np.array([0.27, 0.73]), MESH, 0.0)
    lower, upper = (small_loss_curves(small_part, [400], 1e-9, side) for side in ("lower", "upper"))
    index, rows = np.array([round(20.0 / MESH)]), np.zeros(1, dtype=np.int64)
    assert index[0] < lower.first
    assert 0.999 < lower.at(rows, index)[0] <= exact_delta(small_part, 400, 20.0) <= upper.at(rows, index)[0]


def test_just_left_of_its_grid_a_curve_keeps_what_lies_below() -> None:
    """D is linear in e^ε except for losses below ε, of which as much as 1e-10 may lie left of the grid."""
    small_part = LossPMF(np.array([-5, 5]), np.array([0.27, 0.73]), MESH, 0.0)
    upper = small_loss_curves(small_part, [40], 1e-9, "upper")
    first, law = power(small_part, 40)
    losses = (first + np.arange(law.size)) * MESH
    for index in upper.first - np.array([1, 2]):
        below = float(law @ np.maximum(np.expm1(index * MESH - losses), 0.0))
        linear = float(law.sum() - law @ np.exp(index * MESH - losses))
        assert below > 1e-13
        assert upper.at(np.zeros(1, dtype=np.int64), np.array([index]))[0] >= linear + below * (1 - 1e-9)


def test_no_small_loss_step_loses_nothing() -> None:
    """(1 - e^ε)₊, also where all small losses are negative and the grid ends left of 0."""
    small_part = LossPMF(np.array([-9, -8]), np.array([0.5, 0.4]), MESH, 0.0)
    high, low = (small_loss_curves(small_part, [0, 40], 1e-9, side) for side in ("upper", "lower"))
    index, rows = np.arange(-700, 5), np.zeros(705, dtype=np.int64)
    exact = -np.expm1(np.minimum(index * MESH, 0.0))
    assert low.first + low.values.shape[1] < 0
    assert np.all(low.at(rows, index) <= exact)
    assert np.all(high.at(rows, index) >= exact)


def test_discounted_sums_over_several_blocks() -> None:
    """Σ_{i ≥ j} v_i e^{-(l_i - l_j)}, row by row, over a range that no single exponential spans."""
    nodes = np.arange(700) * 1.3
    values = np.random.default_rng(0).random((3, nodes.size)) * np.array([[1.0], [1e-9], [1e9]])
    direct = np.array([[row[j:] @ np.exp(nodes[j] - nodes[j:]) for j in range(nodes.size)] for row in values])
    np.testing.assert_allclose(discounted_suffix_sums(values, nodes), direct, rtol=1e-12)


def test_no_large_loss_is_forgotten() -> None:
    """Binomial weights, every number of large losses: all mass at ε → -∞ is there."""
    pmf = LossPMF(np.array([0, 7, 14]), np.array([0.6, 0.3, 0.1]), MESH, 0.0)
    curve = SplitCurve(pmf, 5, CUT, STRIDE, "upper", 1e-3)
    assert set(curve.rows) == set(range(6))
    assert curve.at(-(10**6)) == pytest.approx(1.0, abs=1e-9)


def test_a_window_serves_every_number_of_steps_between() -> None:
    """Tilted mass outside is at most 2e-10 for each, by direct convolution."""
    pmf = LossPMF(np.arange(-2, 5), np.array([0.2, 0.4, 0.2, 0.1, 0.05, 0.03, 0.02]), MESH, 0.0)
    tilt = 3.0
    first, size = window_of(pmf, 10, 40, tilt)
    for steps in (10, 23, 40):
        start, law = power(pmf, steps)
        index = start + np.arange(law.size)
        tilted = law * np.exp(tilt * index * MESH - steps * log_mgf([(pmf, 1)], np.array([tilt]))[0])
        inside = (index >= first) & (index < first + size)
        assert tilted[~inside].sum() <= 2e-10
    span = window([(pmf, 23)], tilt)
    one = composed([(pmf, 23)], tilt, span)
    same = composed_powers(pmf, [23, 11], tilt, span.first, span.size)[23]
    np.testing.assert_allclose(same.mass, one.mass, atol=1e-15)
    assert same.log_scale == pytest.approx(one.log_scale, rel=1e-13)
    assert same.error == pytest.approx(one.error, rel=1e-9)


@given(split_laws(), st.floats(0.0, 2.0), st.floats(-7.0, -1.0))
def test_one_step_is_read_off(pmf, epsilon, exponent) -> None:
    exact, delta = exact_delta(pmf, 1, epsilon), 10.0**exponent
    upper, lower = OneStepCurve(pmf, "upper"), OneStepCurve(pmf, "lower")
    high, low = upper.delta_bounds(epsilon)[1], lower.delta_bounds(epsilon)[0]
    assert low <= exact * (1 + 1e-12) + 1e-18
    assert exact * (1 - 1e-12) <= high <= exact * (1 + 1e-9) + 1e-13 + pmf.infinite
    above, below = upper.epsilon_above(delta), lower.epsilon_below(delta)
    if math.isfinite(above):
        assert exact_delta(pmf, 1, above) <= delta * (1 + 1e-9)
        assert above - below >= 0
        near = exact_delta(pmf, 1, max(above - 1e-6, 0.0))  # further apart only where infinite losses are worth it
        assert above - below <= 1e-6 or near >= (delta - 2 * pmf.infinite) * (1 - 1e-9)
    if below > 0:
        assert exact_delta(pmf, 1, below) >= delta * (1 - 1e-9)


def test_the_last_cell_reaches_to_infinity() -> None:
    """Its dots keep P- and Q-mass, and bound δ(ε) up to the last node from above, far better than infinity does."""
    pair = PublicPair(np.array([0.5, 1.5]), np.array([0.7, 0.3]), 0.2)
    index = np.arange(-40, 61)
    cells = pair.cells(index * 0.03)
    plain = dots_from_above(index, 0.03, cells)
    pmf = keep_at_last(plain, cells)
    fine = dots_from_above(np.arange(-800, 40_000), 0.0015, pair.cells(np.arange(-800, 40_000) * 0.0015))
    for epsilon in (0.0, 0.5, 1.2, 1.7):
        truth = exact_delta(fine, 1, epsilon) if epsilon else float("nan")
        if epsilon:
            found, crude = exact_delta(pmf, 1, epsilon), exact_delta(plain, 1, epsilon)
            assert truth * (1 - 1e-4) <= found <= crude
            assert found - truth < 0.5 * (crude - truth)
    assert pmf.mass.sum() + pmf.infinite == pytest.approx(plain.mass.sum() + plain.infinite, rel=1e-12)
