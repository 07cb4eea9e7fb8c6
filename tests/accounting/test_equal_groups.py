"""Groups with public probes, loss by loss (N13), (N14): literal maxima over thresholds, couplings that are drawn."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.special import ndtr

from dprmt.accounting import DPSGD, Group, Hutchinson, ZeroOut
from dprmt.accounting.laws import NormRatioBins, RankOneLaw
from dprmt.accounting.pairs import AtomicPair, ClippingStep
from dprmt.accounting.pairs._coin_mixtures import log_coin_weights
from dprmt.accounting.pairs._equal_group import added_curve_of, changed_loss_by_loss, convex_from, equals_below
from dprmt.accounting.pairs._equal_ratios import (
    EqualRatios,
    Tangents,
    inflection,
    largest_majorant_excess,
    tabled_thresholds,
)
from dprmt.accounting.pairs._opposite_replacement import curve_of
from dprmt.accounting.pairs._public_group import _majorants

Array = NDArray[np.float64]
FIRST = 2000 / 67349
THRESHOLDS = np.linspace(-11.0, 18.0, 5801)
groups = {
    "sigma": st.floats(0.5, 4.0),
    "q": st.floats(1e-4, 0.6),
    "size": st.integers(2, 6),
    "loss": st.floats(0.0, 6.0),
}


def parts(sigma: float, q: float, size: int) -> tuple[Array, Array, float]:
    """Shifts of a few ratios, logarithms of the weights, and the probability that any sample is drawn."""
    x = np.array([0.2, 0.45, 0.7, 0.9, 1.05, 1.3, 1.8])
    return 1.0 / (sigma * np.sqrt(x)), log_coin_weights(size, q), -math.expm1(size * math.log1p(-q))


def literal(
    shift: Array, weights: Array, tau: float, middle: float | None = None, thresholds: Array = THRESHOLDS
) -> Array:
    """Σ p_j Φ(ja - t) - τ Φ(-t) by threshold (row); with a ``middle``, of the convex majorants of (N9)."""
    total = np.multiply.outer(-tau * ndtr(-thresholds), np.ones(shift.size))
    for number in range(1, weights.size):
        if middle is None:
            total += weights[number] * ndtr(number * shift - thresholds[:, None])
        else:
            total += weights[number] * _majorants(thresholds, shift, shift**-2.0, number, middle)[0]
    return total


@settings(deadline=None, max_examples=40)
@given(**groups)
def test_equal_ratios_have_the_largest_difference_of_all_half_lines(
    sigma: float, q: float, size: int, loss: float
) -> None:
    shift, log_weights, some = parts(sigma, q, size)
    tau = math.expm1(loss) + some
    found = EqualRatios.at(np.array([tau]), shift, log_weights).removing()[0]
    sought = literal(shift, np.exp(log_weights), tau).max(axis=0)
    assert np.all(found >= sought * (1 - 1e-12))
    assert np.all(found <= sought * (1 + 1e-4) + 1e-9 * some)


@settings(deadline=None, max_examples=80)
@given(
    **groups, share=st.floats(0.01, 0.99), middle=st.floats(0.8, 1.2), is_removed=st.booleans(), is_alone=st.booleans()
)
@example(sigma=0.6, q=1e-3, size=2, loss=0.0, share=0.5, middle=1.0, is_removed=True, is_alone=True)
@example(sigma=0.4, q=1e-3, size=2, loss=0.01, share=0.5, middle=1.0, is_removed=True, is_alone=True)
@example(sigma=0.4, q=1e-3, size=2, loss=0.0, share=0.9, middle=1.0, is_removed=False, is_alone=True)
@example(sigma=0.8, q=1e-4, size=3, loss=0.0, share=0.02, middle=1.0, is_removed=False, is_alone=True)
def test_what_tangents_add_is_no_less_at_any_threshold(
    sigma: float, q: float, size: int, loss: float, share: float, middle: float, is_removed: bool, is_alone: bool
) -> None:
    """All thresholds of a fine grid, by the literal majorants of (N9); two samples are next to never drawn, or are."""
    shift, log_weights, some = parts(sigma, q, size)
    log_weights[2:] -= 60.0 * is_alone
    tau = math.expm1(loss) + some if is_removed else share * some
    first = math.sqrt(2 * math.log(tau / some)) if is_removed else -9.0
    equal, weights, middle = EqualRatios.at(np.array([tau]), shift, log_weights), np.exp(log_weights), middle / sigma
    added = Tangents(equal, np.array([first]), weights, middle, largest_majorant_excess(shift)).added()[0]
    value = equal.power[0] - tau * ndtr(-equal.threshold[0])
    sought = literal(shift, weights, tau, middle)[first <= THRESHOLDS].max(axis=0)
    assert np.all(value + added >= sought - 1e-12 * some)
    plain = literal(shift, weights, tau)[first <= THRESHOLDS].max(axis=0)
    assert np.all(added >= -1e-15)
    assert float(np.max(sought - plain - added)) <= 1e-9


@settings(deadline=None, max_examples=40)
@given(
    sigma=st.floats(0.001, 0.5),
    q=groups["q"],
    size=groups["size"],
    loss=st.floats(0.0, 600.0),
    middle=st.floats(0.8, 1.2),
    is_alone=st.booleans(),
)
@example(sigma=0.0303, q=1e-3, size=2, loss=0.01, middle=1.0, is_alone=True)
def test_what_tangents_add_where_there_is_little_noise(
    sigma: float, q: float, size: int, loss: float, middle: float, is_alone: bool
) -> None:
    """Thresholds lie far out then: beyond 16 the table of one sample's majorants ended, which was too little."""
    shift, log_weights, some = parts(sigma, q, size)
    log_weights[2:] -= 60.0 * is_alone
    tau = math.expm1(loss) + some
    first = math.sqrt(2 * math.log(tau / some))
    equal, weights, middle = EqualRatios.at(np.array([tau]), shift, log_weights), np.exp(log_weights), middle / sigma
    added = Tangents(equal, np.array([first]), weights, middle, largest_majorant_excess(shift)).added()[0]
    value = equal.power[0] - tau * ndtr(-equal.threshold[0])
    t = np.append(
        np.linspace(first, first + size * float(shift[0]) + 20.0, 3000), np.maximum(equal.threshold[0], first)
    )
    sought = literal(shift, weights, tau, middle, t).max(axis=0)
    assert np.all(value + added >= sought - 1e-12 * some)


