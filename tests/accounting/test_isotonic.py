"""Our own isotonic regression is scipy's."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose
from scipy.optimize import isotonic_regression as reference

from dprmt.accounting.pairs._pairs import isotonic_regression


@given(st.lists(st.tuples(st.floats(-5.0, 5.0), st.floats(1e-6, 10.0)), min_size=1, max_size=60))
def test_it_is_scipys(pairs: list[tuple[float, float]]) -> None:
    values, weights = np.array(pairs).T
    found = isotonic_regression(values, weights)
    assert np.all(np.diff(found) >= 0.0)
    assert_allclose(found, reference(values, weights=weights).x, rtol=1e-9, atol=1e-9)


def test_weights_over_three_hundred_orders_of_magnitude() -> None:
    weights = np.geomspace(1.0, 1e-290, 400)
    values = np.sin(np.arange(400.0)) / weights
    assert_allclose(isotonic_regression(values, weights), reference(values, weights=weights).x, rtol=1e-9)
