"""One step without composing, compositions of several lengths and sums that they need, against direct sums."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dprmt.accounting.composition._curve import OneStepCurve, discounted_suffix_sums
from dprmt.accounting.pairs._discretization import LossPMF, keep_at_last
from dprmt.accounting.pairs._discretization import from_above as dots_from_above
from dprmt.accounting.pairs._public_pair import PublicPair

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
def laws(draw) -> LossPMF:
    """Small losses at -3 … 4 meshes, large ones at multiples of 7."""
    large = sorted(draw(st.sets(st.integers(1, 9), min_size=1, max_size=5)))
    index = np.array([*range(-3, CUT + 1), *(STRIDE * j for j in large)])
    small_part = np.array(draw(st.lists(st.floats(0.01, 1.0), min_size=8, max_size=8)))
    tall = np.array(draw(st.lists(st.floats(1e-9, 0.05), min_size=len(large), max_size=len(large))))
    mass = np.append(small_part / small_part.sum(), tall)
    infinite = draw(st.sampled_from([0.0, 1e-9]))
    return LossPMF(index, mass / mass.sum() * (1 - infinite), MESH, infinite)


def test_discounted_sums_over_several_blocks() -> None:
    """Σ_{i ≥ j} v_i e^{-(l_i - l_j)} over a range that no single exponential spans."""
    nodes = np.arange(700) * 1.3
    values = np.random.default_rng(0).random(nodes.size)
    direct = np.array([values[j:] @ np.exp(nodes[j] - nodes[j:]) for j in range(nodes.size)])
    np.testing.assert_allclose(discounted_suffix_sums(values, nodes), direct, rtol=1e-12)


@given(laws(), st.floats(0.0, 2.0), st.floats(-7.0, -1.0))
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


@pytest.mark.parametrize("side", ["upper", "lower"])
def test_a_heavy_node_does_not_swallow_a_light_tail(side) -> None:
    """Masses 1 at a loss of 0 and 1e-25 at 3: δ(1) is 1e-25 (1 - e^{-2}), and the difference of sums is 0."""
    curve = OneStepCurve(LossPMF(np.array([0, 1, 3]), np.array([1.0, 0.5, 1e-25]), 1.0, 0.0), side)
    exact = 1e-25 * -math.expm1(-2.0)
    low, high = curve.delta_bounds(1.0)
    assert (high if side == "upper" else low) == pytest.approx(exact, rel=1e-9)
    crossing = curve.epsilon_above(exact) if side == "upper" else curve.epsilon_below(exact)
    assert crossing == pytest.approx(1.0, abs=1e-9)
