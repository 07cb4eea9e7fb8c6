"""The factor of a displacement: exact on parabolas, and its interval is the range over both intervals."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dprmt import ParameterError
from dprmt.spectra import Estimate, displacement_factor

numbers = st.floats(-5, 5).map(lambda x: round(x, 3))


def exact(value):
    return Estimate(value, value, value)


def lowest(start, end):
    """Where from 0 on f(c) = start·c + (end - start)c²/2 is lowest: literally, from both slopes."""
    if end > start:
        return max(-start / (end - start), 0.0)
    return math.inf if end < 0 else 0.0


@given(numbers, numbers)
def test_of_a_parabola_it_is_the_lowest_point(start, end):
    """f(c) = start·c + (end - start)c²/2 changes by (start + end)/2 to c = 1, where its slope is ``end``."""
    if abs(end - start) < 1e-2 or abs(end) < 1e-2:
        return
    found = displacement_factor(exact(end), exact((start + end) / 2))
    assert found.value == pytest.approx(lowest(start, end), rel=1e-6, abs=1e-9)


@given(numbers, numbers, st.floats(1e-3, 1e3))
def test_units_do_not_matter(slope, change, unit):
    if abs(slope - change) < 1e-2:
        return
    scaled = displacement_factor(exact(unit * slope), exact(unit * change))
    assert scaled.value == pytest.approx(displacement_factor(exact(slope), exact(change)).value, rel=1e-9)


@given(numbers, st.floats(0, 3), numbers, st.floats(0, 3))
def test_the_interval_is_the_range_over_both(slope, wide, change, broad):
    """No point of a fine grid over both intervals is outside, and points of it come near both ends."""
    S, F = Estimate(slope, slope - wide, slope + wide), Estimate(change, change - broad, change + broad)
    found = displacement_factor(S, F)
    places = [displacement_factor(exact(s), exact(f)).value for s in grid(S) for f in grid(F)]
    assert found.low <= min(places) + 1e-9
    assert max(places) <= found.high + 1e-9 or math.isinf(found.high)
    assert found.low <= found.value <= found.high
    assert min(places) <= 1.1 * found.low + 0.02  # a grid that has ends and 0 attains it


def grid(of):
    values = np.linspace(of.low, of.high, 15)
    return sorted({float(v) for v in values} | ({0.0} if of.low < 0 < of.high else set()))


def test_where_nothing_is_known_it_says_so():
    nothing = displacement_factor(Estimate(0.1, -1.0, 1.2), Estimate(-0.2, -2.0, 1.6))
    assert (nothing.low, nothing.high) == (0.0, math.inf)
    infinite = displacement_factor(Estimate(0.1, -1.0, 1.2), Estimate(-0.2, -math.inf, math.inf))
    assert (infinite.low, infinite.high) == (0.0, math.inf)
    with pytest.raises(ParameterError, match="slope"):
        displacement_factor(Estimate(np.ones(2), np.ones(2), np.ones(2)), exact(1.0))
