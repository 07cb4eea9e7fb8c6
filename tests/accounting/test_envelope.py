"""Weighted sums of chi-squares and their envelope over spectra: oracles, published constants, simulation.

``oracles/make_chi2_mixture.py`` in commit 411bdc64 made the stored values.
"""

from __future__ import annotations

import json
import math
from pathlib import Path

import hypothesis.strategies as st
import mpmath as mp
import numpy as np
import pytest
from hypothesis import given
from scipy import stats
from scipy.optimize import brentq, minimize_scalar
from scipy.special import gammainc, gammaincc, roots_jacobi

from dprmt.accounting.laws import _chi2_mixture
from dprmt.accounting.laws._chi2_mixture import chi2_mixture_cdf, chi2_mixture_sf, mixture_tails
from dprmt.accounting.laws._envelope import ENVELOPE_MARGIN, envelope_cdf, envelope_leading_weight, envelope_switch

GRID = [(k, d) for k in (2, 3, 8, 32, 256, 4096) for d in (3, 4, 8, 32, 1000, 10**6)]


def points(probes: int, rank: int) -> np.ndarray:
    """Squared-norm ratios in all three segments, most of them in the middle one."""
    switch = envelope_switch(probes, rank)
    middle = 1 + (switch - 1) * np.array([1e-3, 0.1, 0.3, 0.6, 0.9, 0.999])
    return np.concatenate([[0.3, 0.8, 1.0], middle, [switch, 1 + 1.01 / probes, 1.5]])


def spectrum_cdf(x: np.ndarray, spectra: np.ndarray, probes: int) -> np.ndarray:
    """P(Σ λ_i χ²_i(k)/k <= x), a row per spectrum, a column per x."""
    return chi2_mixture_cdf(x, spectra[:, None, :] / probes, np.full(spectra.shape[1], float(probes)))


def two_weights(leading: np.ndarray, rank: int) -> np.ndarray:
    """Spectra (λ, (1-λ)/(d-1), ...)."""
    rest = np.repeat((1 - leading[:, None]) / (rank - 1), rank - 1, axis=1)
    return np.concatenate([leading[:, None], rest], axis=1)


@pytest.mark.parametrize("rank", [2, 3, 5, 8])
@pytest.mark.parametrize("probes", [2, 3, 16, 64])
def test_no_random_spectrum_beats_the_envelope_and_the_best_one_meets_it(probes, rank):
    """Valid: no spectrum of any shape, nor a small step away from the extremal one, is above. Tight: the latter come
    within 1e-6 everywhere, and the extremal spectrum itself within the margin.
    """
    rng = np.random.default_rng(1000 * probes + rank)
    x = points(probes, rank)
    envelope = envelope_cdf(x, probes, rank)
    extremal = two_weights(envelope_leading_weight(x, probes, rank), rank)
    shapes = rng.choice([0.05, 0.3, 1.0, 10.0, 100.0], size=300)
    spectra = rng.dirichlet(np.ones(rank), size=300) ** (1 / shapes[:, None])
    near = np.abs(extremal + 10 ** rng.uniform(-6, -2, (20, 1, 1)) * rng.standard_normal((20, *extremal.shape)))
    every = np.concatenate([spectra, near.reshape(-1, rank)])
    every /= every.sum(axis=1, keepdims=True)
    best = spectrum_cdf(x, every, probes).max(axis=0)
    assert np.all(best <= envelope + ENVELOPE_MARGIN)
    assert np.all(best >= envelope - 1e-6)
    np.testing.assert_allclose(np.diag(spectrum_cdf(x, extremal, probes)), envelope, rtol=0, atol=ENVELOPE_MARGIN)


@pytest.mark.parametrize(("probes", "rank"), [(2, 2), (2, 12), (4, 3), (5, 7), (32, 2), (32, 8)])
def test_maximum_matches_a_slow_search_by_other_means(probes, rank):
    """P(λ, x) as a Beta mixture of gammas (Gauss-Jacobi), maximised by scipy from a grid of λ."""
    rest = (rank - 1) * probes
    nodes, masses = roots_jacobi(200, rest / 2 - 1, probes / 2 - 1)
    masses = masses / masses.sum()

    def minus_cdf(log_leading: float, x: float) -> float:
        lead = math.exp(log_leading)
        scale = lead / probes * (1 + nodes) + (1 - lead) / rest * (1 - nodes)
        return -float(gammainc((probes + rest) / 2, x / scale) @ masses)

    grid = np.linspace(-math.log(rank), 0, 200)
    for x in points(probes, rank):
        best = grid[np.argmin([minus_cdf(g, x) for g in grid])]
        ends = max(best - 0.1, -math.log(rank)), min(best + 0.1, 0.0)
        found = minimize_scalar(minus_cdf, ends, args=(x,), bounds=ends, method="bounded", options={"xatol": 1e-9})
        reference = max(-found.fun, -minus_cdf(-math.log(rank), x), -minus_cdf(0.0, x))
        assert float(envelope_cdf(x, probes, rank)) == pytest.approx(reference, abs=2e-11)


