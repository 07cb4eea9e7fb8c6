"""Proposition I.1 and Corollary I.2 of arXiv:2510.01137v3: what holds, what is tight, what fails."""

from __future__ import annotations

import numpy as np
import pytest
import scipy
import torch
from hypothesis import given
from hypothesis import strategies as st

from dprmt.spectra import adam_bound_gap, adam_improvement_bound
from tests.spectra.simulation import SEEDS, rotation

DIMENSIONS = st.integers(1, 6)
STEPS = st.floats(1e-4, 1e2)
SPREADS = st.floats(1, 100)


def problem(seed, d, spread=10.0):
    """g, s, the eigenvalues of P with extremes 1 and ``spread``, and a positive semidefinite H."""
    rng = np.random.default_rng(seed)
    g, s = rng.standard_normal((2, d))
    p = np.concatenate([[1.0, spread], rng.uniform(1, spread, d)])[:d]
    Q = rotation(rng, d)
    return rng, g, s, p, Q * rng.uniform(0, 2, d) @ Q.T


def literal_improvement(g, s, P, H, step):
    """f(x) - f(x - αPs) for f(x) = ½(x - x*)ᵀH(x - x*), with x* anywhere such that H(x - x*) = g."""
    loss = lambda move: g @ move + move @ H @ move / 2  # noqa: E731
    return loss(np.zeros_like(g)) - loss(-step * P @ s)


def literal_printed_bound(g, s, p, H, step):
    norm_g, norm_s = np.linalg.norm(g), np.linalg.norm(s)
    cosine = g @ s / (norm_g * norm_s)
    penalty = step**2 / 2 * np.linalg.eigvalsh(H)[-1] * max(p) ** 2 * norm_s**2
    return step * min(p) * norm_g * norm_s * cosine - penalty


@given(SEEDS, DIMENSIONS, STEPS, SPREADS, st.booleans())
def test_bounds_hold(seed, d, step, spread, diagonal):
    """Δ(s) >= α‖g‖‖s‖(½(p_max + p_min)cos - ½(p_max - p_min)) - ½α²λ_max(H)p_max²‖s‖² for all g, s, P, H.

    The weighted bound, α‖g‖_P‖s‖_P cos_P - ½α²λ_max(H)p_max‖s‖_P², is valid and never below that one.
    """
    rng, g, s, p, H = problem(seed, d, spread)
    Q = np.eye(d) if diagonal else rotation(rng, d)
    P = Q * p @ Q.T
    P = (P + P.T) / 2
    result = adam_improvement_bound(g, s, p if diagonal else P, H, step)
    slack = 1e-12 * (abs(result.bound) + abs(result.improvement) + step * spread * np.linalg.norm(g))
    assert result.improvement == pytest.approx(literal_improvement(g, s, P, H, step), abs=slack)
    assert result.bound <= result.printed_bound + slack
    assert result.printed_bound == pytest.approx(literal_printed_bound(g, s, p, H, step), abs=slack)
    norms, λ = np.sqrt([g @ P @ g, s @ P @ s]), np.linalg.eigvalsh(H)[-1]
    literal = step * norms[0] * norms[1] * result.weighted_cosine - step**2 / 2 * λ * max(p) * norms[1] ** 2
    assert result.weighted_bound == pytest.approx(literal, abs=slack)
    assert result.weighted_cosine == pytest.approx(g @ P @ s / norms.prod(), abs=1e-12)
    assert result.bound - slack <= result.weighted_bound <= result.improvement + slack


@given(SEEDS, st.integers(2, 6), STEPS, SPREADS)
def test_weighted_bound_is_attained(seed, d, step, spread):
    """By s along the top eigenvector e of P and H = λeeᵀ, for every g: so at every cos_P in [-1, 1]."""
    rng, g, _, p, _ = problem(seed, d, spread)
    Q = rotation(rng, d)
    P = Q * p @ Q.T
    e = Q[:, np.argmax(p)]
    result = adam_improvement_bound(g, rng.uniform(0.1, 3) * e, (P + P.T) / 2, 0.7 * np.outer(e, e), step)
    scale = abs(result.improvement) + step * spread * np.linalg.norm(g) + step**2 * spread**2
    assert result.improvement == pytest.approx(result.weighted_bound, abs=1e-10 * scale)


@given(SEEDS, st.integers(2, 6), STEPS, SPREADS)
def test_bound_is_attained_by_a_reflection(seed, d, step, spread):
    """For every g and s some P with spectrum in [1, spread] makes the bound an equality at H = 0."""
    _, g, s, _, H = problem(seed, d)
    u, v = g / np.linalg.norm(g), s / np.linalg.norm(s)
    w = (u + v) / np.linalg.norm(u + v)
    reflection = np.eye(d) - 2 * np.outer(w, w)  # takes v to -u
    P = (1 + spread) / 2 * np.eye(d) + (spread - 1) / 2 * reflection
    result = adam_improvement_bound(g, s, P, 0 * H, step)
    scale = step * spread * np.linalg.norm(g) * np.linalg.norm(s)
    assert result.improvement == pytest.approx(result.bound, abs=1e-10 * scale)