@settings(deadline=None, max_examples=60)
@given(**groups, back=st.floats(0.05, 1.5), ahead=st.floats(0.05, 1.5), is_alone=st.booleans())
@example(sigma=0.4, q=1e-3, size=2, loss=0.0, back=0.3, ahead=0.3, is_alone=True)
def test_majorants_between_thresholds_add_no_more_than_is_said(
    sigma: float, q: float, size: int, loss: float, back: float, ahead: float, is_alone: bool
) -> None:
    shift, log_weights, some = parts(sigma, q, size)
    log_weights[2:] -= 60.0 * is_alone
    tau, weights = math.expm1(loss) + some, np.exp(log_weights)
    equal = EqualRatios.at(np.array([tau]), shift, log_weights)
    tangents = Tangents(equal, np.full(1, -9.0), weights, 1.0 / sigma, largest_majorant_excess(shift))
    low, high = equal.threshold - back, equal.threshold + ahead
    near, between = tangents._near(low, high)[0], tangents._between(low, high)[0]
    added = literal(shift, weights, tau, 1.0 / sigma) - literal(shift, weights, tau)
    inside = (THRESHOLDS[:, None] >= low) & (THRESHOLDS[:, None] <= high)
    sought = np.where(inside, added, 0.0).max(axis=0)
    assert np.all(near >= sought - 1e-13 * tau)
    assert np.all(between >= sought - 1e-13 * tau)


