"""The Tracy–Widom law against known values, and κ against simulated false-alarm rates.

``oracles/tracy_widom.py`` in commit 411bdc64 made the stored values.
"""

from __future__ import annotations

import math

import mpmath as mp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dprmt.spectra import _tracy_widom, bulk_edge, false_alarm_rate, kappa_for, tracy_widom_edge
from dprmt.spectra._top_singular_value import upper_tail
from dprmt.spectra._tracy_widom import tracy_widom_quantile, tracy_widom_tail
from tests.spectra.simulation import exceedance_counts, stored


def cdf(s):
    return math.exp(_tracy_widom._log_cdf(s))


CASES = stored("tracy_widom")


# --------------------------------------------------------------------------------------------- the law


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case['method']}({case['s']})")
def test_equals_the_determinant_in_50_digits(case):
    """Relative accuracy 1e-11 of the upper tail; absolute accuracy 1e-13 of the lower."""
    with mp.workdps(30):
        value = mp.mpf((cdf if case["method"] == "cdf" else tracy_widom_tail)(case["s"]))
        assert float(abs(value / mp.mpf(case["value"]) - 1)) <= case["rtol"]
        assert float(abs(value - mp.mpf(case["value"]))) <= 1e-13


def test_published_moments_and_quantiles():
    """Mean -1.2065335745820, variance 1.607781034581 (Bornemann 2010); 95 % 0.9793 and 99 % 2.0234 points."""
    nodes, weights = np.polynomial.legendre.leggauss(120)
    s, w = 8 * (nodes + 1), 8 * weights
    above, below = np.array([tracy_widom_tail(t) for t in s]), np.array([cdf(-t) for t in s])
    mean = np.sum(w * (above - below))
    assert mean == pytest.approx(-1.2065335745820, abs=1e-12)
    assert np.sum(2 * w * s * (above + below)) - mean**2 == pytest.approx(1.607781034581, abs=1e-11)
    assert [round(tracy_widom_quantile(p), 4) for p in (0.05, 0.01)] == [0.9793, 2.0234]


@given(st.floats(-9.0, 20.0), st.floats(-9.0, 20.0))
def test_the_tail_falls(a, b):
    """sf(s) >= sf(s') for s <= s', and cdf + sf = 1."""
    low, high = sorted((a, b))
    assert 1 >= tracy_widom_tail(low) >= tracy_widom_tail(high) * (1 - 1e-12) >= 0
    assert cdf(low) + tracy_widom_tail(low) == pytest.approx(1, abs=1e-15)


@given(st.one_of(st.floats(1e-25, 1e-3), st.floats(1e-3, 0.999)))
def test_quantiles_invert_the_tail(p):
    assert tracy_widom_tail(tracy_widom_quantile(p)) == pytest.approx(p, rel=1e-10)


def test_far_tails():
    """The law is 0 and 1 far out, not NaN."""
    assert cdf(-1e3) == 0.0
    assert tracy_widom_tail(-1e3) == 1.0
    assert tracy_widom_tail(60.0) < 1e-100


# -------------------------------------------------------------------------------------------- the edge


def test_edge_is_centring_plus_scale_times_quantile():
    """Johnstone's and Ma's constants, written out at one shape in both orientations."""
    s = tracy_widom_quantile(0.01)
    for centring, a, b in (("johnstone", 767.0, 16.0), ("ma", 767.5, 15.5)):
        a, b = math.sqrt(a), math.sqrt(b)
        expected = 0.5 * math.sqrt((a + b) ** 2 + (a + b) * (1 / a + 1 / b) ** (1 / 3) * s)
        for shape in ((16, 768), (768, 16)):
            assert tracy_widom_edge(shape, 0.5, 0.01, centring) == pytest.approx(expected, rel=1e-14)


def test_the_edge_approaches_the_exact_one():
    """The error of the rate falls with size, and Ma's constants beat Johnstone's for skinny matrices."""
    errors = {}
    for centring in ("johnstone", "ma"):
        for shape in ((4, 192), (16, 768), (64, 3072)):
            gate = tracy_widom_edge(shape, 1.0, 0.01, centring)
            errors[centring, shape] = abs(upper_tail(gate, *shape) / 0.01 - 1)
        assert errors[centring, (4, 192)] > errors[centring, (16, 768)] > errors[centring, (64, 3072)]
    assert errors["johnstone", (16, 768)] == pytest.approx(0.29, abs=0.01)
    assert errors["ma", (16, 768)] == pytest.approx(0.063, abs=0.003)


# --------------------------------------------------------------------------------------------- kappa

SHAPES = [(16, 768), (32, 2048), (256, 256), (768, 3072)]


def deviation(simulated, rate, draws):
    """Standard errors between a simulated and a stated rate."""
    return abs(simulated - rate) / np.sqrt(rate * (1 - rate) / draws)


@pytest.mark.parametrize(
    ("shape", "draws"), list(zip(SHAPES, (400_000, 200_000, 40_000, 20_000), strict=True)), ids=str
)
def test_kappa_has_the_asked_rate(shape, draws):
    """Simulated rates at 1 % and 0.1 % are within 3 standard errors of the asked ones."""
    rates = np.array([0.01, 0.001])
    gates = np.array([kappa_for(shape, rate) for rate in rates]) * bulk_edge(shape, 1.0)
    simulated = exceedance_counts(shape, gates, draws, np.random.default_rng(0)) / draws
    assert np.all(deviation(simulated, rates, draws) < 3), simulated
    for wrong in (0.5, 1.5):
        assert np.max(deviation(simulated, wrong * rates, draws)) > 3


@given(st.tuples(st.integers(1, 40), st.integers(1, 400)), st.floats(1e-12, 0.5), st.floats(1e-12, 0.5))
def test_kappa_is_a_gate(shape, a, b):
    """Always κ >= 1; rarer alarms need larger κ; the rate is as asked, or less if κ = 1; transposes agree."""
    low, high = sorted((a, b))
    kappa = kappa_for(shape, low)
    assert kappa >= kappa_for(shape, high) >= 1
    assert kappa == kappa_for(shape[::-1], low)
    if kappa > 1:
        assert false_alarm_rate(shape, kappa) == pytest.approx(low, rel=1e-7)
    else:
        assert false_alarm_rate(shape, 1.0) <= low


def test_large_matrices_use_the_limit(monkeypatch):
    """Beyond the exact law's largest side κ comes from Ma's constants: at 64 × 256 within 3 % of the rate."""
    exact = {rate: kappa_for((64, 256), rate) for rate in (0.1, 0.01)}
    monkeypatch.setattr(_tracy_widom, "LARGEST_SIDE", 32)
    _tracy_widom._kappa_for.cache_clear()
    try:
        limit = {rate: kappa_for((64, 256), rate) for rate in exact}
        assert false_alarm_rate((64, 256), limit[0.01]) == pytest.approx(0.01, rel=1e-6)
    finally:
        _tracy_widom._kappa_for.cache_clear()
        monkeypatch.undo()
    for rate, kappa in limit.items():
        assert kappa != exact[rate]
        assert false_alarm_rate((64, 256), kappa) == pytest.approx(rate, rel=0.03)
    assert 1.0 < kappa_for((3000, 5000), 0.01) < 1.003
