"""The Marchenko–Pastur law: against quadrature in 40 digits, as a distribution, against simulated spectra.

``oracles/marchenko_pastur.py`` in commit 411bdc64 made the stored values.
"""

from __future__ import annotations

import math
import pickle

import mpmath as mp
import numpy as np
import pytest
import scipy
import torch
from hypothesis import example, given
from hypothesis import strategies as st

from dprmt.spectra import MarchenkoPastur, bulk_edge
from tests.spectra.simulation import SHAPES, stored

CASES = stored("marchenko_pastur")
METHODS = ("pdf", "cdf", "sf", "ppf")


@pytest.mark.parametrize("method", METHODS)
def test_equals_quadrature_of_the_density_in_40_digits(method):
    """To rounding, as close as 1e-12 of the width to either edge, and for the smaller of the two tails."""
    cases = [case for case in CASES if case["method"] == method]
    assert len(cases) > 40
    for case in cases:
        value = getattr(MarchenkoPastur(case["shape"], case["sigma"]), method)(case["x"])
        with mp.workdps(40):
            error = float(abs(mp.mpf(value) / mp.mpf(case["value"]) - 1))
        assert error <= case["rtol"], case


def test_the_square_case_is_the_quarter_circle():
    """Density √(4nσ² - s²)/(πnσ²) on [0, 2σ√n], down to and including s = 0."""
    law, R = MarchenkoPastur((25, 25), 0.3), 3.0
    s = np.array([0.0, 1e-300, 1e-9, 0.5, 1.0, 2.0, 2.999, 3.0])
    assert law.support == pytest.approx((0.0, R))
    assert law.pdf(s) == pytest.approx(np.sqrt(R**2 - s**2) * 4 / (math.pi * R**2), rel=1e-13)
    circle = 2 / math.pi * (np.arcsin(s / R) + s / R * np.sqrt(1 - (s / R) ** 2))
    assert law.cdf(s) == pytest.approx(circle, rel=1e-13)
    assert law.ppf(np.array([1e-12, 1e-200])) == pytest.approx(R * math.pi / 4 * np.array([1e-12, 1e-200]), rel=1e-12)


@example((1, 1), 1.0, 2.2250738585e-313)
@given(SHAPES, st.floats(1e-6, 1e6), st.floats(0.0, 1.0))
def test_quantiles_invert_probabilities(shape, sigma, p):
    """cdf(ppf(p)) = p to the rounding of ppf(p), and ppf stays within the support."""
    law = MarchenkoPastur(shape, sigma)
    low, high = law.support
    x = law.ppf(p)
    assert low * (1 - 1e-15) <= x <= high * (1 + 1e-15)
    rounding = 4e-16 * x * law.pdf(min(max(x, low), high))
    assert law.cdf(x) == pytest.approx(p, abs=1e-14 + 10 * rounding + (1e-7 if x in (low, high) else 0))


@given(SHAPES, st.floats(1e-6, 1e6), st.floats(-0.5, 1.5), st.floats(-0.5, 1.5))
def test_probabilities_are_monotone_and_complementary(shape, sigma, a, b):
    """0 <= cdf(x) <= cdf(x') <= 1 for x <= x', and cdf + sf = 1; 0 and 1 outside the support."""
    law = MarchenkoPastur(shape, sigma)
    low, high = law.support
    x, y = sorted(low + (high - low) * t for t in (a, b))
    assert 0 <= law.cdf(x) <= law.cdf(y) * (1 + 1e-14) <= 1 + 1e-14
    assert law.cdf(x) + law.sf(x) == pytest.approx(1, abs=1e-15)
    for t in (x, y):
        assert law.pdf(t) >= 0
        assert t >= low or law.cdf(t) == law.pdf(t) == 0
        assert t <= high or law.sf(t) == law.pdf(t) == 0


@given(SHAPES, st.floats(1e-3, 1e3), st.floats(0.0, 1.0), st.floats(1e-3, 1e3))
def test_scale_transposition_and_second_moment(shape, sigma, p, unit):
    """The quantiles scale with σ, and the transposed matrix has the same law.

    The mean of s² is σ² max(m, n): the law keeps the expected Frobenius norm σ²mn.
    """
    law = MarchenkoPastur(shape, sigma)
    x = law.ppf(p)
    assert MarchenkoPastur(shape, unit * sigma).ppf(p) == pytest.approx(unit * x, rel=1e-14)
    assert MarchenkoPastur(shape[::-1], sigma).ppf(p) == x
    levels = (np.arange(4000) + 0.5) / 4000
    assert np.mean(law.ppf(levels) ** 2) == pytest.approx(sigma**2 * max(shape), rel=1e-4)


@pytest.mark.parametrize("shape", [(64, 1024), (1024, 64), (200, 200), (300, 400)])
def test_describes_simulated_noise(shape):
    """Ten spectra together are within 1.5/min(m, n) of the law in distribution, and not so for σ 3 % off."""
    noise = 0.2 * np.random.default_rng(1).standard_normal((10, *shape))
    spectra = np.linalg.svd(noise, compute_uv=False).ravel()
    distances = [scipy.stats.kstest(spectra, MarchenkoPastur(shape, σ).cdf).statistic for σ in (0.194, 0.2, 0.206)]
    assert [distance < 1.5 / min(shape) for distance in distances] == [False, True, False], distances


def test_support_and_median():
    """The support ends at the bulk edge; half of the mass lies below the median."""
    law = MarchenkoPastur((16, 768), 0.5)
    assert law.support == (0.5 * (math.sqrt(768) - 4), bulk_edge((16, 768), 0.5))
    assert isinstance(law.median, float)
    assert law.cdf(law.median) == pytest.approx(0.5, abs=1e-15)


@pytest.mark.parametrize("shape", [(768, 3072), (512, 512), (1, 10), (200, 201)])
@pytest.mark.parametrize("library", [np.asarray, torch.from_numpy], ids=["numpy", "torch"])
def test_many_points_are_the_points_one_by_one(shape, library):
    """Arrays that are worked on in blocks, with a table of starts, against single numbers."""
    law = MarchenkoPastur(shape, sigma=0.7)
    p = np.random.default_rng(0).random((3, 7000)) ** 3
    p[0, :4] = 0.0, 1.0, 1e-30, 1 - 1e-15
    picked = np.unravel_index(np.r_[0:6, 100:21_000:400], p.shape)
    x = np.asarray(law.ppf(library(p)))
    assert x.shape == p.shape
    np.testing.assert_allclose(x[picked], [law.ppf(float(q)) for q in p[picked]], rtol=1e-14)
    for function in (law.cdf, law.sf):
        values = np.asarray(function(library(x)))
        np.testing.assert_allclose(values[picked], [function(float(s)) for s in x[picked]], rtol=1e-14, atol=1e-16)


def test_laws_pickle() -> None:
    law = MarchenkoPastur((16, 144), 0.5)
    law.median  # noqa: B018  # whatever is cached
    same = pickle.loads(pickle.dumps(law))
    assert (same.median, same.support, same.cdf(3.0)) == (law.median, law.support, law.cdf(3.0))
