"""One step without composing, rare large losses apart, and many phases: against direct sums and closed forms."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import ndtr

from dprmt.accounting import DPSGD, FixedOrder, GaussianRelease, Hutchinson, compose
from dprmt.accounting.composition import _compose
from dprmt.accounting.composition import _solve as _level
from dprmt.accounting.composition._compose import DeltaCurve, OneStepCurve, Question, Split, Window, composed, window
from dprmt.accounting.composition._solve import Level
from dprmt.accounting.pairs._pairs import AtomicPair, LossPMF, PublicPair
from dprmt.accounting.pairs._pairs import from_above as dots_from_above

from .oracles.gaussian import gaussian_epsilon

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
    np.testing.assert_allclose(_compose.discounted_suffix_sums(values, nodes), direct, rtol=1e-12)


@given(laws(), st.floats(0.0, 2.0), st.floats(-7.0, -1.0))
def test_one_step_is_read_off(pmf, epsilon, exponent) -> None:
    exact, delta = exact_delta(pmf, 1, epsilon), 10.0**exponent
    upper, lower = OneStepCurve(pmf, "upper"), OneStepCurve(pmf, "lower")
    high, low = upper.delta_bounds(epsilon)[1], lower.delta_bounds(epsilon)[0]
    assert low <= exact * (1 + 1e-12) + 1e-18
    assert exact * (1 - 1e-12) <= high <= exact * (1 + 1e-9) + 1e-13 + pmf.infinite
    above, below = upper.epsilon(delta, "upper"), lower.epsilon(delta, "lower")
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
    pmf = dots_from_above(index, 0.03, cells, to_infinity=True)
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
    crossing = curve.epsilon(exact, "upper") if side == "upper" else curve.epsilon(exact, "lower")
    assert crossing == pytest.approx(1.0, abs=1e-9)


MESH = 0.01


def law(rare, seed, spread=30):
    """Nearly all mass near 0, and a heavy tail of ``rare`` mass."""
    rng = np.random.default_rng(seed)
    index = np.arange(-spread, 2000)
    small, large = index <= spread, index > spread
    mass = np.where(small, rng.uniform(0.5, 1.0, index.size) * np.exp(-((index / spread * 3.0) ** 2)), 0.0)
    tail = np.where(large, rng.uniform(0.5, 1.0, index.size) * (1.0 + index / 100.0) ** -4.0, 0.0)
    return LossPMF(index, (1.0 - rare) * mass / mass.sum() + rare * tail / tail.sum(), MESH, 0.0)


def parts_by_sums(pmf, steps, large):
    """The masses of sums with some loss beyond ``large``, from positive terms alone; index of the first."""
    is_large = pmf.losses > large
    below, beyond = np.where(is_large, 0.0, pmf.mass), np.where(is_large, pmf.mass, 0.0)
    without, with_some = below, beyond
    for _ in range(steps - 1):
        with_some = np.convolve(with_some, pmf.mass) + np.convolve(without, beyond)
        without = np.convolve(without, below)
    return with_some, steps * int(pmf.index[0])


@pytest.mark.parametrize("rare", [1e-4, 1e-9, 1e-14])
@pytest.mark.parametrize("tilt", [0.0, 0.05])
@pytest.mark.parametrize("large", [0.3, 5.0])
def test_what_has_a_large_loss_is_known_relative_to_itself(rare, tilt, large):
    """One step has it, and all others have none; two at once are charged (F4)."""
    pmf, steps = law(rare, 3), 7
    truth, first = parts_by_sums(pmf, steps, large)
    (few, _), (beyond, _) = Split(large, (tilt, tilt), 0.0).parts([(pmf, steps)])
    assert few[0][0].mass @ (pmf.losses > large) == 0.0
    found = composed(beyond, tilt, window(beyond, tilt))
    place = np.rint(found.losses / MESH).astype(int) - first
    inside = (place >= 0) & (place < truth.size)
    wanted = np.where(inside, truth[np.clip(place, 0, truth.size - 1)], 0.0) * np.exp(tilt * found.losses)
    charged = found.mass * np.exp(found.log_scale)
    error = found.error * np.exp(found.log_scale)
    missing = wanted - charged
    assert np.all(missing >= -error)
    assert missing @ np.exp(-tilt * found.losses) <= found.infinite + 2 * error
    assert found.infinite <= (steps * rare) ** 2
    assert error < 1e-8 * wanted.sum()  # a transform of everything leaves 1e-13 of 1, however rare they are


@pytest.mark.parametrize("side", ["upper", "lower"])
def test_both_parts_together_bound_the_curve(side):
    """A curve of few steps with a heavy tail, by both parts on one grid, against sums of positive terms."""
    pmf, steps, large = replace(law(1e-6, 3), infinite=1e-8), 7, 2.0
    split = Split(large, (3.0, 0.05), 8.0)
    parts = split.parts([(pmf, steps)], side)
    windows = [window(*part) for part in parts]
    first, last = min(w.first for w in windows), max(w.first + w.size for w in windows)
    curve = DeltaCurve(Question(epsilon=split.near), *(composed(*part, Window(first, last - first)) for part in parts))
    exact = np.ones(1)
    for _ in range(steps):
        exact = np.convolve(exact, pmf.mass)
    losses = MESH * (np.arange(exact.size) + steps * int(pmf.index[0]))
    for epsilon in (0.5, 2.0, 8.0, 15.0):
        delta = float(exact @ np.maximum(-np.expm1(np.minimum(epsilon - losses, 0.0)), 0.0))
        low, high = curve.delta_bounds(epsilon)
        infinite = -math.expm1(steps * math.log1p(-pmf.infinite))
        assert (high >= (delta + infinite) * (1 - 1e-9)) if side == "upper" else (low <= delta * (1 + 1e-9))
        assert low == pytest.approx(delta, rel=1e-4, abs=1e-18)


unsampled = st.sampled_from(
    [lambda sigma: DPSGD(sigma, 1.0), lambda sigma: DPSGD(sigma, FixedOrder()), lambda sigma: GaussianRelease(sigma)]
)


@given(
    st.lists(st.tuples(unsampled, st.floats(0.4, 40.0)), min_size=1, max_size=20),
    st.integers(1, 5),
    st.sampled_from([1e-2, 1e-6, 1e-16]),
)
@settings(max_examples=20)
def test_gaussian_phases_compose_to_a_gaussian(phases: list[Any], steps: int, delta: float) -> None:
    """Without sampling all phases and releases together are one Gaussian mechanism, answered as narrowly as that."""
    exact = gaussian_epsilon(math.sqrt(math.fsum(steps * sigma**-2.0 for _, sigma in phases)), delta)
    for bound in compose([(make(sigma), steps) for make, sigma in phases]).epsilon_by_direction(delta).values():
        assert bound.lower <= exact * (1 + 1e-9) + 1e-12
        assert exact * (1 - 1e-9) <= bound.upper + 1e-12
        assert bound.upper <= exact + 1e-3 * max(1.0, exact)
        assert bound.is_narrow


def test_losses_far_beyond_the_question_count_as_infinite(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few probes: of a tail of losses up to 1e4, δ(0) sees that they are large; told apart, they cost the mesh."""
    phases = [(DPSGD(sigma, 0.03, Hutchinson(8, secret=False)), 2) for sigma in (0.8, 1.2)]

    def bounds() -> tuple[float, float]:
        at = Level(compose(phases).schedule, Question(epsilon=0.0), "remove", -1)
        return tuple(at.curve(side).delta_bounds(0.0)[end] for side, end in (("lower", 0), ("upper", 1)))

    monkeypatch.setattr(_level, "MOST_POINTS", 2**15)
    lower, upper = bounds()
    assert upper - lower < 0.1 * upper


def test_an_infinite_loss_is_part_of_the_total_variation() -> None:
    """Whose finite losses are all 0: without it δ(0) would be 0."""
    pair = AtomicPair(np.zeros(1), np.array([0.99]), 0.01, reach=1.0)
    found = _level.coarse_pass([(pair, 3)], Question(1e-3), 1e-12).total_variation
    assert 0.03 <= found < 0.0301
    mixed = PublicPair(np.ones(1), np.array([0.99]), 0.5, infinite=0.01)
    assert mixed.total_variation() == pytest.approx(0.99 * (2 * ndtr(0.5) - 1) + 0.01)
