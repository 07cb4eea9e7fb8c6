"""One step as a random variable of prv-accountant: exact laws, no mass lost, and the same ε after composition."""

from __future__ import annotations

import math

import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy.stats import norm

from dprmt.accounting import DPSGD, FixedSize, NoRenyiDivergenceError

from .oracles.steps import DIRECTIONS, EXACT, LARGEST, MECHANISMS, RATE, TIGHT, own_delta

prv_accountant = pytest.importorskip("prv_accountant")

eps_max_is_an_assumption = pytest.mark.filterwarnings("ignore:Assuming that true epsilon <:UserWarning")


def loss_cdf(pair, t: float, direction: str) -> float:
    """P(L ≤ t) of a public pair, one sensitivity at a time, or Q(-L ≤ t) = Q(L ≥ -t): theory note, section 5."""
    q, total, end = pair.sample_rate, 0.0, t if direction == "remove" else -t
    for mu, mass in zip(pair.shift, pair.mass, strict=True):
        y = (math.log((math.exp(end) - 1 + q) / q) + mu**2 / 2) / mu if end > math.log1p(-q) else -math.inf
        total += mass * (norm.sf(y) if direction == "add" else (1 - q) * norm.cdf(y) + q * norm.cdf(y - mu))
    if direction == "add":
        return total + pair.infinite * (t >= -math.log1p(-q))
    return total + (1 - q) * pair.infinite * (t >= math.log1p(-q))


def one_step_delta(prv, epsilon: float) -> tuple[float, float]:
    """Bounds on δ(ε) of the random variable, with its masses above ε rounded down and up to a grid."""
    grid = epsilon + np.append(0.0, np.geomspace(1e-4, max(prv.largest_loss - epsilon, 2e-4), 1200))
    mass = prv.probability(grid[:-1], grid[1:]) * (1 - prv.pm_inf)
    down, up = (-np.expm1(epsilon - ends) @ mass for ends in (grid[:-1], grid[1:]))
    return float(down + prv.pm_inf), float(up + prv.pm_inf)


def composed(prv, steps: int, eps_max: float, delta: float = 1e-5, eps_error: float = 0.05) -> tuple[float, ...]:
    accountant = prv_accountant.PRVAccountant(
        prv, eps_error=eps_error, delta_error=delta * 1e-4, max_self_compositions=steps, eps_max=eps_max
    )
    return accountant.compute_epsilon(delta, [steps])


@pytest.mark.parametrize("name", ["tight", "few", "envelope"])
def test_cdf_is_the_mixture_over_sensitivities(name: str) -> None:
    """P(L ≤ t and L finite) = (1 - pm_inf) · cdf(t), at arbitrary t; slack is taken from the lowest losses."""
    pair = MECHANISMS[name].step().upper_with_slack(16, 1e-12)
    for direction, sign in (("remove", 1.0), ("add", -1.0)):
        prv = MECHANISMS[name].to_prv(direction, bins=16)
        for t in sign * np.array([-0.0299, -0.02, 1e-3, 0.1234, 0.9, 2.0]):
            expected = max(loss_cdf(pair, t, direction) - pair.slack, 0.0)
            assert_allclose((1 - prv.pm_inf) * prv.cdf(t), expected, rtol=1e-11, atol=1e-14)


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("name", MECHANISMS)
def test_cdf_is_a_distribution_function_and_scalars_agree_with_arrays(name: str, direction) -> None:
    prv = MECHANISMS[name].to_prv(direction, bins=16)
    t = np.concatenate([[-1e9, -prv.largest_loss * 1.1], np.linspace(-1, 1, 31), [prv.largest_loss, 1e9]])
    values = np.sort(prv.cdf(np.sort(t)))
    assert np.all(np.diff(prv.cdf(np.sort(t))) >= 0)
    assert values[0] == 0.0
    assert values[-1] == 1.0
    assert_allclose([prv.cdf(x) for x in t[:9]], prv.cdf(t[:9]), rtol=1e-12, atol=1e-15)
    assert isinstance(prv.cdf(0.1), float)


def test_cdf_of_exact_norms_is_the_peer_s_own() -> None:
    peer = prv_accountant.PoissonSubsampledGaussianMechanism(RATE, 1.0)
    prv = EXACT.to_prv()
    t = np.linspace(-0.03, 3.0, 301)
    assert_allclose((1 - prv.pm_inf) * prv.cdf(t), peer.cdf(t), atol=1e-13)


def test_probability_does_not_cancel_in_the_tails() -> None:
    """P(3 < L ≤ 3.2) ≈ 3e-11 to 9 digits, where a difference of distribution functions has 5."""
    prv = EXACT.to_prv(largest_loss=8.0)
    ends = np.array([3.0, 3.2])
    y = np.log((np.exp(ends) - 1 + RATE) / RATE) + 0.5
    expected = -np.diff((1 - RATE) * norm.sf(y) + RATE * norm.sf(y - 1))[0]
    assert expected < 1e-9
    assert_allclose(prv.probability(3.0, 3.2) * (1 - prv.pm_inf), expected, rtol=1e-9)


