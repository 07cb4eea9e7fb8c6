"""Replacement with public probes: each step of the proof of (N11), what is charged, and both ends, by other means."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.integrate import quad
from scipy.optimize import brentq
from scipy.special import ndtr
from scipy.stats import chi2

from dprmt.accounting import DPSGD, FixedOrder, Hutchinson, ReplaceOne
from dprmt.accounting.laws._laws import RankOneLaw
from dprmt.accounting.pairs import _public_replacement as opposite
from dprmt.accounting.pairs._steps import ClippingStep, related

Array = NDArray[np.float64]
Q = 2000 / 67349


def threshold(a: float, b: float, gamma: float, q: float) -> float:
    def slope(t: float) -> float:
        return q * math.exp(a * t - a * a / 2) - gamma * q * math.exp(-b * t - b * b / 2) - (1 - q) * (gamma - 1)

    return float(brentq(slope, (a - b) / 2 - 1e-9, a / 2 + math.log((gamma - 1) * (1 - q) / q + gamma) / a + 1e-9))


def aligned(a: float, b: float, gamma: float, q: float) -> float:
    """H_γ of one step with opposite shifts a and -b, where the best test is a half-line."""
    t = threshold(a, b, gamma, q)
    return float((1 - q) * (1 - gamma) * ndtr(-t) + q * ndtr(a - t) - gamma * q * ndtr(-b - t))


def drawn(a: Array, b: Array, gamma: float, q: float, number: int = 300) -> Array:
    """The same for many shifts, by a search over thresholds: no larger."""
    t = np.linspace(-8.0, 14.0, number)[:, None]
    plain = (1 - q) * (1 - gamma) * ndtr(-t)
    return np.asarray(np.max(plain + q * ndtr(a - t) - gamma * q * ndtr(-b - t), axis=0))


shifts = st.floats(0.2, 3.0)
losses = st.sampled_from([0.0, 1e-3, 0.02, 0.3, 1.5])
rates = st.sampled_from([1e-3, Q, 0.3, 1.0])


@settings(deadline=None, max_examples=40)
@given(a=shifts, b=shifts, loss=losses, q=rates)
def test_the_cross_derivative_is_bounded_in_its_box(a: float, b: float, loss: float, q: float) -> None:
    """By differences of h itself; the bound is asked at a shift that holds both."""
    gamma, step = math.exp(loss), 1e-3
    up, down = a + step, a - step
    mixed = aligned(up, b + step, gamma, q) - aligned(up, b - step, gamma, q)
    mixed -= aligned(down, b + step, gamma, q) - aligned(down, b - step, gamma, q)
    mixed /= 4 * step**2
    grid = np.geomspace(max(a, b) * 1.5, 0.05, 40)
    ends = np.array([[0.97 * loss, 1.03 * loss]])
    most = opposite._largest_cross_derivative(ends, grid, q)[0]
    place = int(np.searchsorted(-grid, -max(a, b), side="right")) - 1
    assert -mixed / q <= most[place] + 2e-5
    assert most.max() <= math.exp(-0.5) / math.sqrt(2 * math.pi) + 1e-12


def potentials(a: float, b: float, gamma: float, q: float) -> tuple[float, float]:
    """W at shift a and v at shift b, by integrals of the slopes along equal shifts."""

    def slope(of_w: bool, s: float) -> float:
        t = threshold(s, s, gamma, q)
        y = s - t if of_w else s + t
        return q * (1.0 if of_w else gamma) * math.exp(-y * y / 2) / math.sqrt(2 * math.pi)

    ends = ((True, a), (False, b))
    first, second = (quad(lambda s, of=of: slope(of, s), 1e-6, end, epsabs=1e-9)[0] for of, end in ends)
    return first, second


@settings(deadline=None, max_examples=12)
@given(
    x=st.floats(0.45, 2.0), other=st.floats(0.45, 2.0), loss=st.sampled_from([0.0, 0.01, 0.05]), s=st.floats(0.05, 1)
)
def test_the_inequality_of_the_theorem_holds_where_it_is_settled(x: float, other: float, loss: float, s: float) -> None:
    """(N11) literally: what is charged per cell makes up for ratios that differ, and windows for angles."""
    sigma, probes, gamma = 1.0, 32, math.exp(loss)
    grid = np.geomspace(0.4, 2.2, 25)
    shift = 1.0 / (sigma * np.sqrt(grid))
    ends = np.array([[loss, loss]])
    allowed = opposite._allowed_multiplier(ends, shift[:-1:4], shift[4::4], probes, Q)
    beta = np.array([[float(allowed.min()), float(allowed.min()) / 8]])
    cross = opposite._largest_cross_derivative(ends, shift, Q)
    need = opposite._excess_of_cells(beta, cross, grid, sigma)[0]
    a, b = 1.0 / (sigma * math.sqrt(x)), 1.0 / (sigma * math.sqrt(other))
    w, v = potentials(a, b, gamma, Q)
    cell = int(np.searchsorted(grid, min(x, other), side="right")) - 1
    apart = math.sqrt(a * a + b * b + 2 * a * b * (1.0 - s))
    for place, value in enumerate(beta[0]):
        most = w + v + Q * (value * (x - other) ** 2 + need[place, cell])
        assert aligned(a, b, gamma, Q) <= most + 1e-7
        assert aligned(a, apart - a, gamma, Q) <= most - Q * 4 * value / probes * (2 * s - s * s) + 1e-7


@pytest.mark.parametrize(
    ("a", "b", "loss", "q"),
    [(1.0, 1.0, 0.5, 1.0), (1.0, 1.0, 0.5, 0.1), (0.5, 0.5, 0.1, 0.1), (0.2, 0.2, 0.01, 0.05), (0.2, 0.2, 1e-3, 0.9)],
)
def test_a_multiplier_is_what_misaligned_gradients_lose(a: float, b: float, loss: float, q: float) -> None:
    """4β/k (2s - s²) q at every angle, and no less than .6 of the most it could be."""
    probes, ends = 32, np.array([[loss, loss]])
    allowed = opposite._allowed_multiplier(ends, np.array([a]), np.array([b]), probes, q).item()
    s = np.linspace(1e-3, 1.0, 100)
    apart = np.sqrt(a * a + b * b + 2 * a * b * (1.0 - s))
    here = aligned(a, b, math.exp(loss), q)
    lost = np.array([here - aligned(a, d - a, math.exp(loss), q) for d in apart])
    most = float(np.min(lost / q * probes / (4 * (2 * s - s * s))))
    assert 0.6 * most < allowed <= most


def test_ratios_below_all_of_the_law_are_charged_in_full() -> None:
    """Then the sample may be plain to see: δ grows by q times their probability at every loss."""
    losses, x, below = np.array([0.0, 0.01, 0.5]), np.geomspace(0.3, 3.0, 60), 1e-3
    mass = np.full(x.size, 1.0 / x.size)
    plain, _ = opposite.opposite_curve(losses, x, mass, 0.0, 32, 1.0, Q)
    more, charged = opposite.opposite_curve(losses, x, mass, below, 32, 1.0, Q)
    assert more - plain == pytest.approx(Q * below, rel=1e-9)
    assert np.all(charged >= Q * below)
    equal = opposite._EqualRatios.at(losses, 1.0 / np.sqrt(x), Q).height @ mass
    assert more == pytest.approx(Q * equal + charged, rel=1e-12)


@pytest.mark.parametrize("sigma", [0.45, 0.8, 1.0])
@pytest.mark.parametrize("loss", [0.0, 0.03, 0.4])
def test_convex_functions_above_both_potentials_cost_so_much(sigma: float, loss: float) -> None:
    """Literally: slopes at many ratios, the steepest so far, and what that adds under χ²(k)/k."""
    probes = 16
    x = np.geomspace(0.02, max(8.0, 0.76 / sigma**2), 160)
    shift = 1.0 / (sigma * np.sqrt(x))
    charged = opposite._EqualRatios.at(np.array([loss]), shift, Q).bent(x, shift, probes, sigma)[0]
    fine = np.geomspace(0.02, 8.0, 40_000)
    a = 1.0 / (sigma * np.sqrt(fine))
    equal = opposite._EqualRatios.at(np.array([loss]), a, Q)
    total = 0.0
    for density in (np.exp(-(equal.before**2) / 2), math.exp(loss) * np.exp(-(equal.after**2) / 2)):
        slope = (a**3 * density / math.sqrt(2 * math.pi) * sigma**2 / 2)[0]
        steepest = np.maximum.accumulate(slope[::-1])[::-1]
        total += np.trapezoid(chi2.cdf(probes * fine, probes) * (steepest - slope), fine)
    assert total <= charged + 1e-9
    assert charged <= 1.6 * total + 2e-4


def test_hinges_lie_above_what_they_must() -> None:
    """A convex function that decreases to the last value, at least as large as asked at every ratio, and its mean."""
    x, node = np.array([0.3, 0.5, 0.8, 1.0, 1.6]), np.array([2.0, 0.9, 0.85, 0.1, 0.05])
    probes = 12
    mean = float(opposite._expected_hinges(node, x, probes))
    assert mean >= 0.05
    constant = float(opposite._expected_hinges(np.full(5, 0.05), x, probes))  # asked of all ratios beyond the last too
    assert constant == pytest.approx(0.05)
    density = lambda y: chi2.pdf(12 * y, 12) * 12  # noqa: E731
    steps = float(np.sum(node[1:] * np.diff(chi2.cdf(12 * np.append(x[:-1], np.inf)[:5], 12))))
    assert mean >= steps
    alone = float(opposite._expected_hinges(np.array([0.0, 0.0, 0.0, 1.0, 0.0]), x, probes))
    value = quad(lambda y: density(y) * max((1.6 - y) / 0.6, 0.0), 0.0, 1.6)[0]
    assert alone == pytest.approx(value, rel=1e-6)
    above = float(opposite.expected_above(np.array([1.3]), probes)[0])
    assert above == pytest.approx(quad(lambda y: density(y) * (y - 1.3), 1.3, 9)[0])


def test_outside_a_window_angles_are_charged_in_full() -> None:
    """Literally: ramps of height 4β/k that begin one ratio within the window, for both samples, and none without β."""
    probes, beta = 32, 0.7
    x = np.array([1e-3, 0.02, 0.5, 0.7, 0.8, 1.0, 1.3, 1.5, 2.0])
    window = opposite._Windows(np.array([[1.0]]), np.array([3]), np.array([7]))
    need = np.zeros((1, 1, x.size - 1))
    height = 4 * beta / probes

    def density(y: float) -> float:
        return float(chi2.pdf(probes * y, probes) * probes)

    left = quad(lambda y: density(y) * (0.8 - y) / 0.1, 0.0, 0.8)[0]
    right = quad(lambda y: density(y) * (y - 1.3) / 0.2, 1.3, 9.0)[0]
    charge = float(opposite._least_charge(np.array([[beta]]), need, x, probes, window)[0])
    assert charge == pytest.approx(2 * height * (left + right), rel=1e-3)
    assert charge >= 2 * height * (chi2.cdf(probes * 0.7, probes) + chi2.sf(probes * 1.5, probes))
    assert float(opposite._least_charge(np.array([[0.0]]), need, x, probes, window)[0]) <= 1e-9
    too_narrow = opposite._Windows(np.array([[0.5]]), np.array([3]), np.array([7]))
    assert math.isinf(float(opposite._least_charge(np.array([[beta]]), need, x, probes, too_narrow)[0]))


@settings(deadline=None, max_examples=40)
@given(loss=losses, q=rates, sigma=st.floats(0.4, 3.0), x=st.floats(0.05, 3.0))
def test_equal_ratios_are_convex_right_of_a_third(loss: float, q: float, sigma: float, x: float) -> None:
    """(N12), by second differences; left of 1/(3σ²) in e^{ρx}."""
    gamma, least = math.exp(loss), opposite.equal_ratios_convex_from(sigma)
    rate = max(1.5 * (least / x - 1.0) / x, 0.0)

    def at(value: float) -> float:
        a = 1.0 / (sigma * math.sqrt(value))
        return aligned(a, a, gamma, q)

    step = 1e-2 * x
    middle = x if rate == 0.0 else math.log((math.exp(-rate * step) + math.exp(rate * step)) / 2) / rate + x
    assert at(middle) <= (at(x - step) + at(x + step)) / 2 + 1e-12


def curve_from_above(pair: opposite.AtomicPair, loss: float) -> float:
    return float(pair.infinite + pair.p @ np.maximum(-np.expm1(loss - pair.losses), 0.0))


@pytest.mark.parametrize(("sigma", "q", "probes"), [(1.0, Q, 32), (2.0, 0.01, 16), (0.7, 0.2, 64)])
def test_no_spectra_exceed_it_and_equal_ones_attain_it(sigma: float, q: float, probes: int) -> None:
    """Gradients of drawn spectra, as nearly opposite as these allow, under one matrix of probes."""
    step = related(ClippingStep(sigma, q, RankOneLaw(probes)), ReplaceOne())[0]
    (above, below), coarse = step.pairs(160, 1e-10), step.pairs(10, 1e-10)
    draw = np.random.default_rng(probes)
    for trial in range(8):
        chi = draw.chisquare(probes, (800, 3)) / probes
        first = np.eye(3)[0] if trial % 2 else draw.dirichlet(np.full(3, 0.4))
        second = first if trial % 5 == 0 else draw.dirichlet(np.full(3, 0.4) if trial % 3 else 1.0 + 20.0 * first)
        cosine = float(np.sqrt(first * second).sum())
        a, b = (1.0 / (sigma * np.sqrt(chi @ weights)) for weights in (first, second))
        shorter = np.sqrt(a**2 + b**2 + 2 * a * b * cosine) - a
        for loss in (0.0, 0.3 * q, q, 3 * q, 0.4):
            each = drawn(a, shorter, math.exp(loss), q)
            error = 4 * float(each.std()) / math.sqrt(each.size)
            assert each.mean() <= curve_from_above(above, loss) + error
    x = np.geomspace(0.01, 8.0, 900)
    density, a = probes * chi2.pdf(probes * x, probes), 1.0 / (sigma * np.sqrt(x))
    for loss in (0.0, 0.3 * q, q, 3 * q, 0.4):
        value = float(np.trapezoid(density * drawn(a, a, math.exp(loss), q, 3000), x))
        assert curve_from_above(below, loss) <= value * (1 + 1e-3) + 1e-5 * q
        assert value <= curve_from_above(above, loss) + 1e-5 * q <= value * 1.01 + 2e-5 * q
        low, high = (curve_from_above(pair, loss) for pair in reversed(coarse))
        assert low * (1 - 1e-3) - 1e-5 * q <= value <= high + 1e-5 * q


@pytest.mark.parametrize(
    ("run", "steps", "delta", "value"),
    [
        (DPSGD(1.0, Q, Hutchinson(32, secret=False), ReplaceOne()), 400, 1e-5, 6.424),
        (DPSGD(1.0, Q, Hutchinson(128, secret=False), ReplaceOne()), 400, 1e-5, 5.928),
        (DPSGD(3.5, 0.0046, Hutchinson(43, secret=False), ReplaceOne()), 2460, 1e-7, None),
        (DPSGD(1.4, 0.13, Hutchinson(59, secret=False), ReplaceOne()), 231, 2e-9, None),
        (DPSGD(0.73, 0.24, Hutchinson(171, secret=False), ReplaceOne()), 4493, 3e-5, None),
    ],
    ids=str,
)
def test_both_ends_meet(run: DPSGD, steps: int, delta: float, value: float | None) -> None:
    """Within a thousandth, as where norms are exact; the values where Z = Z' are those of another transform."""
    ends = run.epsilon(steps=steps, delta=delta)
    assert ends.is_narrow
    assert ends.upper - ends.lower <= 1e-3 * ends.upper
    if value is not None:
        assert ends.lower <= value <= ends.upper


def test_without_sampling_it_is_answered() -> None:
    ends = DPSGD(4.0, FixedOrder(), Hutchinson(64, secret=False), ReplaceOne()).epsilon(steps=3, delta=1e-5)
    exact = DPSGD(4.0, FixedOrder(), neighbours=ReplaceOne()).epsilon(steps=3, delta=1e-5)
    assert exact.lower < ends.upper < 1.1 * exact.upper


def test_ratios_that_differ_cost_little_with_few_probes() -> None:
    bounds = DPSGD(4.0, 0.015, Hutchinson(10, secret=False), ReplaceOne()).epsilon(4e-9, steps=95)
    assert bounds.upper <= 1.005 * bounds.lower  # 1.04 with wide boxes of shifts
