"""What bounds say of themselves: printed they stay bounds, and what an attacker can do with them."""

from __future__ import annotations

import itertools
import math
from decimal import Decimal

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import ndtr

from dprmt._validation import ParameterError
from dprmt.accounting import DPSGD, PrivacyBounds, RandomizedClipping


def known(epsilon, delta):
    return PrivacyBounds(0.0, epsilon, epsilon, at_delta=delta)


@given(st.floats(1e-12, 1e12), st.sampled_from([".0f", ".2f", ".3g", ".4e", "10.3f", "+.1f"]))
def test_printed_numbers_are_still_bounds(value, spec):
    """Rounded up, and by no more than a unit of the last place."""
    shown, exact = Decimal(f"{PrivacyBounds(0.0, value, value):{spec}}"), Decimal(repr(value))
    assert exact <= shown < exact + Decimal(10) ** shown.as_tuple().exponent


def test_formats_by_example():
    bounds = PrivacyBounds(0.9, 1.0, 1.00001)
    assert [f"{bounds:.2f}", f"{bounds:.1e}", f"{bounds:8.3f}"] == ["1.01", "1.1e+0", "   1.001"]
    assert f"{bounds}" == str(bounds) == repr(bounds)
    assert f"{PrivacyBounds(0.0, math.inf, math.inf):.2f}" == "inf"
    assert float(bounds) == 1.00001
    with pytest.raises(ValueError, match="invalid format"):
        f"{bounds:.2q}"


def worst_pair(epsilon, delta):
    """Four outcomes under which every test that (ε, δ) leaves exists."""
    high, low = (1 - delta) / (1 + math.exp(-epsilon)), (1 - delta) / (1 + math.exp(epsilon))
    return np.array([delta, high, low, 0.0]), np.array([0.0, low, high, delta])


@given(st.floats(0.0, 6.0), st.floats(0.0, 0.9), st.floats(0.0, 1.0))
def test_no_test_of_the_worst_pair_does_better_and_one_does_as_well(epsilon, delta, prior):
    inside, outside = worst_pair(epsilon, delta)
    sets = [np.array(chosen) for chosen in itertools.product([False, True], repeat=4)]
    advantage = max(inside[chosen].sum() - outside[chosen].sum() for chosen in sets)
    risk = min(prior * inside[~chosen].sum() + (1 - prior) * outside[chosen].sum() for chosen in sets)
    assert known(epsilon, delta).advantage() == pytest.approx(advantage, abs=1e-12)
    assert known(epsilon, delta).bayes_risk(prior) == pytest.approx(risk, abs=1e-12)


def test_a_mechanism_s_own_attacker_stays_within():
    """Of the Gaussian mechanism the best attacker is known: advantage Φ(μ/2) - Φ(-μ/2)."""
    sigma = 2.0
    truth = float(ndtr(0.5 / sigma) - ndtr(-0.5 / sigma))
    mechanism = DPSGD(sigma, 1.0)
    for delta in (1e-6, 1e-2, 0.1):
        bounds = mechanism.epsilon(1, delta)
        assert bounds.advantage() >= truth
        assert bounds.bayes_risk() <= (1 - truth) / 2
    assert mechanism.delta(1, 0.0).advantage() == pytest.approx(truth, rel=0.02)
    assert mechanism.delta(1, 0.0).bayes_risk() == pytest.approx((1 - truth) / 2, rel=0.02)


def test_every_answer_knows_what_was_asked():
    for mechanism in (DPSGD(2.0, 0.1), RandomizedClipping(2.0, 0.1, 16)):
        assert mechanism.epsilon(10, 1e-3).at_delta == 1e-3
        assert mechanism.delta(10, 0.5).at_epsilon == 0.5
        assert all(bounds.at_delta == 1e-3 for bounds in mechanism.epsilon_by_direction(10, 1e-3).values())


def test_extremes_and_refusals():
    assert known(math.inf, 1e-5).advantage() == 1.0
    assert known(math.inf, 1e-5).bayes_risk(0.3) == 0.0
    assert known(0.0, 0.0).advantage() == 0.0
    with pytest.raises(ParameterError, match=r"prior must be .*\[0"):
        known(1.0, 0.0).bayes_risk(1.5)
    with pytest.raises(ParameterError, match="at_delta must be known"):
        PrivacyBounds(0.0, 1.0, 1.0).advantage()
