"""What must hold whatever the setting, as hypothesis properties on certified bounds."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dprmt.accounting import DPSGD, ExactNorms, Hutchinson, clt_mu, compose, gdp_epsilon
from dprmt.accounting.composition._solve import InconsistentBoundsError
from dprmt.testing import check_accountant

noise = st.floats(0.6, 8.0)
rates = st.floats(1e-3, 1.0)
step_counts = st.integers(1, 500)
probe_counts = st.integers(12, 200)
deltas = st.floats(-12.0, -3.0).map(lambda exponent: 10.0**exponent)
clippings = st.fixed_dictionaries(
    {"probes": probe_counts, "analysis": st.sampled_from(["tight", "envelope"]), "secret": st.booleans()}
)
few = settings(max_examples=10)


def mechanism(sigma: float, rate: float, clipping: dict[str, Any] | None) -> DPSGD:
    """Exact norms or randomized clipping."""
    return DPSGD(sigma, rate, ExactNorms() if clipping is None else Hutchinson(**{"secret": False} | clipping))


maybe_clipping = st.none() | clippings


@few
@given(noise, rates, step_counts, deltas, maybe_clipping)
def test_bounds_are_ordered_and_name_the_larger_direction(
    sigma: float, rate: float, steps: int, delta: float, clipping: dict[str, Any] | None
) -> None:
    """0 ≤ lower ≤ estimate ≤ upper in both directions, and the answer is the larger of them."""
    run = mechanism(sigma, rate, clipping)
    by_direction = run.epsilon_by_direction(steps=steps, delta=delta)
    for bounds in by_direction.values():
        assert 0.0 <= bounds.lower <= bounds.estimate <= bounds.upper
    worst = run.epsilon(steps=steps, delta=delta)
    assert worst.upper == max(bounds.upper for bounds in by_direction.values())
    assert by_direction[worst.direction].upper == worst.upper


@pytest.mark.parametrize("secret", [None, False, True])
def test_noise_rate_steps_and_delta_cost_in_the_right_direction(secret: bool | None) -> None:
    """And runs compose, and δ is convex in e^ε: what is true of every accountant."""
    norms = ExactNorms() if secret is None else Hutchinson(40, secret=secret)

    def claimed(sigma: float, rate: float, steps: int, delta: float) -> float:
        return DPSGD(sigma, rate, norms).epsilon(steps=steps, delta=delta).upper

    check_accountant(claimed, norms=norms, loosest=0.0, examples=3)


@few
@given(noise, rates, step_counts, deltas, clippings, st.integers(1, 200))
def test_more_probes_never_cost_more_and_exact_norms_least(
    sigma: float, rate: float, steps: int, delta: float, clipping: dict[str, Any], extra: int
) -> None:
    """ε decreases in k, and is never below that of exact norms."""
    base = mechanism(sigma, rate, clipping).epsilon(steps=steps, delta=delta)
    more = mechanism(sigma, rate, {**clipping, "probes": clipping["probes"] + extra}).epsilon(steps=steps, delta=delta)
    assert more.lower <= base.upper
    assert DPSGD(sigma, rate).epsilon(steps=steps, delta=delta).lower <= base.upper


@few
@given(noise, rates, step_counts, deltas, probe_counts)
def test_tight_beats_envelope_and_secret_beats_public(
    sigma: float, rate: float, steps: int, delta: float, probes: int
) -> None:
    """The lower bound of the stronger analysis never exceeds the upper bound of the weaker one."""

    def epsilon(analysis: str, who: str) -> Any:
        options = {"probes": probes, "analysis": analysis, "secret": who == "secret"}
        return mechanism(sigma, rate, options).epsilon(steps=steps, delta=delta)

    assert epsilon("tight", "public").lower <= epsilon("envelope", "public").upper
    assert epsilon("tight", "secret").lower <= epsilon("envelope", "secret").upper
    assert epsilon("tight", "secret").lower <= epsilon("tight", "public").upper


@few
@given(noise, rates, step_counts, step_counts, deltas, maybe_clipping)
def test_phases_of_one_mechanism_add_up(
    sigma: float, rate: float, first: int, second: int, delta: float, clipping: dict[str, Any] | None
) -> None:
    """T1 steps and then T2 are T1 + T2 steps, in any order."""
    run = mechanism(sigma, rate, clipping)
    other = DPSGD(2.0 * sigma, rate)
    assert compose([(run, first), (run, second)]).epsilon(delta) == run.epsilon(steps=first + second, delta=delta)
    one, two = compose([(run, first), (other, second)]), compose([(other, second), (run, first)])
    assert one.epsilon(delta).upper == pytest.approx(two.epsilon(delta).upper, rel=1e-6, abs=1e-9)
    assert one.epsilon(delta).upper >= run.epsilon(steps=first, delta=delta).lower


@few
@given(noise, rates, st.integers(1, 100), deltas, maybe_clipping)
def test_delta_of_epsilon_is_delta(
    sigma: float, rate: float, steps: int, delta: float, clipping: dict[str, Any] | None
) -> None:
    """δ(ε_upper) ≤ δ ≤ δ(ε_lower), as far as the bounds can tell."""
    run = mechanism(sigma, rate, clipping)
    lower, _, upper = run.epsilon(steps=steps, delta=delta)
    if np.isfinite(upper):
        assert run.delta(steps=steps, epsilon=upper).lower <= delta * (1 + 1e-9)
    if lower > 0:
        assert run.delta(steps=steps, epsilon=lower).upper >= delta * (1 - 1e-9)


@few
@given(noise, rates, st.integers(1, 100), maybe_clipping, st.floats(0.0, 4.0))
def test_trade_off_is_a_trade_off_function(
    sigma: float, rate: float, steps: int, clipping: dict[str, Any] | None, epsilon: float
) -> None:
    """Lower ≤ upper ≤ 1 - α; both decrease; the curve is consistent with δ(ε): β ≥ 1 - δ - e^ε α."""
    run = mechanism(sigma, rate, clipping)
    alpha = np.linspace(0.0, 1.0, 41)
    band = run.trade_off(steps=steps, alpha=alpha)
    assert np.all(band.lower <= band.upper + 1e-12)
    assert np.all(band.upper <= 1 - alpha + 1e-12)
    assert np.all(np.diff(band.lower) <= 1e-9)
    delta = run.delta(steps=steps, epsilon=epsilon)
    assert np.all(band.upper >= 1 - delta.upper - np.exp(epsilon) * alpha - 1e-9)
    touching = np.min(band.lower - (1 - delta.lower - np.exp(epsilon) * alpha))
    assert touching >= -2e-2


def test_the_central_limit_approximation_under_reports() -> None:
    """μ-GDP gives a smaller ε than is certainly spent."""
    mu = clt_mu(0.8, 0.01, 1000)
    assert gdp_epsilon(mu, 1e-6) < DPSGD(0.8, 0.01).epsilon(steps=1000, delta=1e-6).lower


def test_contradicting_bounds_are_refused() -> None:
    from dprmt.accounting.basics._bounds import PrivacyBounds
    from dprmt.accounting.composition._compose import Question
    from dprmt.accounting.composition._solve import intersection

    with pytest.raises(InconsistentBoundsError, match="report"):
        intersection(PrivacyBounds(1.1, 1.1, 1.2, "add"), (1.0, 0.9), Question(1e-5), 1e-3)
