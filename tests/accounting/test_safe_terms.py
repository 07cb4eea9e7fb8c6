"""Laws and pairs err to the safe side: each term that is added for it, and secret pairs, against exact values."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.special import gammainc, ndtr
from scipy.stats import norm

from dprmt.accounting.laws import _laws as _envelope_law
from dprmt.accounting.laws._envelope import envelope_cdf
from dprmt.accounting.laws._gamma_mixture import LARGEST_DOF, GammaMixture
from dprmt.accounting.laws._laws import EnvelopeLaw, RankOneLaw
from dprmt.accounting.laws._sketch import _averaged_tail, residual_tail
from dprmt.accounting.pairs import _pairs
from dprmt.accounting.pairs._pairs import AtomicPair, PublicPair, cells_with_misses, interval_masses, masses_between
from dprmt.accounting.pairs._secret_pair import SecretLowerPair, SecretUpperPair, inflection_shift
from dprmt.accounting.pairs._secret_replacement import SecretReplacement
from dprmt.accounting.pairs._steps import ClippingStep
from dprmt.accounting.pairs._tight_pair import largest_excess, majorant_excess
from dprmt.accounting.questions._curves import _turn, is_above_chords

from .oracles.gaussian import gaussian_delta


def test_components_beyond_the_largest_are_joined_with_all_their_mass() -> None:
    law = GammaMixture.of_copies(10**4, (1, 20, 30), (0.2, 0.3, 0.5))
    assert law.dof == (10**4, LARGEST_DOF)
    assert law.weight == pytest.approx((0.2, 0.8))


@pytest.mark.parametrize(("sketch", "power_iteration"), [(4, False), (8, True), (20, False)])
def test_tails_of_copies_hold_the_mean_of_the_bound(sketch: int, power_iteration: bool) -> None:
    """(H4): at least the mean over 1/(j+1) < x < 1/j, here by the midpoint rule, at most its value at the left end."""
    for j in (1, 2, 4):
        ends = np.linspace(1 / (j + 1), 1 / j, 13)
        middle = (ends[1:] + ends[:-1]) / 2
        mean = float(np.mean([residual_tail(float(x), sketch, power_iteration) for x in middle]))
        found = _averaged_tail(j, sketch, power_iteration)
        assert mean <= found <= residual_tail(1 / (j + 1), sketch, power_iteration)


@pytest.mark.parametrize("c", [0.5, 2.0, 6.0])
def test_an_envelope_too_small_by_its_margin_is_mended(c: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """A search that falls short by a hundredth beyond 1: E e^{-cX} of what is spread is still no less."""
    x = np.linspace(1e-4, 4.0, 4001)
    exact = float(np.trapezoid(c * np.exp(-c * x) * envelope_cdf(x, 8, 3), x)) + np.exp(-c * 4.0)
    monkeypatch.setattr(_envelope_law, "ENVELOPE_MARGIN", 1e-2)
    monkeypatch.setattr(_envelope_law, "envelope_cdf", lambda x, k, d: envelope_cdf(x, k, d) - 1e-2 * (x > 1))
    atoms, mass = EnvelopeLaw(8, 3).bins(400, 1e-12).spread(0.0)
    assert exact * (1 - 1e-5) <= np.exp(-c * atoms) @ mass <= exact + 1.5e-2


@pytest.mark.parametrize(("sigma", "probes"), [(0.5, 4), (0.2, 8), (0.05, 32)])
def test_the_excess_inside_an_interval_is_charged(sigma: float, probes: int) -> None:
    """(T6) by the code: at no ε is the expected excess larger, and the bound is near the largest one."""
    x, mass = RankOneLaw(probes).bins(64, 1e-12).spread(0.0)
    pair = PublicPair(1.0 / (sigma * np.sqrt(x)), mass, 0.1)
    epsilon = np.random.default_rng(probes).uniform(0.0, 90.0, 4000)
    attained = majorant_excess(epsilon, pair.shift) @ mass
    assert attained.max() <= largest_excess(pair, 90.0) <= 1.15 * attained.max()


def hockey_sticks(cells, nodes: np.ndarray) -> np.ndarray:
    """H at each node, with all mass above the last one at an infinite loss."""
    p, q = (np.append(np.cumsum(mass[::-1])[::-1], 0.0) for mass in (cells.p, cells.q))
    return p + cells.p_above - np.exp(nodes) * (q + cells.q_above)


def test_what_secret_thresholds_miss_is_charged_in_both_directions() -> None:
    """(C7): thresholds of one Gaussian shift that are all off by a hundredth, either way."""
    q, mu, nodes = 0.3, 1.0, np.linspace(-0.3, 2.0, 40)
    exact = (np.log((np.exp(nodes) - 1 + q) / q) + mu**2 / 2) / mu

    def curve(t: np.ndarray) -> np.ndarray:
        return np.array(ndtr(mu - t))

    removed = (1 - q) * ndtr(-exact) + q * curve(exact) - np.exp(nodes) * ndtr(-exact)
    added = ndtr(exact) - np.exp(-nodes) * ((1 - q) * ndtr(exact) + q * ndtr(exact - mu))
    for wrong in (0.01, -0.01):
        t = exact + wrong * (-1.0) ** np.arange(nodes.size)
        loss = np.log(1 - q + q * np.exp(mu * t - mu**2 / 2))
        absent = interval_masses(np.concatenate([[-np.inf], t, [np.inf]]))
        present = (1 - q) * absent + q * masses_between(curve(t), ndtr(t - mu))
        cells = cells_with_misses(nodes, present, absent, np.abs(loss - nodes))
        other = hockey_sticks(cells.mirrored(), -nodes[::-1])[::-1]
        assert np.all(hockey_sticks(cells, nodes) >= removed)
        assert np.all(other >= added)
        assert np.all(hockey_sticks(cells, nodes) <= removed + 0.02)


def test_secret_norms_below_all_atoms_tell_all() -> None:
    """Of removing, adding and replacing: however large the loss, it is exceeded with q times their probability."""
    shift, q, below = np.array([0.5, 1.0, 2.0]), 0.2, 1e-3
    one = SecretUpperPair(shift, np.full(3, (1 - below) / 3), q, below)
    nodes = np.linspace(-10.0, 60.0, 200)
    for pair in (one, SecretReplacement(one)):
        assert hockey_sticks(pair.cells(nodes), nodes)[-1] >= q * below
    cells = SecretReplacement(one).cells(-nodes[::-1]).mirrored()
    assert hockey_sticks(cells, nodes)[-1] >= q * below
    star = float(inflection_shift(np.array([30.0]))[0])  # there the convex majorant is 6.5 at 0
    at_zero = ndtr(3.0 / star) + star / 2 * norm.pdf(3.0 / star)
    assert at_zero > 6.0
    assert one.curve(np.array([30.0]))[0][0] >= below * at_zero


def test_atoms_at_infinity_are_there_in_both_directions() -> None:
    pair = AtomicPair(np.array([-0.5, 0.5]), np.array([0.3, 0.5]), 0.2)
    nodes = np.linspace(-2.0, 2.0, 9)
    for cells in (pair.cells(nodes), pair.cells(-nodes[::-1]).mirrored()):
        assert hockey_sticks(cells, nodes)[-1] >= 0.2


@pytest.mark.parametrize(
    ("mu", "last", "points", "most"),
    [(1.5, 6.0, 9, 2.0), (1.0, 1.0, 3, 1.06), (0.5, 0.5, 2, 0.61), (3.0, 1.0, 3, 3.02)],
)
def test_a_run_s_mu_lies_above_the_chords_of_its_curve(mu: float, last: float, points: int, most: float) -> None:
    """Between points that a Gaussian curve passes through, δ may be as large as the chord in e^ε.

    With a tenth of the bend that is charged between points, the coarse grids have chords above the curve of μ.
    """
    epsilon = np.linspace(0.0, last, points)
    delta = gaussian_delta(epsilon, mu)
    found = _turn(lambda mu: is_above_chords(mu, epsilon, delta))[1]
    at = np.linspace(0.0, last, 401)
    chord = np.interp(np.exp(at), np.exp(epsilon), delta)
    assert np.any(chord > gaussian_delta(at, mu) * 1.0001)
    assert np.all(chord <= gaussian_delta(at, found) + 1e-15)
    assert found < most


SIGMA, TAIL = 2.0, 1e-9
THRESHOLDS = np.concatenate([np.linspace(-8.0, 8.0, 33), np.geomspace(9.0, 300.0, 12)])


def truth(probes: int, t: np.ndarray) -> np.ndarray:
    """E Φ(μ - t) of the envelope: P(μ > t + G), averaged over a normal G by the trapezoidal rule."""
    length = np.linspace(0.0, 30.0, 6001)
    kink = np.maximum(1 / SIGMA - t, -12.0)[:, None]  # X_env is at most 1: the rest is beyond it
    g = kink + length
    weight = np.exp(-(g**2) / 2) * length[1] / np.sqrt(2 * np.pi)
    weight[:, 0] /= 2
    law = gammainc(probes / 2, probes / 2 / (SIGMA * np.maximum(t[:, None] + g, 1 / SIGMA)) ** 2)
    return ndtr(kink[:, 0]) + (law * weight).sum(axis=1)


def pairs(probes: int, bins: int = 256) -> tuple[SecretUpperPair, SecretLowerPair]:
    step = ClippingStep(SIGMA, 0.5, EnvelopeLaw(probes), secret=True)
    upper, lower = step.pairs(bins, TAIL)
    assert isinstance(upper, SecretUpperPair)
    assert isinstance(lower, SecretLowerPair)
    return upper, lower


@pytest.mark.parametrize("probes", [2, 3, 5])
def test_an_envelope_as_it_is_bounds_the_curve_at_every_threshold(probes: int) -> None:
    """(C3), valid for a law in the stochastic order; from below tight."""
    upper, lower = pairs(probes)
    exact = truth(probes, THRESHOLDS)
    above = upper.curve(THRESHOLDS)[0]
    below = lower.curve(THRESHOLDS)[0]
    assert np.all(above >= exact * (1 - 1e-9) - 1e-6 * (THRESHOLDS < 7))
    assert np.all(below <= exact * (1 + 1e-9) + 1e-6 * (THRESHOLDS < 7))
    seen = exact > 3e-7
    assert np.all(below[seen] >= exact[seen] * 0.93)  # of two probes, at shifts of 20 and more


def test_the_curve_is_the_sum_over_atoms_of_their_majorants(monkeypatch) -> None:
    """(C3), (C4); the block length changes nothing."""
    shift = np.geomspace(400.0, 0.02, 300)
    mass = np.full(300, 1 / 300)
    pair = SecretUpperPair(shift, mass, 0.3)
    value, rest = pair._uncapped(THRESHOLDS)
    plain = _literal(shift, mass, THRESHOLDS)
    np.testing.assert_allclose(value, plain, rtol=1e-12)
    np.testing.assert_allclose(rest, 1 - plain, atol=1e-12)
    ratio, slope = pair.log_ratio(THRESHOLDS)
    step = 1e-5
    np.testing.assert_allclose(
        slope, (pair.log_ratio(THRESHOLDS + step)[0] - pair.log_ratio(THRESHOLDS - step)[0]) / (2 * step), rtol=2e-3
    )
    monkeypatch.setattr(_pairs.row_blocks, "__defaults__", (3,))
    np.testing.assert_allclose(pair._uncapped(THRESHOLDS)[0], value, rtol=1e-12)
    np.testing.assert_allclose(pair.log_ratio(THRESHOLDS)[0], ratio, rtol=1e-12)


def _literal(shift: np.ndarray, mass: np.ndarray, thresholds: np.ndarray) -> np.ndarray:
    """Equation (C3), one threshold and one atom at a time."""
    total = []
    for t in thresholds:
        star = (t + np.sqrt(t * t + 12)) / 2 if t >= 0 else 6 / (np.sqrt(t * t + 12) - t)
        value = 0.0
        for mu, m in zip(shift, mass, strict=True):
            if mu <= star:
                value += m * ndtr(mu - t)
                continue
            at, y = (star, (star / mu) ** 2) if mu <= np.sqrt(3) * star else (mu / np.sqrt(3), 1 / 3)
            value += m * (ndtr(3 / at) + at / 2 * np.exp(-4.5 / at**2) / np.sqrt(2 * np.pi) * (1 - y))
        total.append(value)
    return np.array(total)


def test_thresholds_meet_their_losses() -> None:
    upper, _ = pairs(2)
    nodes = np.concatenate([np.linspace(-0.69, 30.0, 200), np.geomspace(31.0, 1e5, 200)])
    t, miss = upper.thresholds(nodes)
    finite = np.isfinite(t)
    assert np.all(np.diff(t[finite]) >= 0)
    assert np.max(miss / np.maximum(nodes, 1.0)) < 1e-9


def test_no_outcome_between_the_smallest_loss_and_the_cap_is_lost() -> None:
    """(C4): also where shifts reach 1e6, the divergence at the smallest losses is that of min(1, T̂) or more."""
    shift = np.geomspace(0.3, 1e6, 60)
    mass = shift**-1.0 / np.sum(shift**-1.0) * (1 - 1e-9)
    pair = SecretUpperPair(shift, mass, 0.5, 1e-9)
    nodes = np.linspace(np.log(0.5) + 1e-6, 3.0, 400)
    found = hockey_sticks(pair.cells(nodes), nodes)
    t = np.linspace(-12.0, 6.0, 40001)
    curve = np.minimum(pair._uncapped(t)[0], 1.0)
    wanted = np.array([np.max(0.5 * ndtr(-t) + 0.5 * curve - np.exp(loss) * ndtr(-t)) for loss in nodes])
    assert np.all(found >= wanted * (1 - 1e-12))
    assert np.all(found <= wanted * (1 + 1e-3))
    low, high = -12.0, 6.0  # where T̂ reaches 1, to the last digits: that point is the best one for small losses
    while high - low > 1e-15:
        middle = (low + high) / 2
        if middle in (low, high):
            break
        low, high = (middle, high) if pair._uncapped(np.array([middle]))[1][0] <= 0.0 else (low, middle)
    cap = 0.5 * ndtr(-low) + 0.5 - np.exp(nodes) * ndtr(-low)
    assert np.all(found >= cap - 2e-15)
