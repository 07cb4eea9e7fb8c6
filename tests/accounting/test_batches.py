"""Batches of a fixed and of a largest size, cyclic ones, several releases of one batch: against literal mixtures."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dprmt import accounting
from dprmt.accounting import DPSGD, AddRemove, CyclicPoisson, FixedSize, GaussianRelease, Poisson, ReplaceOne, ZeroOut
from dprmt.accounting.pairs._fixed_size import DisplacedPair, FixedSizeStep
from dprmt.accounting.pairs._pairs import StepPair

GRID = np.linspace(-11.0, 14.0, 40_001)
RATE, STEPS, DELTA = 2000 / 67349, 400, 1e-5


def density(*shifts_and_weights: tuple[float, float]) -> np.ndarray:
    """Masses of a mixture of unit normals on the grid."""
    parts = [weight * np.exp(-((GRID - shift) ** 2) / 2) for shift, weight in shifts_and_weights]
    return np.sum(parts, axis=0) * (GRID[1] - GRID[0]) / math.sqrt(2 * math.pi)


def hockey_stick(p: np.ndarray, q: np.ndarray, alpha: float) -> float:
    return float(np.maximum(p - alpha * q, 0.0).sum())


def of_pair(pair: StepPair, alpha: float, exchanged: bool = False) -> float:
    """H_α of a pair, or of the exchanged one, from its cells."""
    sign = -1.0 if exchanged else 1.0
    nodes = np.sort(sign * np.array([math.log(alpha), math.log(alpha) + 60.0]))
    cells = pair.cells(nodes).mirrored() if exchanged else pair.cells(nodes)
    return float(cells.p[0] + cells.p_above - alpha * (cells.q[0] + cells.q_above)) + pair.slack


@pytest.mark.parametrize("alpha", [0.8, 1.0, 1.3, 3.0])
def test_a_sum_and_a_count_of_one_batch_are_one_vector(alpha: float) -> None:
    """Quadrature in two axes: the sample moves the sum by 1/σ and the count by 1/σ₁, or neither."""
    axis = np.linspace(-9.0, 11.0, 601)
    x, y = np.meshgrid(axis, axis)

    def density(first: float, second: float) -> np.ndarray:
        return np.exp(-((x - first) ** 2 + (y - second) ** 2) / 2) * (axis[1] - axis[0]) ** 2 / (2 * math.pi)

    p, q = 0.7 * density(0.0, 0.0) + 0.3 * density(1 / 0.8, 1 / 1.5), density(0.0, 0.0)
    above, below = DPSGD(0.8, 0.3, beside=[GaussianRelease(1.5)]).step().pairs(0, 0.0)
    for exchanged, wanted in ((False, hockey_stick(p, q, alpha)), (True, hockey_stick(q, p, alpha))):
        assert of_pair(above, alpha, exchanged) == pytest.approx(wanted, abs=2e-5)
        assert of_pair(below, alpha, exchanged) == pytest.approx(wanted, abs=2e-5)


@pytest.mark.parametrize(
    ("sampling", "neighbours"),
    [
        (0.05, accounting.Group(2)),
        (FixedSize(5, 100), ReplaceOne()),
        (accounting.RandomAllocation(20), ZeroOut()),
        (CyclicPoisson(0.01, 5), AddRemove()),
        (Poisson(0.05, 9, 100), ReplaceOne()),
    ],
)
def test_a_joint_shift_is_less_noise_for_every_sampling(sampling: object, neighbours: accounting.Neighbours) -> None:
    joint = DPSGD(1.2, sampling, neighbours=neighbours, beside=[GaussianRelease(1.6)])  # type: ignore[arg-type]
    alone = DPSGD(1.2 * 1.6 / 2.0, sampling, neighbours=neighbours)  # type: ignore[arg-type]
    found, wanted = (one.epsilon(steps=20, delta=1e-5) for one in (joint, alone))
    assert found.lower == pytest.approx(wanted.lower, rel=1e-4)  # meshes depend on the last bits
    assert found.upper == pytest.approx(wanted.upper, rel=1e-4)


def literal(own: float | None, others: np.ndarray, rate: float, most: int, sigma: float) -> np.ndarray:
    """The law of a truncated batch's sum: all draws, and all ways to keep at most so many of a draw."""
    gradients = ([] if own is None else [own]) + [*others]
    found: dict[float, float] = {}
    for drawn in itertools.product([False, True], repeat=len(gradients)):
        chosen = [gradient for gradient, is_in in zip(gradients, drawn, strict=True) if is_in]
        weight = rate ** len(chosen) * (1 - rate) ** (len(gradients) - len(chosen))
        kept = [*itertools.combinations(chosen, min(most, len(chosen)))]
        for batch in kept:
            found[sum(batch) / sigma] = found.get(sum(batch) / sigma, 0.0) + weight / len(kept)
    return density(*found.items())