@given(SEEDS, st.integers(1, 6), STEPS, SPREADS)
def test_bound_is_attained_by_a_diagonal_preconditioner(seed, d, step, spread):
    """With |s_i| = |g_i|, p_min where the signs agree and else p_max, the bound is an equality at H = 0."""
    rng, g, _, _, _ = problem(seed, d)
    signs = rng.choice([-1.0, 1.0], d)
    g, signs = np.append(g, [1.0, 2.0]), np.append(signs, [1.0, -1.0])
    p = np.where(signs > 0, 1.0, spread)
    result = adam_improvement_bound(g, signs * g, p, np.zeros((d + 2, d + 2)), step)
    assert result.improvement == pytest.approx(result.bound, abs=1e-12 * step * spread * (g @ g))


@given(SEEDS, DIMENSIONS, STEPS, st.floats(0.1, 10), st.floats(0, 5))
def test_all_bounds_are_equalities_for_scalar_preconditioner_and_curvature(seed, d, step, p, λ):
    """With P = pI and H = λI: Δ(s) = bound = printed bound = αp gᵀs - ½α²λp²‖s‖²."""
    _, g, s, _, _ = problem(seed, d)
    result = adam_improvement_bound(g, s, np.full(d, p), λ * np.eye(d), step)
    expected = step * p * g @ s - step**2 / 2 * λ * p**2 * s @ s
    scale = step * p * np.linalg.norm(g) * np.linalg.norm(s) + step**2 * λ * p**2 * s @ s
    for value in (result.improvement, result.bound, result.printed_bound, result.weighted_bound):
        assert value == pytest.approx(expected, abs=1e-12 * scale)
    assert result.printed_bound_applies


def test_printed_bound_fails_and_says_so():
    g, s, p = np.array([2.0, -1.0]), np.array([1.0, 1.0]), np.array([1.0, 10.0])
    result = adam_improvement_bound(g, s, p, np.eye(2), 1e-6)
    assert result.improvement == pytest.approx(-8e-6, rel=1e-4)
    assert result.printed_bound == pytest.approx(1e-6, rel=1e-3)
    assert result.bound <= result.improvement < 0 < result.printed_bound
    assert not result.printed_bound_applies


@given(SEEDS, DIMENSIONS, STEPS, SPREADS)
def test_printed_bound_holds_where_it_is_said_to_apply(seed, d, step, spread):
    """If gᵀPs >= p_min gᵀs, as when no sign of s opposes that of g, the printed bound holds."""
    _, g, s, p, H = problem(seed, d, spread)
    for direction in (s, np.abs(s) * np.sign(g), g):
        result = adam_improvement_bound(g, direction, p, H, step)
        slack = 1e-12 * (abs(result.printed_bound) + step * spread * np.linalg.norm(g))
        assert result.printed_bound_applies or direction is s
        assert not result.printed_bound_applies or result.printed_bound <= result.improvement + slack


@given(SEEDS, DIMENSIONS, STEPS, SPREADS, st.booleans())
def test_gap_is_the_difference_of_the_bounds(seed, d, step, spread, printed):
    """At equal norms bound(s₁) - bound(s₂) = α·slope·‖g‖r(cos₁ - cos₂), to 1e-12 of the bounds."""
    rng, g, first, p, H = problem(seed, d, spread)
    second = rng.standard_normal(d)
    second *= np.linalg.norm(first) / np.linalg.norm(second)
    one, two = (adam_improvement_bound(g, s, p, H, step) for s in (first, second))
    values = (one.printed_bound, two.printed_bound) if printed else (one.bound, two.bound)
    gap = adam_bound_gap(g, first, second, p, step, printed=printed)
    assert gap == pytest.approx(values[0] - values[1], abs=1e-12 * (abs(values[0]) + abs(values[1])))
    aligned = g @ first > g @ second
    assert (gap > 0) == aligned or gap == pytest.approx(0, abs=1e-12)


@given(SEEDS, st.integers(2, 6))
def test_operators_and_libraries_agree(seed, d):
    """A matrix, a callable, a linear operator and torch tensors give the same answer."""
    _, g, s, p, H = problem(seed, d)
    λ = float(np.linalg.eigvalsh(H)[-1])
    expected = adam_improvement_bound(g, s, p, H, 0.1)
    others = [
        adam_improvement_bound(g, s, np.diag(p), H, 0.1),
        adam_improvement_bound(g, s, p, lambda v: H @ v, 0.1, largest_curvature=λ),
        adam_improvement_bound(g, s, p, scipy.sparse.linalg.aslinearoperator(H), 0.1, largest_curvature=λ),
        adam_improvement_bound(*map(torch.from_numpy, (g, s, p, H)), 0.1),
    ]
    for other in others:
        assert other.improvement == pytest.approx(expected.improvement, rel=1e-10, abs=1e-12)
        assert other.bound == pytest.approx(expected.bound, rel=1e-10, abs=1e-12)
        assert other.printed_bound_applies == expected.printed_bound_applies
