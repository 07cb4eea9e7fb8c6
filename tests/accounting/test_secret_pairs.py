"""Secret probes: both pairs' curves against T(t) = E Φ(μ - t) by quadrature, far into the tail."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import gammainc, ndtr

from dprmt.accounting.laws import NormRatioBins
from dprmt.accounting.laws._envelope_law import EnvelopeLaw
from dprmt.accounting.laws._rank_one_law import RankOneLaw
from dprmt.accounting.pairs import ClippingStep, SecretLowerPair, _shifted_normals
from dprmt.accounting.pairs._secret_lower_pair import _log_masses
from dprmt.accounting.pairs._secret_smaller_pair import SmallerPair
from dprmt.accounting.pairs._secret_upper_pair import SecretUpperPair

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
    step = ClippingStep(SIGMA, 0.5, EnvelopeLaw(probes), secret=True)
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
    below = lower.curve(THRESHOLDS)[0]
    assert np.all(above >= exact * (1 - 1e-9) - 1e-6 * (THRESHOLDS < 7))
    assert np.all(below <= exact * (1 + 1e-9) + 1e-6 * (THRESHOLDS < 7))
    seen = exact > 3e-7
    assert np.all(above[seen] <= exact[seen] * 1.03)
    assert np.all(below[seen] >= exact[seen] * 0.98)


def one_bin(left: float, right: float, mean: float) -> NormRatioBins:
    return NormRatioBins(np.array([left]), np.array([right]), np.ones(1), np.array([mean]), 0.0)


@given(
    st.floats(0.1, 3.0), st.floats(-9.0, 1.0), st.floats(0.01, 3.0), st.floats(0.01, 0.99), st.floats(1e-12, 1e-3),
    st.floats(0.0, 1.0), st.floats(0.0, 1.0),
)  # fmt: skip
@settings(max_examples=300)
def test_one_bin_is_never_more_private_at_any_threshold(sigma, log_left, width, share, more, low, high) -> None:
    """(C8), against any two points of the bin with the same mean; its inflation is needed, and told."""
    left = np.exp(log_left)
    right = left * np.exp(width)
    mean = left + share * (right - left)
    x, mass, excess = one_bin(left, right, mean).spread_secret(sigma, more)
    points = np.array([left + low * (mean - left), right - high * (right - mean)])
    weight = np.array([points[1] - mean, mean - points[0]]) / (points[1] - points[0]) if np.ptp(points) else [1.0, 0.0]
    t = np.linspace(-45.0, 1 / (sigma * np.sqrt(left)) + 12.0, 200)[:, None]
    atoms, truth = (ndtr(1 / (sigma * np.sqrt(at)) - t) @ of for at, of in ((x, mass), (points, np.asarray(weight))))
    assert np.all(atoms >= truth * (1 - 1e-12))
    assert excess <= more * 1.01
    assert mass.sum() == pytest.approx(1 + excess, rel=1e-14)


def test_a_bin_not_inflated_would_fail_where_few_thresholds_see_it() -> None:
    x, mass, excess = one_bin(0.01, 0.012, 0.0118).spread_secret(1.0, 1e-3)
    t = np.linspace(2.0, 20.0, 400)[:, None]
    truth = ndtr(1 / np.sqrt(0.0118) - t)[:, 0]
    atoms = ndtr(1 / np.sqrt(x) - t)
    assert np.all(atoms @ mass >= truth * (1 - 1e-14))
    assert np.any(atoms @ (mass / (1 + excess)) < truth * (1 - 1e-10))


def test_what_the_masses_exceed_is_taken_from_the_other_side() -> None:
    """(C8): 1 - T̂ is never above 1 - T, whatever the masses sum to."""
    upper, _ = pairs(3)
    more = replace(upper, mass=upper.mass * (1 + 1e-3), excess=upper.excess + 1e-3 * float(upper.mass.sum()))
    for pair in (upper, more):
        value, rest = pair.capped_curve(THRESHOLDS, float(THRESHOLDS[-1]))
        assert np.all(rest <= (1 - truth(3, THRESHOLDS)) + 1e-6)
        assert np.all(np.abs(value + rest - 1.0) <= 1e-12)
    assert more.cells(np.linspace(-0.6, 40.0, 80)).q_below >= upper.cells(np.linspace(-0.6, 40.0, 80)).q_below


def test_without_credit_for_curvature_the_bound_would_fail() -> None:
    """The mean kept, as where f_t is convex, is not enough where it is concave."""
    upper, _ = pairs(3, bins=16)
    bins = ClippingStep(SIGMA, 0.5, EnvelopeLaw(3), secret=True).norm_ratio(16, TAIL / 0.5)
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


@pytest.mark.parametrize("is_law", [True, False])
def test_no_outcome_between_the_smallest_loss_and_the_cap_is_lost(is_law: bool) -> None:
    """(C6): also where shifts reach 1e6, the divergence at the smallest losses is that of min(1, T̂) or more."""
    shift = np.geomspace(0.3, 1e6, 60)
    mass = shift**-1.0 / np.sum(shift**-1.0) * (1 - 1e-9)
    pair = SecretUpperPair(shift, mass, 0.5, 1e-9, is_law=is_law)
    nodes = np.linspace(np.log(0.5) + 1e-6, 3.0, 400)
    found = hockey_sticks(pair.cells(nodes), nodes)
    t = np.linspace(-12.0, 6.0, 40001)
    curve = np.minimum(pair._curve(t)[0] + 1e-9, 1.0)
    wanted = np.array([np.max(0.5 * ndtr(-t) + 0.5 * curve - np.exp(loss) * ndtr(-t)) for loss in nodes])
    assert np.all(found >= wanted * (1 - 1e-12))
    assert np.all(found <= wanted * (1 + 1e-3))
    last = float(pair.thresholds(nodes)[0][-1])
    low, high = -12.0, 6.0  # where T̂ reaches 1, to the last digits: that point is the best one for small losses
    while high - low > 1e-15:
        middle = (low + high) / 2
        if middle in (low, high):
            break
        low, high = (middle, high) if pair._reaches_one(np.array([middle]), last)[0] else (low, middle)
    cap = 0.5 * ndtr(-low) + 0.5 - np.exp(nodes) * ndtr(-low)
    assert np.all(found >= cap - 2e-15)


def smaller_pair(rate: float, probes: int = 5, sigma: float = 0.9) -> SmallerPair:
    upper, _ = ClippingStep(sigma, rate, RankOneLaw(probes), secret=True).pairs(128, 1e-9)
    assert isinstance(upper, SmallerPair)
    return upper


def hockey_sticks(cells, nodes: np.ndarray, charged: float = 0.0) -> np.ndarray:
    """H of the cells at each node, the mass above the last one at an infinite loss."""
    p, q = (np.append(np.cumsum(mass[::-1])[::-1], 0.0) for mass in (cells.p, cells.q))
    return p + cells.p_above - charged - np.exp(nodes) * (q + cells.q_above)


def by_search(pair: SmallerPair, nodes: np.ndarray) -> np.ndarray:
    """Sup over thresholds of (1-q)Φ(-t) + q min(T̂₁, T̂₂)(t) - e^l Φ(-t)."""
    kinks = [end for bracket in pair.switches for end in bracket] + [part._cap(pair.last) for part in pair.stretches]
    t = np.concatenate([np.linspace(-12.0, 14.0, 20001), np.geomspace(14.0, pair.last, 4000)[1:], kinks])
    curves = {part.is_law: part.capped_curve(t, pair.last)[0] for part in pair.stretches}
    least, q = np.minimum(curves[True], curves[False]), pair.stretches[0].sample_rate
    return np.array([np.max((1 - q) * ndtr(-t) + q * least - np.exp(loss) * ndtr(-t)) for loss in nodes])


@pytest.mark.parametrize("rate", [0.02, 0.5, 0.95])
def test_the_smaller_of_two_curves_is_taken_at_every_threshold(rate: float) -> None:
    """(C9), from below (no less than the minimum's own divergence) and from above (no more than that)."""
    pair = smaller_pair(rate)
    assert len({part.is_law for part in pair.stretches}) == 2
    nodes = np.concatenate([np.linspace(np.log1p(-rate) + 1e-3, 5.0, 150), np.geomspace(5.1, 60.0, 60)])
    cells = pair.cells(nodes)
    found, wanted = hockey_sticks(cells, nodes), by_search(pair, nodes)
    assert np.all(found >= wanted * (1 - 1e-9))
    compared = nodes > (0.0 if rate < 0.9 else -np.inf)  # below, switches are looked for only where they pay
    assert np.all((found <= wanted * (1 + 1e-5) + 1e-11)[compared])
    for part in pair.stretches[-2:]:  # each alone is larger somewhere
        assert np.any(hockey_sticks(part.cells(nodes), nodes) > found * 1.01)


def test_a_switch_in_the_wrong_place_is_seen() -> None:
    pair = smaller_pair(0.02)
    nodes = np.concatenate([np.linspace(0.0, 5.0, 100), np.geomspace(5.1, 60.0, 60)])
    wanted = by_search(pair, nodes)
    for shift in (-1.0, 1.0):
        wrong = replace(pair, switches=tuple((low + shift, high + shift) for low, high in pair.switches))
        found = hockey_sticks(wrong.cells(nodes), nodes)
        assert np.any(np.abs(found / wanted - 1) > 1e-3)


@pytest.mark.parametrize("weights", [(1.0,), (0.5, 0.5), (0.9, 0.1), (0.7, 0.2, 0.1)])
def test_the_smaller_curve_bounds_every_spectrum(weights: tuple[float, ...]) -> None:
    """T(t) of spectra, by Monte Carlo of X (4 standard errors), at all thresholds where it is seen."""
    pair = smaller_pair(0.95)
    rng = np.random.default_rng(5)
    x = sum(w * rng.chisquare(5, 200_000) / 5 for w in weights)
    shift = 1 / (0.9 * np.sqrt(x))
    for t in np.linspace(-6.0, 9.0, 31):
        least = min(float(part.capped_curve(np.array([t]), pair.last)[0][0]) for part in pair.stretches)
        seen = ndtr(shift - t)
        assert least >= seen.mean() - 4 * seen.std() / np.sqrt(seen.size)
