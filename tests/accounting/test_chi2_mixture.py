"""Weighted sums of chi-squares: oracles, identities that hold exactly, simulation, and what is refused.

``oracles/make_chi2_mixture.py`` in commit 411bdc64 made the stored values.
"""

from __future__ import annotations

import json
from pathlib import Path

import hypothesis.strategies as st
import mpmath as mp
import numpy as np
import pytest
from hypothesis import given
from scipy import stats
from scipy.special import gammainc, gammaincc, roots_jacobi

from dprmt.accounting.laws import _chi2_mixture, chi2_mixture_cdf, chi2_mixture_sf
from dprmt.accounting.laws._chi2_mixture import mixture_tails

VALUES = json.loads((Path(__file__).parent / "oracles" / "chi2_mixture.json").read_text())
ORACLE = VALUES["mixtures"]
TAILS = {"cdf": chi2_mixture_cdf, "sf": chi2_mixture_sf}

sizes = st.integers(1, 6)
log_weights = st.floats(-6.0, 0.0)
degrees = st.one_of(st.floats(0.5, 8.0), st.integers(1, 64).map(float), st.floats(64.0, 4096.0))
mixtures = sizes.flatmap(
    lambda m: st.tuples(st.lists(log_weights, min_size=m, max_size=m), st.lists(degrees, min_size=m, max_size=m))
).map(lambda pair: (10.0 ** np.array(pair[0]), np.array(pair[1])))


def spread_points(weights: np.ndarray, dof: np.ndarray, count: int = 25) -> np.ndarray:
    """Points from far left to far right of the bulk, increasing."""
    mean, sd = weights @ dof, np.sqrt(2 * weights**2 @ dof)
    left = mean * np.geomspace(1e-4, 1, count)
    return np.unique(np.concatenate([left, np.abs(mean + sd * np.linspace(-8, 16, count))]))


def test_the_oracle_covers_what_is_promised():
    """Both tails to 1e-15, 1 to 200 weights, ratios to 1e6, k from 1 to 4096, tolerances at most 1e-10."""
    points = [point for mixture in ORACLE for point in mixture["points"]]
    for tail in TAILS:
        assert min(float(p["value"]) for p in points if p["tail"] == tail) < 1.1e-15
    assert {len(mixture["weights"]) for mixture in ORACLE} >= {1, 2, 20, 200}
    assert max(max(m["weights"]) / min(m["weights"]) for m in ORACLE) >= 1e6
    assert {dof for m in ORACLE for dof in m["dof"]} >= {1.0, 4096.0}
    assert max(m["rtol"] for m in ORACLE) <= 1e-10


@pytest.mark.parametrize("mixture", ORACLE, ids=lambda m: f"{m['method']}-{len(m['weights'])}-{m['dof'][0]:g}")
def test_tails_match_the_oracle(mixture):
    for point in mixture["points"]:
        value = TAILS[point["tail"]](point["x"], mixture["weights"], mixture["dof"])
        assert abs(mp.mpf(float(value)) / mp.mpf(point["value"]) - 1) < mixture["rtol"], point


@pytest.mark.parametrize("case", VALUES["unit_mean"], ids=lambda case: f"{case['dof']}")
def test_a_mean_known_exactly_keeps_the_digits_at_many_degrees_of_freedom(case):
    """χ²(N)/N has mean 1; given x - 1 without rounding, N = 4·10⁹ costs no accuracy (without it, 1e-11)."""
    dof = np.array([[float(case["dof"])]])
    x = np.array([point["x"] for point in case["points"]])
    cdf, sf = mixture_tails(x, x - 1, 1 / dof, dof)
    for point, lower, upper in zip(case["points"], cdf, sf, strict=True):
        value = {"cdf": lower, "sf": upper}[point["tail"]]
        assert abs(mp.mpf(float(value)) / mp.mpf(point["value"]) - 1) < 5e-14, point


@pytest.mark.parametrize("dof", [0.5, 1, 2.5, 3, 32, 100.5, 1000])
def test_one_weight_matches_scipy(dof):
    """For w χ²(ν): scipy's incomplete gamma function is good to 4e-13 up to 1000 degrees of freedom."""
    tails = np.logspace(-15, -0.05, 40)
    for x, tail, reference in [
        (stats.chi2.ppf(tails, dof), chi2_mixture_cdf, stats.chi2.cdf),
        (stats.chi2.isf(tails, dof), chi2_mixture_sf, stats.chi2.sf),
    ]:
        np.testing.assert_allclose(tail(0.3 * x, [0.3], [dof]), reference(x, dof), rtol=1e-12)