@pytest.mark.parametrize(("most", "rate"), [(1, 0.3), (2, 0.5), (3, 0.4)])
@pytest.mark.parametrize("neighbours", [ZeroOut(), AddRemove(), ReplaceOne()])
def test_literal_truncated_batches_of_four_samples(most: int, rate: float, neighbours: accounting.Neighbours) -> None:
    """In both directions; others opposite to the sample, like it, drawn, and without a gradient: attained."""
    sigma = 0.9
    above, below = DPSGD(sigma, Poisson(rate, most, 4), neighbours=neighbours).step().pairs(0, 0.0)
    changed = {"zero-out": 0.0, "add-remove": None, "replace-one": -1.0}[neighbours.kind]
    draws = np.random.default_rng(5).uniform(-1.0, 1.0, (4, 3))
    for others in (*draws, np.full(3, -1.0), np.full(3, 1.0), np.zeros(3)):
        p, q = literal(1.0, others, rate, most, sigma), literal(changed, others, rate, most, sigma)
        for alpha in (0.6, 0.95, 1.0, 1.2, 2.5, 8.0):
            for exchanged, value in ((False, hockey_stick(p, q, alpha)), (True, hockey_stick(q, p, alpha))):
                assert value <= of_pair(above, alpha, exchanged) + 1e-8
                if not others.any():
                    assert value == pytest.approx(of_pair(below, alpha, exchanged), rel=1e-6, abs=1e-8)


def test_a_batch_that_cannot_overflow_is_poisson_sampling() -> None:
    roomy, plain = DPSGD(1.0, Poisson(RATE, 67349, 67349)), DPSGD(1.0, RATE)
    assert roomy.epsilon(steps=STEPS, delta=DELTA).upper == plain.epsilon(steps=STEPS, delta=DELTA).upper


def test_the_crowding_of_a_batch_is_that_of_binomial_laws() -> None:
    """Against sums of the binomial law at 40 digits, also where w is far below rounding."""
    mpmath = pytest.importorskip("mpmath")
    n, q = 300, 0.1
    with mpmath.workdps(40):
        masses = [mpmath.binomial(n - 1, k) * mpmath.mpf(q) ** k * (1 - mpmath.mpf(q)) ** (n - 1 - k) for k in range(n)]
        for most in (25, 40, 80):
            full, rate, least = DPSGD(1.0, Poisson(q, most, n)).step().crowding  # type: ignore[union-attr]
            w = mpmath.fsum(masses[most:])
            share = mpmath.fsum(mass * q * most / (k + 1) for k, mass in enumerate(masses) if k >= most)
            assert full == pytest.approx(float(w), rel=1e-11)
            assert rate == pytest.approx(float(share / w), rel=1e-11)
            assert least == pytest.approx(float(q * (1 - w) + share), rel=1e-13)


