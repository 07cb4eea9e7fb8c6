"""Laws and pairs err to the safe side: each term that is added for it, where it is large, against exact values."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.special import ndtr
from scipy.stats import norm

from dprmt.accounting.laws import _laws as _envelope_law
from dprmt.accounting.laws._envelope import envelope_cdf
from dprmt.accounting.laws._gamma_mixture import LARGEST_DOF, GammaMixture
from dprmt.accounting.laws._laws import EnvelopeLaw, RankOneLaw
from dprmt.accounting.laws._sketch import _averaged_tail, residual_tail
from dprmt.accounting.pairs._pairs import AtomicPair, PublicPair, cells_with_misses, interval_masses, masses_between
from dprmt.accounting.pairs._secret_pair import SecretUpperPair, inflection_shift
from dprmt.accounting.pairs._secret_replacement import SecretReplacement
from dprmt.accounting.pairs._tight_pair import largest_excess, majorant_excess
from dprmt.accounting.questions._curves import _mu_of_chords


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

    def gaussian(at: np.ndarray, mu: float) -> np.ndarray:
        return np.array(ndtr(mu / 2 - at / mu) - np.exp(at) * ndtr(-mu / 2 - at / mu))

    delta = gaussian(epsilon, mu)
    found = _mu_of_chords(epsilon, delta)
    at = np.linspace(0.0, last, 401)
    chord = np.interp(np.exp(at), np.exp(epsilon), delta)
    assert np.any(chord > gaussian(at, mu) * 1.0001)
    assert np.all(chord <= gaussian(at, found) + 1e-15)
    assert found < most