@given(st.floats(0.02, 0.98), st.integers(1, 64), st.integers(1, 64))
def test_two_weights_match_the_beta_mixture_of_gammas(share, first, second):
    """w_1 χ²(a) + w_2 χ²(b) = (w_1 B + w_2 (1-B)) χ²(a+b), B ~ Beta(a/2, b/2) independent of χ²(a+b)."""
    nodes, masses = roots_jacobi(128, second / 2 - 1, first / 2 - 1)
    scale = share * (1 + nodes) + (1 - share) * (1 - nodes)
    masses = masses / masses.sum()
    weights, dof = np.array([share, 1 - share]), np.array([first, second])
    x = spread_points(weights, dof)[:, None]
    shape = (first + second) / 2
    for tail, gamma_tail in [(chi2_mixture_cdf, gammainc), (chi2_mixture_sf, gammaincc)]:
        reference = gamma_tail(shape, x / scale) @ masses
        far = reference > 1e-15
        np.testing.assert_allclose(tail(x[far, 0], weights, dof), reference[far], rtol=1e-10)


@given(mixtures)
def test_the_two_paths_differ_by_the_residue_at_the_pole(mixture):
    """P(sum <= x) + P(sum > x) = 1, each computed on its own path (the code changes over one sd above the mean)."""
    weights, dof = mixture
    ratios, alphas = (weights / weights.max())[:, None], dof[:, None] / 2
    mean, sd = (ratios * alphas).sum(), np.sqrt((ratios**2 * alphas).sum())
    y = mean + sd * np.linspace(1, 3, 9)
    sides = [_chi2_mixture._tail(_chi2_mixture._Points(y, y - mean, ratios, alphas, lower)) for lower in (True, False)]
    np.testing.assert_allclose(sides[0] + sides[1], 1, rtol=1e-13)


@given(mixtures, st.floats(0.5, 50.0), st.data())
def test_equal_weights_merge_and_zero_weights_drop(mixture, extra, data):
    """W χ²(a) + w χ²(b) = w χ²(a+b) and 0 χ²(c) = 0, also where the evaluation keeps the entries apart."""
    weights, dof = mixture
    twin = data.draw(st.integers(0, weights.size - 1))
    merged = dof.copy()
    merged[twin] += extra
    x = spread_points(weights, merged)
    apart = np.append(weights, [weights[twin], 0.0]), np.append(dof, [extra, 7.0])
    for tail in TAILS.values():
        reference = tail(x, weights, merged)
        np.testing.assert_allclose(tail(x, *apart), reference, rtol=1e-11, atol=1e-300)
        np.testing.assert_allclose(tail(x, apart[0][None], apart[1]), reference, rtol=1e-11, atol=1e-300)


@pytest.mark.parametrize(
    ("weights", "dof"), [([0.7, 0.3], [1, 1]), ([0.5, 0.3, 0.2], [2, 5, 3]), ([1, 0.01], [4, 1000])]
)
def test_simulation_accepts_the_law_and_rejects_a_wrong_scale(weights, dof):
    """Kolmogorov-Smirnov on 15,000 draws: p > 0.01 for the right weights, p < 1e-4 for weights 7 % off."""
    rng = np.random.default_rng(20240611)
    draws = rng.chisquare(dof, size=(15_000, len(dof))) @ np.array(weights)
    assert stats.kstest(draws, lambda x: chi2_mixture_cdf(x, weights, dof)).pvalue > 0.01
    for wrong in (0.93, 1.07):
        scaled = np.array(weights) * wrong
        assert stats.kstest(draws, lambda x, w=scaled: chi2_mixture_cdf(x, w, dof)).pvalue < 1e-4


def test_ends_of_the_line():
    x = np.array([-np.inf, -1.0, 0.0, np.inf])
    np.testing.assert_array_equal(chi2_mixture_cdf(x, [0.5, 0.5], [1, 2]), [0, 0, 0, 1])
    np.testing.assert_array_equal(chi2_mixture_sf(x, [0.5, 0.5], [1, 2]), [1, 1, 1, 0])


@pytest.mark.parametrize("weights", [[1.0, 1e-6], [1e308, 1e300], [1e-300, 1e-306], [5e-324, 5e-324]])
def test_extreme_arguments_are_silent(weights):
    """Values too small for a float are 0; no floating-point error escapes, whatever numpy is told to raise."""
    x = np.array([5e-324, 1e-300, 1e-30, 1.0, 1e30, 1e300, 1.7e308])
    with np.errstate(all="raise"):
        for dof in ([0.5, 0.5], [4096.0, 1e9]):
            cdf, sf = chi2_mixture_cdf(x, weights, dof), chi2_mixture_sf(x, weights, dof)
            assert np.all((cdf >= 0) & (cdf <= 1) & (sf >= 0) & (sf <= 1))
            assert np.all(np.diff(cdf) >= 0)
    assert chi2_mixture_cdf(1e-3, [1.0, 1.0], [4096.0, 1.0]) == 0
    assert chi2_mixture_sf(1e5, [1.0, 0.5], [2.0, 1.0]) == 0
