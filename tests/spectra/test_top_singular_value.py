"""The exact law of the largest singular value: against 250-digit Pfaffians, closed forms, and simulation.

``oracles/top_singular_value.py`` in commit 411bdc64 made the stored values.
"""

from __future__ import annotations

import math

import mpmath as mp
import numpy as np
import pytest
import scipy
from hypothesis import given
from hypothesis import strategies as st

from dprmt.spectra import bulk_edge
from dprmt.spectra._top_singular_value import _log_det_one_minus, exceeded_with, upper_tail
from tests.spectra.simulation import exceedance_counts, stored

CASES = stored("top_singular_value")

sides = st.integers(1, 40)
shapes = st.tuples(sides, sides)


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case['shape']}-{case['x']:.4g}")
def test_equals_the_pfaffian_in_250_digits(case):
    """Relative accuracy 1e-11 of the tail, down to 1e-198, for even and odd, square and skinny shapes."""
    with mp.workdps(40):
        value = mp.mpf(upper_tail(case["x"], *sorted(case["shape"])))
        assert float(abs(value / mp.mpf(case["value"]) - 1)) <= case["rtol"]


@given(st.integers(1, 10_000), st.floats(0.01, 3.0))
def test_a_single_row_is_a_chi_variable(n, factor):
    """For m = 1 the singular value is the length of a Gaussian vector."""
    x = factor * math.sqrt(n)
    assert upper_tail(x, 1, n) == pytest.approx(scipy.stats.chi.sf(x, n), rel=1e-9, abs=1e-30)


@given(shapes, st.floats(0.1, 3.0), st.floats(0.1, 3.0), st.floats(0.0, 8.0))
def test_the_tail_falls_as_that_of_a_gaussian(shape, a, b, u):
    """1 >= sf(x) >= sf(x') >= 0 for x <= x'; P(s₁ > √m + √n + u) <= exp(-u²/2)."""
    edge, (m, n) = bulk_edge(shape, 1.0), sorted(shape)
    low, high = (upper_tail(factor * edge, m, n) for factor in sorted((a, b)))
    assert 1 >= low >= high * (1 - 1e-9) >= 0
    assert upper_tail(edge + u, m, n) <= math.exp(-(u**2) / 2)


@given(shapes, st.one_of(st.floats(1e-25, 1e-3), st.floats(1e-3, 0.999)))
def test_quantiles_invert_the_tail(shape, p):
    """sf(isf(p)) = p."""
    short, long = sorted(shape)
    assert upper_tail(exceeded_with(p, short, long), short, long) == pytest.approx(p, rel=1e-8)


def test_no_mass_below_zero():
    """The law lives on the positive axis, and the tail is 1 where all the mass is above, 0 where none is."""
    assert upper_tail(-1.0, 3, 4) == upper_tail(0.0, 3, 4) == 1.0
    assert upper_tail(1.0, 20, 30) == pytest.approx(1.0, abs=1e-12)
    assert [upper_tail(x, 3, 400) for x in (70.0, 1e17, 1e150, 1e300)] == [0.0] * 4


def rate_deviation(shape, gate, rate, draws, seed):
    """Standard errors between the simulated rate of s₁ > gate and the stated one."""
    count = exceedance_counts(shape, [gate], draws, np.random.default_rng(seed))[0]
    return abs(count / draws - rate) / math.sqrt(rate * (1 - rate) / draws)


@pytest.mark.parametrize("shape", [(2, 2), (5, 9), (9, 5), (16, 768), (33, 34)])
def test_describes_simulated_noise(shape):
    """At the 50, 10 and 1 % quantiles of 100,000 draws, within 3.5 standard errors; not with σ 2 % off."""
    for p in (0.5, 0.1, 0.01):
        gate = exceeded_with(p, *sorted(shape))
        assert rate_deviation(shape, gate, p, 100_000, 12) < 3.5
        assert rate_deviation(shape, 1.02 * gate, p, 100_000, 12) > 3.5


def test_small_determinants_keep_relative_accuracy():
    """The value of log det(1 - E) ≈ -tr E for small E, on both sides of the switch to factorisation."""
    E = np.random.default_rng(0).standard_normal((6, 6))
    E /= np.linalg.norm(E)
    for size in (1e-30, 1e-8, 0.999e-3, 1.001e-3):
        with mp.workdps(60):
            exact = mp.log(mp.det(mp.eye(6) - mp.matrix((size * E).tolist())))
        assert _log_det_one_minus(size * E) == pytest.approx(float(exact), rel=1e-12)
    assert _log_det_one_minus(2 * np.diag([1.0, 0.0])) == -math.inf