def test_truncated_batches_cost_no_more_than_another_package_says() -> None:
    """Its pair is that of a replacement where the batch is full."""
    events = pytest.importorskip("dp_accounting")
    from dp_accounting.pld import PLDAccountant

    peer = PLDAccountant(value_discretization_interval=5e-3)
    event = events.dp_event.TruncatedSubsampledGaussianDpEvent(67349, RATE, 2200, 1.0)
    claimed = peer.compose(event, STEPS).get_epsilon(DELTA)
    ours = DPSGD(1.0, Poisson(RATE, 2200, 67349), neighbours=AddRemove()).epsilon(steps=STEPS, delta=DELTA)
    assert DPSGD(1.0, RATE).epsilon(steps=STEPS, delta=DELTA).lower * 0.99 < ours.lower <= claimed
    assert ours.upper <= claimed
    assert ours.upper < 1.002 * ours.lower  # B is 4.5 standard deviations above the mean


def test_cyclic_sampling_is_fewer_steps_at_a_larger_rate() -> None:
    for bands, value in ((4, 8.413), (8, 12.025)):
        bounds = DPSGD(1.0, CyclicPoisson(RATE, bands)).epsilon(steps=STEPS, delta=DELTA)
        assert bounds.lower <= value <= bounds.upper * 1.0001
    cyclic, plain = DPSGD(1.0, CyclicPoisson(RATE, 3)), DPSGD(1.0, 3 * RATE)
    seven, three = cyclic.epsilon(steps=7, delta=DELTA), plain.epsilon(steps=3, delta=DELTA)
    assert seven.upper == pytest.approx(three.upper, rel=1e-4)
    curve = cyclic.epsilon(steps=[1, 3, 4, 7], delta=DELTA)
    for steps, upper in zip((1, 1, 2, 3), curve.upper, strict=True):
        assert upper == pytest.approx(plain.epsilon(steps=steps, delta=DELTA).upper, rel=2e-3)


def test_correlated_noise_hides_a_sample_as_well_as_the_pairs_say() -> None:
    """Literal rows of CX + Z, two bands, four steps, gradients that follow earlier rows: δ by Monte Carlo."""
    rate, c, epsilon = 0.4, np.array([0.8, 0.6]), 0.7
    z = np.random.default_rng(11).standard_normal((400_000, 4))  # Q: the sample is not in its group
    second = np.sign(z[:, 0] + 1e-300)  # the sample's gradient at its second turn
    ratio = np.zeros(len(z))
    for first_in, second_in in itertools.product([0.0, 1.0], repeat=2):
        mean = np.concatenate([np.outer(np.full(len(z), first_in), c), np.outer(second_in * second, c)], axis=1)
        weight = (rate if first_in else 1 - rate) * (rate if second_in else 1 - rate)
        ratio += weight * np.exp((z * mean).sum(axis=1) - (mean**2).sum(axis=1) / 2)
    gains = np.maximum(ratio - math.exp(epsilon), 0.0)
    bounds = DPSGD(1.0, CyclicPoisson(rate / 2, 2)).run(steps=4).delta_by_direction(epsilon)["remove"]
    error = 4 * gains.std() / math.sqrt(len(z))
    assert bounds.lower - error <= gains.mean() <= bounds.upper + error


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


@pytest.mark.parametrize("delta", [1e-16, 1e-20, 1e-60, 1e-150])
def test_no_rounding_puts_mass_beyond_the_largest_loss(delta: float) -> None:
    """To add the sample, each step's loss is bounded: no lower end of ε exceeds as many times the bound."""
    member = FixedSizeStep(1.0, BATCHES.rate, is_replacement=False).pairs(0, 0.0)[1]
    most = -float(member.loss(np.linspace(0.0, 2.0, 100_001)).min())
    added = DPSGD(1.0, BATCHES).run(steps=STEPS).epsilon_by_direction(delta)["add"]
    assert added.lower <= STEPS * most * (1.0 + 1e-6)
