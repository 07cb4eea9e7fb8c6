"""One step as a privacy loss distribution of dp-accounting: the δ-curve, both directions, and composition."""

from __future__ import annotations

import math

import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy.stats import norm

from dprmt import ParameterError
from dprmt.accounting import DPSGD, compose

dp_accounting = pytest.importorskip("dp_accounting")
pytest.importorskip("dp_accounting.pld")

from dp_accounting.pld import PLDAccountant, privacy_loss_distribution  # noqa: E402

from .oracles.steps import DIRECTIONS, EXACT, LARGEST, MECHANISMS, RATE, TIGHT, own_delta  # noqa: E402


def in_direction(pld, direction: str):
    """One direction of a distribution, as a distribution; dp-accounting has no public access to it."""
    pmf = {"remove": pld._pmf_remove, "add": pld._pmf_add}[direction]
    return privacy_loss_distribution.PrivacyLossDistribution(pmf)


def gaussian_delta(epsilon: float, rate: float, sigma: float, direction: str) -> float:
    """δ(ε) of one subsampled Gaussian step in closed form."""
    alpha, mu = math.exp(epsilon), 1 / sigma
    edge = alpha if direction == "remove" else 1 / alpha
    if edge <= 1 - rate:
        return 1 - alpha if direction == "remove" else 0.0
    y = math.log((edge - 1 + rate) / rate) / mu + mu / 2
    if direction == "remove":
        return (1 - rate) * norm.sf(y) + rate * norm.sf(y - mu) - alpha * norm.sf(y)
    return norm.cdf(y) - alpha * ((1 - rate) * norm.cdf(y) + rate * norm.cdf(y - mu))


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_one_exact_step_is_the_closed_form(direction: str) -> None:
    """On the grid equal except for the tail's 1e-12; between grid points on the chord in e^ε, so never below."""
    mesh = 1e-3
    pld = in_direction(EXACT.to_pld(mesh), direction)
    right_share = math.expm1(mesh / 2) / math.expm1(mesh)
    for index in (-20, 0, 1, 13, 200, 900):
        left, between, right = (gaussian_delta(x * mesh, RATE, 1.0, direction) for x in (index, index + 0.5, index + 1))
        assert_allclose(pld.get_delta_for_epsilon(index * mesh), left, rtol=1e-6, atol=2e-12)
        chord = left + (right - left) * right_share
        found = pld.get_delta_for_epsilon((index + 0.5) * mesh)
        assert between * (1 - 1e-10) - 1e-15 <= found
        assert_allclose(found, chord, rtol=1e-6, atol=2e-12)


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("name", MECHANISMS)
def test_one_step_dominates_and_is_tight(name: str, direction: str) -> None:
    """δ is at least what one step costs; at most 2% more (bins), the slack and the tail."""
    mechanism = MECHANISMS[name]
    pld = in_direction(mechanism.to_pld(1e-3, largest_loss=LARGEST.get(name)), direction)
    slack = mechanism.step().upper_with_slack(32, 1e-12).slack
    for epsilon in (0.01, 0.1):
        own = own_delta(name, epsilon)[direction]
        assert own.lower <= pld.get_delta_for_epsilon(epsilon) <= own.upper * 1.02 + 1.1 * slack + 1e-11


@pytest.mark.parametrize("name", ["exact", "tight", "envelope", "secret"])
def test_composition_agrees(name: str) -> None:
    """After 400 steps dp-accounting's pessimistic ε lies above our lower bound and at most 0.1% above our upper one."""
    own = MECHANISMS[name].epsilon_by_direction(steps=400, delta=1e-5)
    run = MECHANISMS[name].to_pld(1e-3).self_compose(400)
    for direction in DIRECTIONS:
        theirs = in_direction(run, direction).get_epsilon_for_delta(1e-5)
        assert own[direction].lower <= theirs <= own[direction].upper * 1.001
    assert_allclose(run.get_epsilon_for_delta(1e-5), max(own[d].upper for d in DIRECTIONS), rtol=1e-3)


def test_exact_norms_agree_with_the_peer_s_own_distribution() -> None:
    """Same discretization, same algorithm, other code: ε to 1e-4 in both directions, and by its accountant."""
    theirs = privacy_loss_distribution.from_gaussian_mechanism(
        1.0, sampling_prob=RATE, value_discretization_interval=1e-3
    )
    ours = EXACT.to_pld(1e-3).self_compose(400)
    theirs = theirs.self_compose(400)
    for direction in DIRECTIONS:
        pair = [in_direction(run, direction).get_epsilon_for_delta(1e-5) for run in (ours, theirs)]
        assert_allclose(*pair, atol=1e-4)
    step = dp_accounting.PoissonSampledDpEvent(RATE, dp_accounting.GaussianDpEvent(1.0))
    accountant = PLDAccountant(value_discretization_interval=1e-3).compose(step, 400)
    assert_allclose(ours.get_epsilon_for_delta(1e-5), accountant.get_epsilon(1e-5), atol=1e-4)


def test_the_result_composes_with_the_peer_s_own_distributions() -> None:
    """A warm-up without sampling by dp-accounting, then randomized clipping by us."""
    warm_up = privacy_loss_distribution.from_gaussian_mechanism(8.0, value_discretization_interval=1e-3)
    both = MECHANISMS["envelope"].to_pld(1e-3).self_compose(100).compose(warm_up.self_compose(3))
    own = compose([(DPSGD(8.0, 1.0), 3), (MECHANISMS["envelope"], 100)]).epsilon(1e-5)
    assert own.lower <= both.get_epsilon_for_delta(1e-5) <= own.upper * 1.002


@pytest.mark.parametrize("name", ["tight", "secret", "few"])
def test_everything_cut_off_is_infinite(name: str) -> None:
    """δ beyond all losses is the mass above the cut and the slack, up to the law's tail; nothing is dropped."""
    mechanism = MECHANISMS[name]
    pair = mechanism.step().upper_with_slack(128, 1e-12)
    for cut in (0.5, 2.0):
        infinite = in_direction(mechanism.to_pld(1e-3, largest_loss=cut), "remove").get_delta_for_epsilon(1e9)
        above = pair.cells(np.array([cut * 1.002])).p_above
        assert above + pair.slack <= infinite <= 1.1 * pair.cells(np.array([cut])).p_above + pair.slack
    infinite = in_direction(mechanism.to_pld(1e-3, largest_loss=2.0), "add").get_delta_for_epsilon(1e9)
    assert pair.slack <= infinite <= pair.slack + 1e-11


def test_bad_options_are_named_and_too_many_grid_points_with_what_helps() -> None:
    for name, value in {"discretization": 2.0, "largest_loss": -1.0, "tail": 0.5, "bins": 1}.items():
        with pytest.raises(ParameterError, match=f"^{name} must be"):
            TIGHT.to_pld(**{name: value})
    with pytest.raises(ParameterError, match=r"discretization must be >= .* \(or give a largest_loss or a larger tail"):
        MECHANISMS["few"].to_pld()
