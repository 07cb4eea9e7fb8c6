"""What bounds say of themselves: printed they stay bounds, and what an attacker can do with them."""

from __future__ import annotations

import math
import re
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dprmt._rounding import round_down, round_up
from dprmt.accounting import DPSGD, Hutchinson, PrivacyBounds, compose


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


def test_it_reads_as_a_sentence_on_every_terminal():
    bounds = DPSGD(1.0, 0.01).epsilon(steps=100, delta=1e-5)
    form = r"epsilon is between ([\d.]+) and ([\d.]+) at delta = 1e-05; removing a sample decides"
    low, high = re.fullmatch(form, str(bounds)).groups()
    assert float(low) <= bounds.lower <= bounds.upper <= float(high) < bounds.upper + 1e-5
    other = str(DPSGD(1.0, 0.01).delta(steps=100, epsilon=1.0))
    assert re.fullmatch("delta is between .* at epsilon = 1; (removing|adding) a sample decides", other)
    assert str(bounds).isascii()


def test_pandas_names_the_columns():
    """Of a list of answers, and of a curve: what can be unpacked would be a row without names."""
    pd = pytest.importorskip("pandas")
    curve = DPSGD(1.0, 0.01).epsilon(steps=[10, 20], delta=1e-5)
    for frame in (pd.DataFrame([curve[0], curve[1]]), pd.DataFrame(curve)):
        assert frame.columns.tolist()[:4] == ["lower", "estimate", "upper", "direction"]
        assert frame["upper"].tolist() == curve.upper.tolist()
        assert frame["at_delta"].tolist() == [1e-5, 1e-5]


def test_a_notebook_shows_answers_and_runs():
    """Numbers in tables are rounded to the safe side, pictures have as many points as curves."""
    run = DPSGD(1.0, 0.01, Hutchinson(32, secret=False))
    bounds, curve, band = (
        run.epsilon(steps=100, delta=1e-5),
        run.epsilon(steps=range(1, 30), delta=1e-5),
        run.trade_off(steps=100, alpha=[0.0, 0.5, 1.0]),
    )
    for answer in (
        bounds,
        *(run.epsilon(steps=steps, delta=1e-5) for steps in (3, 17, 400, 4000)),
        run.delta(steps=100, epsilon=0.5),
    ):
        low, _, high = re.findall(r">([\d.e-]+)</td>", answer._repr_html_())
        assert float(low) <= answer.lower <= answer.upper <= float(high)
    assert curve._repr_html_().count("<tr>") == 1 + 6
    (points,) = re.findall(r'points="([^"]+)"', curve._repr_html_())
    assert len(points.split()) == 29
    assert "<svg" in band._repr_html_()
    assert "Hutchinson(32, secret=False)" in run._repr_html_()
    assert "<td" in compose([(run, 10), (DPSGD(2.0, 0.01), 5)])._repr_html_()


def test_many_answers_read_as_a_sentence():
    """In letters that every terminal has, rounded to the safe side."""
    run = DPSGD(1.0, 0.01)
    curve, band = run.epsilon(steps=[10, 100], delta=1e-5), run.trade_off(steps=100, alpha=[0.5, 0.0, 1.0])
    first, last = re.findall(r"at most ([\d.]+)", str(curve))
    assert curve.upper[0] <= float(first) <= curve.upper[0] + 1e-5
    assert curve.upper[1] <= float(last) <= curve.upper[1] + 1e-5
    assert str(curve).startswith("2 certified bounds on epsilon at delta = 1e-05: at most")
    assert str(run.delta(steps=10, epsilon=[0.5])).startswith("1 certified bound on delta: at most")
    rate, low, high = map(float, re.findall(r"at ([\d.]+) the .* between ([\d.]+) and ([\d.]+)", str(band))[0])
    assert rate == 0.5
    assert low <= band.lower[0] <= band.upper[0] <= high <= low + 1e-3
    assert str(curve).isascii()
    assert str(band).isascii()


@pytest.mark.parametrize("safe", ["lower", "upper"])
def test_zero_has_no_sign(safe) -> None:
    """Where 1 - δ is rounded down to nothing, an end may be -0."""
    bounds = PrivacyBounds(-0.0, -0.0, -0.0, safe=safe, at_delta=1e-5)
    assert f"{bounds:.2f}" == "0.00"
    assert "-0" not in str(bounds).replace("1e-05", "")
    assert (round_up(-0.0), round_down(-0.0)) == ("0", "0")