@settings(deadline=None, max_examples=60)
@given(**groups, distance=st.floats(0.01, 3.0))
def test_half_lines_lose_as_much_as_is_said_beside_their_threshold(
    sigma: float, q: float, size: int, loss: float, distance: float
) -> None:
    shift, log_weights, some = parts(sigma, q, size)
    tau, weights = math.expm1(loss) + some, np.exp(log_weights)
    equal = EqualRatios.at(np.array([tau]), shift, log_weights)
    tangents = Tangents(equal, np.zeros(1), weights, 1.0 / sigma, largest_majorant_excess(shift))
    t, step = equal.threshold[0], np.full(shift.size, distance)

    def value(at: Array) -> Array:
        each = [weight * ndtr(number * shift - at) for number, weight in enumerate(weights) if number]
        return np.asarray(np.sum(each, axis=0) - tau * ndtr(-at))

    before, after = tangents._lost_before(step[None])[0], tangents._lost_after(step[None])[0]
    assert np.all(value(t) - value(t - step) >= before - 1e-13 * tau)
    assert np.all(value(t) - value(t + step) >= after - 1e-13 * tau)
    few = step[None] / 300
    for lost, at in ((tangents._lost_before(few)[0], t - few[0]), (tangents._lost_after(few)[0], t + few[0])):
        assert np.all(lost >= (value(t) - value(at)) / (1.3 * size) - 1e-9 * tau)


@settings(deadline=None, max_examples=60)
@given(shift=st.floats(0.05, 1000.0), first=st.floats(-9.9, 8.0) | st.floats(-9.9, 1000.0))
@example(shift=60.0, first=30.0)
def test_majorants_of_one_sample_exceed_its_power_by_no_more_than_is_tabled(shift: float, first: float) -> None:
    a = np.array([shift])
    table = largest_majorant_excess(a)[:, 0]
    place = int(np.searchsorted(tabled_thresholds(a), first, side="right")) - 1
    t = np.linspace(first, max(first, shift) + 1.0, 4001)
    excess = _majorants(t, a, a**-2.0, 1, 1.0)[0][:, 0] - ndtr(shift - t)
    assert table[place] >= float(excess.max()) - 1e-12
    assert float(inflection(np.array([first]))[0]) > max(first, 0.0)


@settings(deadline=None, max_examples=60)
@given(
    sigma=st.floats(0.4, 4.0),
    q=st.floats(1e-5, 0.7),
    size=st.integers(2, 8),
    a=st.floats(0.1, 6.0),
    place=st.floats(0.0, 1.0),
)
def test_equal_ratios_are_as_convex_as_is_said(sigma: float, q: float, size: int, a: float, place: float) -> None:
    """(N14): Var(b) + t(b̄ - t) ≤ v a² for every threshold, v of the bin that a lies in; weights written out."""
    x = 1.0 / (sigma * a) ** 2
    bins = NormRatioBins(np.array([x * 0.97]), np.array([x * 1.02]), np.ones(1), np.array([x]), 0.0)
    weights = np.exp(log_coin_weights(size, q))
    c = float(convex_from(bins, sigma, weights)[0])
    number = np.arange(1, size + 1)
    t = a * (size + 1) * place
    log_share = np.log(number * weights[1:]) + number * a * t - (number * a) ** 2 / 2
    share = np.exp(log_share - log_share.max())
    share /= share.sum()
    mean = float(share @ number) * a
    variance = float(share @ (number * a - mean) ** 2)
    assert variance + t * (mean - t) <= 3 * sigma**2 * c * a**2 * (1 + 1e-12)


def both_sides(sigma: float, q: float, probes: int, size: int, bins: int = 100) -> tuple[AtomicPair, AtomicPair]:
    law = ClippingStep(sigma, q, RankOneLaw(probes)).norm_ratio(bins, 1e-13)
    above, _ = changed_loss_by_loss(law, sigma, q, size, bins, 1e-11, is_rough=True)
    return above, equals_below(law, sigma, q, size, bins, 1e-11)


