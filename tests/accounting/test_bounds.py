"""What bounds say of themselves: printed they stay bounds, and what an attacker can do with them."""

from __future__ import annotations

import math
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dprmt._rounding import round_down, round_up
from dprmt.accounting import DPSGD, Hutchinson, PrivacyBounds


@given(st.floats(1e-12, 1e12), st.sampled_from([".0f", ".2f", ".3g", ".4e", "10.3f", "+.1f"]))
def test_printed_numbers_are_still_bounds(value, spec):
    """Rounded up, and by no more than a unit of the last place."""
    shown, exact = Decimal(f"{PrivacyBounds(0.0, value, value):{spec}}"), Decimal(repr(value))
    assert exact <= shown < exact + Decimal(10) ** shown.as_tuple().exponent


def test_formats_by_example():
    bounds = PrivacyBounds(0.9, 1.0, 1.00001)
    assert [f"{bounds:.2f}", f"{bounds:.1e}", f"{bounds:8.3f}"] == ["1.01", "1.1e+0", "   1.001"]
    assert f"{bounds}" == str(bounds) == "between 0.9 and 1.00001"
    assert str(PrivacyBounds(0.12345678, 0.2, 0.98765432)) == "between 0.123456 and 0.987655"
    assert str(PrivacyBounds(2.0, 2.0, math.inf)) == "between 2 and inf"
    assert f"{PrivacyBounds(0.0, math.inf, math.inf):.2f}" == "inf"
    assert float(bounds) == 1.00001
    with pytest.raises(ValueError, match="invalid format"):
        f"{bounds:.2q}"


def test_every_answer_knows_what_was_asked():
    for mechanism in (DPSGD(2.0, 0.1), DPSGD(2.0, 0.1, Hutchinson(16, secret=False))):
        assert mechanism.epsilon(steps=10, delta=1e-3).at_delta == 1e-3
        assert mechanism.delta(steps=10, epsilon=0.5).at_epsilon == 0.5
        assert all(bounds.at_delta == 1e-3 for bounds in mechanism.epsilon_by_direction(steps=10, delta=1e-3).values())


@pytest.mark.parametrize("safe", ["lower", "upper"])
def test_zero_has_no_sign(safe) -> None:
    """Where 1 - δ is rounded down to nothing, an end may be -0."""
    bounds = PrivacyBounds(-0.0, -0.0, -0.0, safe=safe, at_delta=1e-5)
    assert f"{bounds:.2f}" == "0.00"
    assert "-0" not in str(bounds).replace("1e-05", "")
    assert (round_up(-0.0), round_down(-0.0)) == ("0", "0")
