"""(H6): a law that bounds P(X ≤ x) for every spectrum that a sketch was taken of."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.integrate import quad
from scipy.stats import beta, chi2

from dprmt.accounting import DPSGD, FlatSpectrum, HutchPlusPlus
from dprmt.accounting._chi2_mixture import chi2_mixture_cdf
from dprmt.accounting._gamma_mixture import GammaMixture
from dprmt.accounting._sketch_law import probe_copies
from dprmt.accounting._sketch_order import ResidualOrder, _partial_mean, _two_gammas, largest_shares


def cdf_of(shares: np.ndarray, probes: int, x: float) -> float:
    return float(chi2_mixture_cdf(x, shares / probes, np.full(shares.size, float(probes))))


@settings(max_examples=60, deadline=None)
@given(st.integers(2, 8), st.integers(2, 6), st.floats(0.05, 1.0), st.randoms(use_true_random=False))
def test_mass_in_fewer_directions_is_worse_below_the_switch(probes: int, number: int, at: float, random) -> None:
    """Schur: shares at most m, and x ≤ 1 - 2m/k."""
    shares = np.array([random.random() ** 3 + 1e-6 for _ in range(number)])
    shares /= shares.sum()
    share = float(shares.max())
    switch = 1.0 - 2.0 * share / probes
    if switch > 1e-3:
        worst = float(_two_gammas(np.array([at * switch]), share, probes)[0])
        assert cdf_of(shares, probes, at * switch) <= worst * (1 + 1e-9)


def test_beyond_the_switch_the_order_is_another() -> None:
    """Two probes, shares .7 and thirty of .01, or .7 and .3: without the switch this law would be too small."""
    shares, x = np.append(0.7, np.full(30, 0.01)), 0.8
    assert x > 1 - 2 * 0.7 / 2
    assert cdf_of(shares, 2, x) > 1.001 * float(_two_gammas(np.array([x]), 0.7, 2)[0])
    order = ResidualOrder(2, 3, power_iteration=False)
    assert cdf_of(shares, 2, x) <= float(order._of_share(0.7, np.array([x]), moments=False)[0][0])


@pytest.mark.parametrize(("share", "probes"), [(0.7, 3), (0.35, 2), (0.5, 4), (0.21, 5)])
def test_partial_means_are_those_of_the_law(share: float, probes: int) -> None:
    """E[V; V ≤ x] = x F(x) - ∫ F."""
    x = np.array([0.4])
    area = quad(lambda y: float(_two_gammas(np.array([y]), share, probes)[0]), 0.0, 0.4, epsabs=1e-13)[0]
    exact = 0.4 * _two_gammas(x, share, probes) - area
    assert _partial_mean(x, share, probes) == pytest.approx(exact, rel=1e-7)


def attained(large: float, sketch: int, probes: int, x: float) -> float:
    """P(X ≤ x) of one value over ``sketch`` equal ones, in one pass: what is left is one direction, in closed form."""
    small = (1.0 - large) / sketch

    def given_part(t: float) -> float:
        share = 1.0 / (t / large + (1.0 - t) / small)
        return float(chi2.cdf(probes * (x - 1.0 + share) / share, probes)) if share > 1.0 - x else 0.0

    # 1 - t ~ Beta(s/2, 1/2), in its logarithm: little of it is left where the share is large.
    def at(u: float) -> float:
        rest = float(np.exp(u))
        return given_part(1.0 - rest) * float(beta.pdf(rest, sketch / 2, 0.5)) * rest

    return float(quad(at, -30.0, -1e-9, limit=400, epsabs=0.0, epsrel=1e-8)[0])


@pytest.mark.parametrize(("sketch", "probes"), [(3, 2), (3, 3), (4, 5)])
def test_above_what_is_attained_and_below_the_convex_law(sketch: int, probes: int) -> None:
    """One value over s equal ones stays below it at every x; the tail of (H4) is as if nothing were sketched."""
    order = ResidualOrder(probes, sketch, power_iteration=False)
    mixture = GammaMixture.of_copies(probes, *probe_copies(sketch, False))
    x = np.array([1e-3, 0.1, 0.3, 0.6, 0.9])
    charged = order.cdf(x)
    most = np.max([[attained(large, sketch, probes, float(y)) for y in x] for large in (0.3, 0.7, 0.95)], axis=0)
    assert np.all(most <= charged)
    assert most[-1] > 0.3 * charged[-1]
    assert charged[0] < 0.1 * mixture.cdf(x)[0]


@pytest.mark.parametrize(("sketch", "power_iteration"), [(3, False), (8, True), (20, False)])
def test_shares_of_several_layers_do_no_more_harm(sketch: int, power_iteration: bool) -> None:
    """As y P(m > y) falls with y, the largest of w_l m_l exceeds y with no more than that probability."""
    share, weight = (np.array(part) for part in largest_shares(sketch, power_iteration))
    assert weight.sum() == pytest.approx(1.0)
    tail = np.cumsum(weight[::-1])[::-1]  # P(m > y) just below each share
    below = np.append(share[0] * 0.9, share[:-1])
    y, bound = np.ravel([below, share * (1 - 1e-12)], "F"), np.repeat(tail, 2)
    decided = bound < 1.0
    assert np.all(np.diff((y * bound)[decided][::2]) <= 1e-12)
    for w in (0.5, 0.8):
        for at, most in zip(y[decided], bound[decided], strict=True):
            parts = [float(tail[np.searchsorted(share, at / v, side="right")]) for v in (w, 1 - w) if at / v < 1.0]
            assert sum(parts) <= most * (1 + 1e-9)


@pytest.mark.parametrize(
    ("mechanism", "steps", "delta"),
    [
        (DPSGD(0.399799, 0.104936, HutchPlusPlus(3, 3)), 30472, 5.1e-11),
        (DPSGD(1.331247, 4.02811e-5, HutchPlusPlus(3, 4)), 2, 8.5e-10),
        (DPSGD(0.979102, 0.0582305, HutchPlusPlus(5, 4)), 31, 2.6e-10),
        (DPSGD(31.63833, 0.00136330, HutchPlusPlus(2, 3)), 1377, 5.7e-8),
    ],
)
def test_short_sketches_are_narrow_and_above_what_is_attained(mechanism, steps: int, delta: float) -> None:
    """They used to be 20 to 93 % wide."""
    bounds = mechanism.epsilon(steps, delta)
    assert bounds.upper - bounds.lower <= 0.005 * max(1.0, bounds.upper)
    flat = DPSGD(
        mechanism.noise_multiplier, mechanism.sampling, FlatSpectrum(mechanism.norms.probes, mechanism.norms.sketch)
    )
    assert flat.epsilon(steps, delta).lower <= bounds.upper


def test_delta_and_epsilon_choose_alike() -> None:
    """The two laws differ: what one question is answered by, the other has to be, or one would deny the other."""
    mechanism, steps, delta = DPSGD(0.979102, 0.0582305, HutchPlusPlus(5, 4)), 31, 2.6e-10
    epsilon = mechanism.epsilon(steps, delta)
    back = mechanism.delta(steps, epsilon.upper)
    assert back.lower <= delta
    assert back.upper <= 1.1 * delta
    many = mechanism.delta(steps, [0.5 * epsilon.upper, epsilon.upper])
    assert many.upper[1] >= back.upper * (1 - 1e-3)  # (H4) alone: valid, and larger