@pytest.mark.parametrize(("sigma", "q", "probes", "size"), [(1.0, FIRST, 32, 2), (2.0, 0.1, 16, 3), (0.8, 0.2, 24, 2)])
def test_couplings_that_spectra_make_lie_below_and_equal_gradients_between(
    sigma: float, q: float, probes: int, size: int
) -> None:
    """Gradients of one direction, of directions of their own, and drawn ones, all with the same probes."""
    above, under = both_sides(sigma, q, probes, size)
    losses, weights = np.array([0.0, 0.01, 0.1, 1.0, 2.0]), np.exp(log_coin_weights(size, q))
    highest, lowest = curve_of(above, losses), curve_of(under, losses)
    highest_added, lowest_added = added_curve_of(above, losses[:2]), added_curve_of(under, losses[:2])
    rng, count = np.random.default_rng(5), 400
    t = np.linspace(-9.0, 16.0, 700)
    for trial in range(4):
        rotation = np.eye(4)[[0] * size if trial == 0 else range(size)]
        if trial > 1:
            rotation = rng.normal(size=(size, 4)) * [1.0, 0.7, 0.3, 0.1]
            rotation /= np.linalg.norm(rotation, axis=1)[:, None]
        probe = rng.normal(size=(count, 4, probes))
        ratio = np.mean(np.einsum("md,cdk->cmk", rotation, probe) ** 2, axis=2)
        first, second = np.zeros((count, losses.size)), np.zeros((count, 2))
        for case in range(count):
            vectors = rotation / (sigma * np.sqrt(ratio[case]))[:, None]
            power = np.zeros(t.size)
            for code in range(2**size):  # aligned gradients of these lengths are no better for privacy
                drawn = np.array([code >> i & 1 for i in range(size)], dtype=bool)
                length = float(np.linalg.norm(vectors[drawn].sum(axis=0)))
                power += q ** drawn.sum() * (1 - q) ** (size - drawn.sum()) * ndtr(length - t)
            first[case] = [np.max(power - math.exp(loss) * ndtr(-t)) for loss in losses]
            second[case] = [np.max(ndtr(t) - math.exp(loss) * (1 - power)) for loss in losses[:2]]
        assert np.all(first.mean(0) <= highest + 4 * first.std(0) / math.sqrt(count))
        assert np.all(second.mean(0) <= highest_added + 4 * second.std(0) / math.sqrt(count))
        if trial == 0:
            assert np.all(first.mean(0) >= lowest - 4 * first.std(0) / math.sqrt(count) - 1e-6)
            assert np.all(second.mean(0) >= lowest_added - 4 * second.std(0) / math.sqrt(count) - 1e-6)
    assert np.all(lowest <= highest)
    assert np.all(lowest[:3] >= 0.97 * highest[:3])
    assert float(weights.sum()) == pytest.approx(1.0)


def test_ratios_below_the_smallest_atom_are_charged() -> None:
    """A tenth of all lies there, where a sample may be seen for certain: both samples at once, or one of them."""
    x = np.array([0.5, 0.9, 1.3])
    law = NormRatioBins(x, x, np.array([0.2, 0.4, 0.3]), x, 0.1)
    above, _ = changed_loss_by_loss(law, 1.0, 0.2, 2, 80, 1e-11, is_rough=True)
    some = 1 - 0.8**2
    assert float(curve_of(above, np.array([3.0]))[0]) >= 0.2 * some
    assert float(added_curve_of(above, np.array([0.2]))[0]) >= 0.1 * (1 - math.exp(0.2) * 0.8**2)


def test_a_group_at_the_first_setting_is_a_thousandth_wide() -> None:
    """Equal ratios of rank-one gradients cost 10.076 and 22.80."""
    two = DPSGD(1.0, FIRST, Hutchinson(32, secret=False), Group(2)).epsilon(steps=400, delta=1e-5)
    assert 10.066 < two.lower <= 10.0765
    assert 10.0755 <= two.upper < 10.081
    one = DPSGD(1.0, FIRST, Hutchinson(32, secret=False), ZeroOut()).epsilon(steps=400, delta=1e-5)
    assert two.lower > one.upper


@pytest.mark.parametrize(
    ("run", "steps", "delta"),
    [
        (DPSGD(0.3775559810157355, 0.007829885233393785, Hutchinson(34, secret=False), Group(6)), 673, 3.4e-10),
        (DPSGD(0.4128112137646291, 0.00027049017897857607, Hutchinson(25, secret=False), Group(2)), 663, 1.2e-11),
    ],
)
def test_adding_has_an_upper_end_where_much_is_added_to_equal_ratios(run: DPSGD, steps: int, delta: float) -> None:
    """At loss -log p_0 nothing is left; what was charged just before it counted as an infinite loss, more than δ."""
    added = run.epsilon_by_direction(steps=steps, delta=delta)["add"]
    assert added.lower <= added.upper <= 1.005 * added.lower
