"""Sensitivities of many steps on one grid (B5): on the right side for each of them, and close."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import gammainc, ndtr

from dprmt.accounting import DPSGD, Hutchinson, HutchPlusPlus, Norms, compose
from dprmt.accounting.pairs import PublicPair, TightPair, pairs_of_steps
from dprmt.accounting.pairs import _common_grid as _common_bins

TAIL = 1e-10


def steps_of(noise, probes: int, rate: float = 0.05, **more):
    norms = (HutchPlusPlus if "sketch" in more else Hutchinson)(probes, **{"secret": False} | more)
    return [DPSGD(float(sigma), rate, norms).step() for sigma in noise]


def puts(s: np.ndarray, sigma: float, probes: int) -> np.ndarray:
    """E(s - σ²X)₊, X a χ²(k)/k."""
    a = probes / 2
    x = s / sigma**2
    return s * gammainc(a, a * x) - sigma**2 * gammainc(a + 1, a * x)


def puts_of(pair, s: np.ndarray) -> np.ndarray:
    law = pair if isinstance(pair, PublicPair) else pair.rank_one
    return np.maximum(s[:, None] - law.shift**-2, 0.0) @ law.mass + s * law.infinite


@given(st.lists(st.floats(0.8, 30.0), min_size=4, max_size=8, unique=True), st.sampled_from([9, 32, 400]))
@settings(max_examples=20)
def test_put_functions_lie_on_the_right_side(noise: list[float], probes: int) -> None:
    """E(s - V)₊ of the upper law is nowhere smaller, that of the lower law nowhere larger: all that convexity asks."""
    pairs = pairs_of_steps(steps_of(noise, probes, 1e-3), 40, TAIL)
    for sigma, (upper, lower) in zip(noise, pairs, strict=True):
        s = sigma**2 * np.geomspace(0.05, 100.0, 600)
        truth = puts(s, sigma, probes)
        assert np.all(puts_of(upper, s) >= truth * (1.0 - 1e-12) - 1e-15)
        seen = s >= 1.0 / 12.0
        assert np.all(puts_of(lower, s)[seen] <= truth[seen] * (1.0 + 1e-12) + 1e-15)
        gap = np.abs(puts_of(upper, s) - puts_of(lower, s))
        assert np.max(gap) < 1e-2 * sigma**2


def test_they_share_their_shifts_and_cut_no_more_than_allowed() -> None:
    noise, rate = np.linspace(0.8, 1.6, 9), 0.05
    pairs = pairs_of_steps(steps_of(noise, 24), 60, TAIL)
    uppers = [pair if isinstance(pair, PublicPair) else pair.rank_one for pair, _ in pairs]
    every = np.unique(np.concatenate([pair.shift for pair in uppers]))
    assert every.size < 2 * max(pair.shift.size for pair in uppers)
    for (_, lower), upper in zip(pairs, uppers, strict=True):
        assert np.all(np.isin(lower.shift, every))
        assert rate * upper.infinite <= TAIL * (1.0 + 1e-12)
        assert upper.mass.sum() + upper.infinite == pytest.approx(1.0, abs=1e-14)
        assert 1.0 - 2e-9 < lower.mass.sum() < 1.0


def test_only_steps_alike_share_and_only_where_their_laws_are_convex() -> None:
    noisy, quiet = steps_of(np.linspace(0.9, 1.5, 5), 24), steps_of(np.linspace(0.3, 0.4, 5), 24)
    others = [
        DPSGD(1.0, 0.05).step(),
        *steps_of([1.0, 1.1], 8),
        *steps_of([1.0, 1.1], 8, secret=True),
        *steps_of([1.0, 1.1], 24, analysis="envelope"),
    ]
    families = [family for family in _common_bins._families([*noisy, *quiet, *others], TAIL) if family]
    assert families == [noisy]
    alone = pairs_of_steps(others, 40, TAIL)
    for (upper, lower), step in zip(alone, others, strict=True):
        assert repr(step.pairs(40, TAIL)) == repr((upper, lower))


def test_a_spread_law_would_be_no_lower_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        _common_bins, "_pulled_in", lambda edges, mass, mean: at_ends(mass, (mean - edges[:-1]) / np.diff(edges))
    )
    (_, lower), *_ = pairs_of_steps(steps_of(np.linspace(0.9, 1.5, 5), 24), 40, TAIL)
    s = 0.9**2 * np.linspace(0.5, 2.0, 200)
    assert np.max(puts_of(lower, s) / puts(s, 0.9, 24)) > 1.0 + 1e-6


def at_ends(mass: np.ndarray, share: np.ndarray) -> np.ndarray:
    """Of each bin's mass so much at its right end, the rest at its left one."""
    atoms = np.zeros((mass.shape[0], mass.shape[1] + 1))
    atoms[:, :-1] += mass * (1.0 - share)
    atoms[:, 1:] += mass * share
    return atoms


@pytest.mark.parametrize("norms", [Hutchinson(24, secret=False), HutchPlusPlus(24, 6, secret=False)])
def test_answers_agree_with_separate_bins(norms: Norms, monkeypatch: pytest.MonkeyPatch) -> None:
    noise = np.linspace(0.75, 1.4, 6)
    run = compose([(DPSGD(float(sigma), 0.03, norms), 20) for sigma in noise])
    together = run.epsilon_by_direction(1e-6)
    monkeypatch.setattr(_common_bins, "_FEWEST", 100)
    apart = run.epsilon_by_direction(1e-6)
    for direction, bounds in together.items():
        assert bounds.is_narrow
        assert bounds.lower <= apart[direction].upper
        assert apart[direction].lower <= bounds.upper


def test_steep_shifts_keep_their_excess() -> None:
    """With little noise h_ε is concave at some shifts: those steps still get the curve of (M2)."""
    pairs = pairs_of_steps(steps_of(np.linspace(0.7, 0.75, 4), 24, rate=0.03), 60, 1e-12)
    assert any(isinstance(upper, TightPair) for upper, _ in pairs)


def test_where_curves_are_concave_all_mass_moves_right() -> None:
    """There a law at the ends of the bins has the smaller expectation, and may be the true one."""
    edges = np.geomspace(0.005, 2.0, 25)
    mass = np.full((1, 24), 1.0 / 24)
    mean = (edges[1:] + edges[:-1]) / 2
    lower = _common_bins._pulled_in(edges, mass, mean[None])[0]
    bins_left = edges[:-1] < 1.0 / 12.0
    share = np.where(bins_left, 0.5, 0.0)
    for epsilon in (0.0, 0.5, 2.0):
        at_edges, at_mean = hockey_stick(epsilon, edges), hockey_stick(epsilon, mean)
        left, right = at_edges[:-1], at_edges[1:]
        truth = mass[0] @ np.where(bins_left, share * left + (1 - share) * right, at_mean)
        assert lower @ at_edges <= truth
    assert np.all(lower[: np.count_nonzero(bins_left)] == np.append(0.0, mass[0, : np.count_nonzero(bins_left) - 1]))


def hockey_stick(epsilon: float, v: np.ndarray) -> np.ndarray:
    """h_ε at V = v."""
    shift = v**-0.5
    return ndtr(shift / 2 - epsilon / shift) - np.exp(epsilon) * ndtr(-shift / 2 - epsilon / shift)