@pytest.mark.parametrize(("probes", "rank"), [(2, 2), (2, 3), (2, 1000), (8, 4), (32, 8), (32, 10**5), (4096, 32)])
def test_the_hump_is_the_only_local_maximum_inside(probes, rank):
    """As λ rises from 1/d to 1, P(λ, x) rises and falls for 1 < x < 1 + 2/(dk), falls, rises and falls from there to
    beyond x_+, then only falls; at x <= 1 it only rises. This is the shape that the search relies on.
    """
    corner, switch = 2 / (rank * probes), envelope_switch(probes, rank) - 1
    rest = (rank - 1) * probes
    lead = np.geomspace(1 / rank, 1, 400)
    weights = np.stack([lead / probes, np.maximum(1 - lead, 0) / rest], axis=-1)

    def pattern(excess: float) -> str:
        steps = np.diff(chi2_mixture_cdf(1 + excess, weights, [float(probes), float(rest)]))
        signs = np.sign(steps[np.abs(steps) > 1e-11])
        return "".join("+" if s > 0 else "-" for s in signs[np.append(True, np.diff(signs) != 0)])

    assert pattern(-0.01 / probes) == pattern(-0.5 / math.sqrt(probes)) == "+"
    assert {pattern(corner * f) for f in (0.2, 0.5, 0.9)} == {"+-"}
    if rank > 2:
        assert {pattern(corner + (switch - corner) * f) for f in (0.2, 0.5, 0.9, 1.0)} == {"-+-"}
    assert pattern(1.2 / probes) == pattern(3 / probes) == "-"


@pytest.mark.parametrize(("probes", "rank"), GRID)
def test_the_switch_lies_in_its_bracket_and_the_leading_weight_jumps_there(probes, rank):
    """1 + 2/(dk) < x_+ < 1 + 1/k for d > 2: there the hump and equal weights give the same probability."""
    switch = envelope_switch(probes, rank)
    assert 1 + 2 / (rank * probes) < switch < 1 + 1 / probes
    before, after = 1 + (switch - 1) * (1 - 1e-7), 1 + (switch - 1) * (1 + 1e-7)
    lead = envelope_leading_weight([before, after], probes, rank)
    assert lead[0] > 1.3 / rank
    assert lead[1] == 1 / rank
    cdf = envelope_cdf([before, after], probes, rank)
    assert 0 <= cdf[1] - cdf[0] < 1e-6


@pytest.mark.parametrize("probes", [2, 7, 32, 500])
def test_outer_segments_are_chi_square(probes):
    """One spectral value for x <= 1, d equal ones for x >= x_+, and only these for d = 1."""
    low = np.append(stats.chi2.ppf(np.geomspace(1e-15, 0.4, 30), probes) / probes, 0.999)
    high = 1 + np.geomspace(1.001 / probes, 3, 30)
    for rank in (1, 2, 6, None):
        np.testing.assert_allclose(envelope_cdf(low, probes, rank), stats.chi2.cdf(probes * low, probes), rtol=1e-12)
    for rank in (1, 2, 6):
        dof = probes * rank
        np.testing.assert_allclose(envelope_cdf(high, probes, rank), stats.chi2.cdf(dof * high, dof), rtol=1e-12)
    np.testing.assert_array_equal(envelope_cdf([1.0, *high], probes), 1)
    assert envelope_switch(probes, 1) == envelope_switch(probes) == 1
    np.testing.assert_array_equal(envelope_leading_weight([0.5, 0.99, 1.0, 1.5], probes), [1, 1, 0, 0])


def test_infimum_constants_of_szekely_and_bakirov():
    """Székely & Bakirov (2003), abstract: inf P(Q <= x) over all forms of mean 1 is P(χ²(n)/n <= x), with n = 1 for
    x > 1.5364… and n = 2 for 1.2989… <= x <= 1.5364…: where the laws of one and two, two and three equal weights
    (k = 1) cross. No other spectrum is below.
    """

    def crossing(n: int) -> float:
        def gap(x: float) -> float:
            below, above = (chi2_mixture_cdf(x, [1 / m], [float(m)]) for m in (n, n + 1))
            return float(below - above)

        return brentq(gap, 1.1, 2.0, xtol=1e-12)

    assert crossing(1) == pytest.approx(1.5364, abs=1e-4)  # 1.536397
    assert crossing(2) == pytest.approx(1.2989, abs=1e-4)  # 1.298981
    spectra = np.random.default_rng(7).dirichlet(np.full(3, 0.7), size=500)
    for n, x in [(1, 1.6), (2, 1.4), (2, 1.3)]:
        least = float(chi2_mixture_cdf(x, [1 / n], [float(n)]))
        others = spectrum_cdf(np.array([x]), spectra, 1)
        assert others.min() >= least
        assert others.min() < least + 1e-2


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
