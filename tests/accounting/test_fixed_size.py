"""Batches of a fixed size: the supremum over all data sets, its members, and literal mixtures of few samples."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dprmt.accounting import (
    DPSGD,
    FixedSize,
    ReplaceOne,
    ZeroOut,
)
from dprmt.accounting.pairs._fixed_size import DisplacedPair, FixedSizeStep, SupremumPair

GRID = np.linspace(-11.0, 14.0, 40_001)
WIDTH = GRID[1] - GRID[0]


def density(*shifts_and_weights: tuple[float, float]) -> np.ndarray:
    """Masses of a mixture of unit normals on the grid."""
    parts = [weight * np.exp(-((GRID - shift) ** 2) / 2) for shift, weight in shifts_and_weights]
    return np.sum(parts, axis=0) * WIDTH / math.sqrt(2 * math.pi)


def hockey_stick(p: np.ndarray, q: np.ndarray, alpha: float) -> float:
    return float(np.maximum(p - alpha * q, 0.0).sum())


def of_pair(pair: DisplacedPair | SupremumPair, alpha: float) -> float:
    """H_α of a pair, from its cells above the loss log α."""
    cells = pair.cells(np.array([math.log(alpha), math.log(alpha) + 60.0]))
    return float(cells.p[0] + cells.p_above - alpha * (cells.q[0] + cells.q_above))


@pytest.mark.parametrize(("joined", "changed", "rate"), [(2.0, 1.0, 0.03), (2.0, 0.0, 0.2), (1.0, 0.5, 0.9)])
@pytest.mark.parametrize("alpha", [0.8, 0.99, 1.0, 1.02, 1.7])
def test_cells_of_a_member_are_those_of_its_densities(joined: float, changed: float, rate: float, alpha: float) -> None:
    p, q = density((0.0, 1 - rate), (joined, rate)), density((0.0, 1 - rate), (changed, rate))
    member = DisplacedPair(joined, changed, rate)
    assert of_pair(member, alpha) == pytest.approx(hockey_stick(p, q, alpha), rel=1e-7, abs=1e-10)
    cells = member.cells(np.linspace(*member.loss_range(1e-12), 60))
    assert cells.p.sum() + cells.p_below + cells.p_above == pytest.approx(1.0, abs=1e-14)
    assert cells.q.sum() + cells.q_below + cells.q_above == pytest.approx(1.0, abs=1e-14)
    assert cells.p_above <= 1e-12
    assert cells.q_below <= 1e-12 or changed == 0.0


@given(
    st.booleans(),
    st.floats(0.01, 0.9),
    st.floats(0.3, 4.0),
    st.floats(-2.5, 2.5),
    st.floats(0.0, 1.0),
    st.floats(0.0, 2 * math.pi),
    st.floats(0.0, 1.0),
    st.floats(0.0, 2 * math.pi),
)
def test_no_pair_of_shifts_exceeds_the_supremum(
    replaced: bool, rate: float, sigma: float, loss: float, first: float, at: float, second: float, turned: float
) -> None:
    """(W2): shifts in a plane, within the constraints of the relation; both directions, by quadrature in two axes."""
    most = 2.0 if replaced else 1.0
    v = most * first * np.exp(1j * at)
    u = v + most * second * np.exp(1j * turned)
    if abs(u) > 2.0:
        u = 2.0 * u / abs(u)
        v = v if abs(u - v) <= most else u - most * (u - v) / abs(u - v)
    axis = np.linspace(-10.0, 10.0, 301)
    x, y = np.meshgrid(axis, axis)

    def law(shift: complex) -> np.ndarray:
        normals = [np.exp(-((x - z.real) ** 2 + (y - z.imag) ** 2) / 2) for z in (0j, shift / sigma)]
        return ((1 - rate) * normals[0] + rate * normals[1]) * (axis[1] - axis[0]) ** 2 / (2 * math.pi)

    alpha = math.exp(loss)
    above = FixedSizeStep(sigma, rate, replaced).pairs(0, 0.0)[0]
    assert hockey_stick(law(u), law(v), alpha) <= of_pair(above, alpha) + 2e-4  # the quadrature's error
    assert hockey_stick(law(v), law(u), alpha) <= 1.0 - alpha + alpha * of_pair(above, 1.0 / alpha) + 2e-4


@pytest.mark.parametrize("replaced", [False, True])
@pytest.mark.parametrize("alpha", [0.5, 0.95, 1.0, 1.05, 2.0, 6.0])
def test_the_supremum_is_attained_at_losses_of_either_sign(replaced: bool, alpha: float) -> None:
    rate, sigma = 0.1, 0.8
    above, below = FixedSizeStep(sigma, rate, replaced).pairs(0, 0.0)
    shifts = (2.0, 0.0 if replaced else 1.0) if alpha >= 1.0 else (0.0, 2.0 if replaced else 1.0)
    p, q = (density((0.0, 1 - rate), (shift / sigma, rate)) for shift in shifts)
    assert of_pair(above, alpha) == pytest.approx(hockey_stick(p, q, alpha), rel=1e-6)
    assert of_pair(below, alpha) <= of_pair(above, alpha) * (1 + 1e-12)


@pytest.mark.parametrize("size", [1, 2, 3])
def test_literal_batches_of_four_samples_stay_below_and_attain(size: int) -> None:
    """All batches enumerated; the others' gradients drawn, and opposite to the sample's, where (2, 1) is attained."""
    draws = np.random.default_rng(3)
    above, below = FixedSizeStep(1.0, size / 4, is_replacement=False).pairs(0, 0.0)
    for others in (*draws.uniform(-1.0, 1.0, (6, 3)), np.full(3, -1.0)):
        laws = []
        for own in (1.0, 0.0):
            sums = [sum(batch) for batch in itertools.combinations([own, *others], size)]
            laws.append(density(*((float(total) + 0.0, 1 / len(sums)) for total in sums)))
        for alpha in (0.7, 1.0, 1.2, 2.5):
            assert hockey_stick(laws[0], laws[1], alpha) <= of_pair(above, alpha) + 1e-8  # the quadrature's error
            if np.all(others == -1.0):
                assert hockey_stick(laws[0], laws[1], alpha) == pytest.approx(of_pair(below, alpha), rel=1e-6)


def test_without_others_to_displace_it_is_the_gaussian_mechanism() -> None:
    above, below = FixedSizeStep(2.0, 1.0, is_replacement=False).pairs(0, 0.0)
    p, q = density((0.5, 1.0)), density((0.0, 1.0))
    for alpha in (1.0, 1.5, 3.0):
        assert of_pair(above, alpha) == pytest.approx(hockey_stick(p, q, alpha), rel=1e-6)
        assert of_pair(below, alpha) == pytest.approx(hockey_stick(p, q, alpha), rel=1e-6)


RATE, STEPS, DELTA = 2000 / 67349, 400, 1e-5
BATCHES = FixedSize(2000, 67349)


@pytest.mark.parametrize(
    ("sigma", "neighbours", "lower", "upper"),
    [(1.0, ZeroOut(), 15.01, 15.36), (2.0, ZeroOut(), 2.423, 2.554), (1.0, ReplaceOne(), 22.12, 24.68)],
)
def test_both_ends_of_a_run(sigma: float, neighbours: ZeroOut | ReplaceOne, lower: float, upper: float) -> None:
    """The ends that a composition in floats on a fine mesh gives, from inside and from outside."""
    bounds = DPSGD(sigma, BATCHES, neighbours=neighbours).epsilon(steps=STEPS, delta=DELTA)
    assert bounds.lower == pytest.approx(lower, rel=1e-3)
    assert bounds.upper == pytest.approx(upper, rel=1e-3)


def test_no_end_contradicts_poisson_sampling_or_the_bound_by_renyi_divergence() -> None:
    """Replacing a sample at sensitivity 2C is what the bound of another package is for."""
    events = pytest.importorskip("dp_accounting")
    from dp_accounting.rdp import RdpAccountant

    accountant = RdpAccountant(neighboring_relation=events.NeighboringRelation.REPLACE_ONE)
    step = events.SampledWithoutReplacementDpEvent(67349, 2000, events.GaussianDpEvent(1.0 / 2.0))
    renyi = accountant.compose(step, STEPS).get_epsilon(DELTA)
    replaced = DPSGD(1.0, BATCHES, neighbours=ReplaceOne()).epsilon(steps=STEPS, delta=DELTA)
    zeroed = DPSGD(1.0, BATCHES).epsilon(steps=STEPS, delta=DELTA)
    assert DPSGD(1.0, RATE).epsilon(steps=STEPS, delta=DELTA).upper < zeroed.lower
    assert zeroed.lower <= replaced.upper < renyi


@pytest.mark.parametrize("delta", [1e-16, 1e-20, 1e-60, 1e-150])
def test_no_rounding_puts_mass_beyond_the_largest_loss(delta: float) -> None:
    """To add the sample, each step's loss is bounded: no lower end of ε exceeds as many times the bound."""
    member = FixedSizeStep(1.0, BATCHES.rate, is_replacement=False).pairs(0, 0.0)[1]
    most = -float(member.loss(np.linspace(0.0, 2.0, 100_001)).min())
    added = DPSGD(1.0, BATCHES).run(steps=STEPS).epsilon_by_direction(delta)["add"]
    assert added.lower <= STEPS * most * (1.0 + 1e-6)