@pytest.mark.parametrize("name", ["exact", "tight", "secret", "few"])
def test_no_mass_is_lost_wherever_losses_are_cut(name: str) -> None:
    """All laws that differ in ``largest_loss`` have the same tail P(t < L), infinity included, below the cuts."""
    step = MECHANISMS[name].step()
    pair = step.upper_with_slack(32, 1e-12)
    cuts = [MECHANISMS[name].to_prv(largest_loss=cut, bins=32) for cut in (0.5, 1.0, 3.0)]
    for t in (0.1, 0.4):
        tails = [float(prv.probability(t, 100.0)) * (1 - prv.pm_inf) + prv.pm_inf for prv in cuts]
        assert_allclose(tails, tails[0], rtol=1e-9)
    for prv in cuts:
        assert prv.pm_inf >= pair.cells(np.array([prv.largest_loss])).p_above + pair.slack - 1e-15
    assert cuts[0].pm_inf > cuts[1].pm_inf > cuts[2].pm_inf


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("name", MECHANISMS)
def test_one_step_dominates_and_is_tight(name: str, direction) -> None:
    """δ of the random variable is at least what one step costs; at most 2% more (bins), the slack and the tail."""
    prv = MECHANISMS[name].to_prv(direction, largest_loss=LARGEST.get(name))
    slack = MECHANISMS[name].step().upper_with_slack(32, 1e-12).slack
    for epsilon in (0.01, 0.1):
        own = own_delta(name, epsilon)[direction]
        down, up = one_step_delta(prv, epsilon)
        assert up >= own.lower
        assert down <= own.upper * 1.02 + 1.1 * slack + 1e-11


@eps_max_is_an_assumption
@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize(("name", "eps_max"), [("exact", 9.0), ("tight", 12.0), ("envelope", 12.0)])
def test_composition_agrees(name: str, eps_max: float, direction) -> None:
    """prv-accountant's interval overlaps ours, and its estimate lies within 0.1% of ours."""
    mechanism = MECHANISMS[name]
    prv = mechanism.to_prv(direction)
    assert prv.largest_loss < eps_max
    own = mechanism.epsilon_by_direction(steps=400, delta=1e-5)[direction]
    lower, estimate, upper = composed(prv, 400, eps_max)
    assert lower <= own.upper
    assert own.lower <= upper
    assert own.lower * 0.999 <= estimate <= own.upper * 1.001


@eps_max_is_an_assumption
@pytest.mark.skipif(np.finfo(np.longdouble).eps > 1e-18, reason="prv-accountant needs an extended long double")
def test_small_delta_survives_because_masses_are_long_doubles() -> None:
    """At δ = 1e-14, double precision masses made prv-accountant answer 8.02 where ε = 8.39."""
    own = EXACT.epsilon_by_direction(steps=400, delta=1e-14)["remove"]
    lower, _, upper = composed(EXACT.to_prv(tail=1e-21), 400, 12.0, delta=1e-14)
    assert lower <= own.lower <= own.upper <= upper


@eps_max_is_an_assumption
def test_infinite_mass_is_charged_at_every_step() -> None:
    """400 · P(L > 2) > 1e-5, so no finite ε is left; the same law composed twice has one."""
    prv = TIGHT.to_prv(largest_loss=2.0)
    assert 1e-5 / 400 < prv.pm_inf < 1e-5 / 3
    assert composed(prv, 400, 8.0) == (math.inf, math.inf, math.inf)
    assert math.isfinite(composed(prv, 2, 8.0)[2])


def test_rdp_is_refused_with_the_reason() -> None:
    with pytest.raises(NoRenyiDivergenceError, match=r"polynomial tail, P\(Z > z\) ~ z\^-32.*eps_max"):
        TIGHT.to_prv().rdp(2.0)
    with pytest.raises(NoRenyiDivergenceError):
        prv_accountant.PRVAccountant(TIGHT.to_prv(), eps_error=0.1, delta_error=1e-9, max_self_compositions=10)


def test_rdp_of_exact_norms_is_the_peer_s() -> None:
    """Of the whole law, next to nothing cut off: from above, and close."""
    peer = prv_accountant.PoissonSubsampledGaussianMechanism(RATE, 1.0)
    for alpha in (1.1, 2, 8.5, 20):
        found = EXACT.to_prv(tail=1e-200).rdp(alpha)
        assert peer.rdp(alpha) <= found <= peer.rdp(alpha) * (1 + 1e-3) + 1e-9
        assert EXACT.to_prv("add", tail=1e-200).rdp(alpha) <= found


def test_rdp_of_displaced_samples_is_that_of_their_densities() -> None:
    """E_P e^{(α-1)L} of the supremum pair is at least its member's, by quadrature."""
    x = np.linspace(-12.0, 14.0, 200_001)
    p, q = (0.9 * np.exp(-(x**2) / 2) + 0.1 * np.exp(-((x - shift) ** 2) / 2) for shift in (2.0, 1.0))
    for alpha in (1.5, 3.0):
        member = math.log(np.sum(p**alpha * q ** (1 - alpha)) * (x[1] - x[0]) / math.sqrt(2 * math.pi)) / (alpha - 1)
        assert member <= DPSGD(1.0, FixedSize(10, 100)).to_prv(tail=1e-100).rdp(alpha) < 1.5 * member
