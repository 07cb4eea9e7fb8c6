"""Secret probes: both pairs' curves against T(t) = E Φ(μ - t) by quadrature, far into the tail."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from scipy.special import gammainc, ndtr, ndtri

from dprmt.accounting import _shifted_normals
from dprmt.accounting._clipping_step import ClippingStep
from dprmt.accounting._secret_lower_pair import SecretLowerPair, _log_masses
from dprmt.accounting._secret_pair import SecretUpperPair

SIGMA, TAIL = 2.0, 1e-9
THRESHOLDS = np.concatenate([np.linspace(-8.0, 8.0, 33), np.geomspace(9.0, 300.0, 12)])


def truth(probes: int, t: np.ndarray) -> np.ndarray:
    """E Φ(μ - t) of the envelope: P(μ > t + G), averaged over a normal G by the trapezoidal rule."""
    length = np.linspace(0.0, 30.0, 6001)
    kink = np.maximum(1 / SIGMA - t, -12.0)[:, None]  # X_env is at most 1: the rest is beyond it
    g = kink + length
    weight = np.exp(-(g**2) / 2) * length[1] / np.sqrt(2 * np.pi)
    weight[:, 0] /= 2
    law = gammainc(probes / 2, probes / 2 / (SIGMA * np.maximum(t[:, None] + g, 1 / SIGMA)) ** 2)
    return ndtr(kink[:, 0]) + (law * weight).sum(axis=1)


def pairs(probes: int, bins: int = 256) -> tuple[SecretUpperPair, SecretLowerPair]:
    step = ClippingStep(SIGMA, 0.5, probes, analysis="envelope", secret=True)
    upper, lower = step.pairs(bins, TAIL)
    assert isinstance(upper, SecretUpperPair)
    assert isinstance(lower, SecretLowerPair)
    return upper, lower


@pytest.mark.parametrize("probes", [2, 3, 5])
def test_an_envelope_as_it_is_bounds_the_curve_at_every_threshold(probes: int) -> None:
    """(C8), valid and tight: bins of relative width w err by w k / 2 where shifts are large."""
    upper, lower = pairs(probes)
    assert upper.is_law
    exact = truth(probes, THRESHOLDS)
    above = upper._curve(THRESHOLDS)[0] + upper._leftover(THRESHOLDS)
    below = lower._curve(THRESHOLDS)[0]
    assert np.all(above >= exact * (1 - 1e-9) - 1e-6 * (THRESHOLDS < 7))
    assert np.all(below <= exact * (1 + 1e-9) + 1e-6 * (THRESHOLDS < 7))
    seen = exact > 3e-7
    assert np.all(above[seen] <= exact[seen] * 1.12)
    assert np.all(below[seen] >= exact[seen] * 0.88)


def test_what_lies_below_the_thresholds_of_the_bins_is_charged_at_all_of_them() -> None:
    """(C8): where bins bound nothing, at t < -s, T is short of 1 by at most Φ(-s), which every threshold pays."""
    upper, _ = pairs(3)
    assert upper.extra > 0.0
    assert 1.0 - truth(3, np.array([ndtri(upper.extra)]))[0] <= upper.extra
    nodes = np.linspace(0.5, 40.0, 80)
    more = replace(upper, extra=1e-3)
    without, charged = (pair.cells(nodes) for pair in (replace(upper, extra=0.0), more))
    assert charged.p_above - without.p_above >= 0.5 * 1e-3 * (1 - 1e-9)
    tails = [cells.p_above + np.cumsum(cells.p[::-1])[::-1] for cells in (without, charged)]
    assert np.all(tails[1] >= tails[0])
    assert np.all(more._leftover(THRESHOLDS) >= 1e-3)


def test_without_credit_for_curvature_the_bound_would_fail() -> None:
    """The mean kept, as where f_t is convex, is not enough where it is concave."""
    upper, _ = pairs(3, bins=16)
    bins = ClippingStep(SIGMA, 0.5, 3, analysis="envelope", secret=True).norm_ratio(16, TAIL / 0.5)
    x, mass = bins.spread(0.0)
    naive = SecretUpperPair(1 / (SIGMA * np.sqrt(x)), mass, 0.5, bins.below, is_law=True)
    exact = truth(3, THRESHOLDS)
    assert np.any(naive._curve(THRESHOLDS)[0] + bins.below < exact * (1 - 1e-6))
    assert np.all(upper._curve(THRESHOLDS)[0] + upper._leftover(THRESHOLDS) >= exact * (1 - 1e-9))


@pytest.mark.parametrize("is_law", [True, False])
def test_sums_over_shifts_near_a_threshold_are_those_over_all(is_law: bool, monkeypatch) -> None:
    """The band, the prefix and suffix sums, and the block length change nothing."""
    shift = np.geomspace(400.0, 0.02, 300)
    mass = np.full(300, 1 / 300)
    pair = SecretUpperPair(shift, mass, 0.3, is_law=is_law)
    value, rest = pair._curve(THRESHOLDS)
    plain = _literal(shift, mass, THRESHOLDS, is_law)
    np.testing.assert_allclose(value, plain, rtol=1e-12)
    np.testing.assert_allclose(rest, 1 - plain, atol=1e-12)
    ratio, slope = pair.log_ratio(THRESHOLDS)
    step = 1e-5
    np.testing.assert_allclose(
        slope, (pair.log_ratio(THRESHOLDS + step)[0] - pair.log_ratio(THRESHOLDS - step)[0]) / (2 * step), rtol=2e-3
    )
    monkeypatch.setattr(_shifted_normals, "ROWS_AT_A_TIME", 3)
    np.testing.assert_allclose(pair._curve(THRESHOLDS)[0], value, rtol=1e-12)
    np.testing.assert_allclose(pair.log_ratio(THRESHOLDS)[0], ratio, rtol=1e-12)


def _literal(shift: np.ndarray, mass: np.ndarray, thresholds: np.ndarray, is_law: bool) -> np.ndarray:
    """Equation (C3), one threshold and one atom at a time."""
    total = []
    for t in thresholds:
        star = (t + np.sqrt(t * t + 12)) / 2 if t >= 0 else 6 / (np.sqrt(t * t + 12) - t)
        value = 0.0
        for mu, m in zip(shift, mass, strict=True):
            if is_law or mu <= star:
                value += m * ndtr(mu - t)
                continue
            at, y = (star, (star / mu) ** 2) if mu <= np.sqrt(3) * star else (mu / np.sqrt(3), 1 / 3)
            value += m * (ndtr(3 / at) + at / 2 * np.exp(-4.5 / at**2) / np.sqrt(2 * np.pi) * (1 - y))
        total.append(value)
    return np.array(total)


def test_thresholds_meet_their_losses() -> None:
    upper, _ = pairs(2)
    nodes = np.concatenate([np.linspace(-0.69, 30.0, 200), np.geomspace(31.0, 1e5, 200)])
    t, miss = upper.thresholds(nodes)
    finite = np.isfinite(t)
    assert np.all(np.diff(t[finite]) >= 0)
    assert np.max(miss / np.maximum(nodes, 1.0)) < 1e-9


def test_outcomes_whose_mass_without_the_sample_underflows_are_kept() -> None:
    """Losses above 740 have no Q-mass in double precision; their P-mass is most of what decides for two probes."""
    _, lower = pairs(2)
    nodes = np.geomspace(1.0, 2e4, 300)
    cells = lower.cells(nodes)
    beyond = cells.p[nodes[:-1] > 800.0].sum() + cells.p_above
    exact = 0.5 * truth(2, np.array([40.5]))[0]
    assert 0.9 * exact < beyond < 1.02 * exact


def test_log_masses_of_intervals_beyond_underflow() -> None:
    points = np.array([36.0, 36.5, 60.0, 61.0, np.inf])
    logs = _log_masses(points)
    assert logs[0] == pytest.approx(np.log(ndtr(-36.0) - ndtr(-36.5)), rel=1e-12)
    assert logs[2] == pytest.approx(-(60.0**2) / 2 - np.log(60.0 * np.sqrt(2 * np.pi)) + np.log1p(-1 / 3600), rel=1e-6)
    assert np.all(np.diff(logs) < 0)
