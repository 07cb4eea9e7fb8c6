"""(B4), (M1) and (M2): valid for gradients that the rank-one law does not cover, and no wider than they have to be."""

from __future__ import annotations

import itertools
from functools import partial

import mpmath
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import integrate
from scipy.special import ndtr
from scipy.stats import chi2

from dprmt.accounting import DPSGD, Hutchinson
from dprmt.accounting.laws._gamma_mixture import NormRatioBins
from dprmt.accounting.pairs._pairs import Mirrored, PublicPair, discretize_step, from_above
from dprmt.accounting.pairs._tight_pair import TightPair, inflection_shift, keep_the_envelope, majorant_excess


def hockey_stick(epsilon: float, x):
    mu = 1 / np.sqrt(x)
    return ndtr(mu / 2 - epsilon / mu) - np.exp(epsilon) * ndtr(-mu / 2 - epsilon / mu)


def majorant(epsilon: float, x):
    """ĥ_ε by (T1) and (T2), literally, at σ = 1."""
    mu0 = float(inflection_shift(np.array(epsilon)))
    x0 = mu0**-2
    slope = -0.5 * mu0**3 * np.exp(-((epsilon / mu0 - mu0 / 2) ** 2) / 2) / np.sqrt(2 * np.pi)
    return np.where(x >= x0, hockey_stick(epsilon, np.maximum(x, x0)), hockey_stick(epsilon, x0) + slope * (x - x0))


def sampled(epsilon: float, q: float, direction: str, curve) -> float:
    """δ of the sampled step from the curve of the unsampled one at every ε ≥ 0, by (B3)."""
    alpha = np.exp(epsilon if direction == "remove" else -epsilon)
    ratio = 1 + (alpha - 1) / q
    if ratio >= 1:
        value = q * curve(np.log(ratio))
    elif ratio > 0:
        value = q * (1 - ratio + ratio * curve(-np.log(ratio)))
    else:
        value = 1 - alpha
    return value if direction == "remove" else 1 - 1 / alpha + value / alpha


@given(st.floats(1e-3, 0.4), st.floats(1.0, 4.0), st.floats(0.0, 1.0), st.floats(0.0, 30.0))
@settings(max_examples=200)
def test_atoms_of_a_bin_bound_every_law_in_it_at_every_epsilon(left, factor, share, epsilon) -> None:
    """(B4) at σ = 1, where h_ε may be concave, convex or both on the bin; worst laws are two-point ones."""
    right = left * factor * (1 + 1e-6)
    inner = left + np.array([0.0, 0.3, 1.0]) * share * (right - left)
    outer = right - np.array([0.0, 0.3, 1.0]) * (1 - share) * (right - left)
    for a, b in zip(inner, outer, strict=True):  # two-point laws of the same mean
        mean = left + share * (right - left)
        weight = (mean - a) / (b - a) if b > a else 1.0
        truth = (1 - weight) * hockey_stick(epsilon, a) + weight * hockey_stick(epsilon, b)
        law = NormRatioBins(*(np.array([v]) for v in (left, right, 1.0, mean)), below=0.0)
        above, below = law.spread(1 / 12), law.concentrate(1 / 12)
        assert above[1] @ hockey_stick(epsilon, above[0]) >= truth - 1e-14
        assert below[1] @ hockey_stick(epsilon, below[0]) <= truth + 1e-14


def test_both_sides_of_a_bin_are_of_second_order() -> None:
    """Half the width, a quarter of the gap, also where h_ε is concave: at σ = 1, x = 0.04 and ε = 0."""

    def gap(width: float) -> float:
        law = NormRatioBins(*(np.array([v]) for v in (0.04, 0.04 + width, 1.0, 0.04 + width / 2)), below=0.0)
        above, below = law.spread(1 / 12), law.concentrate(1 / 12)
        return float(above[1] @ hockey_stick(0.0, above[0]) - below[1] @ hockey_stick(0.0, below[0]))

    assert gap(1e-3) == pytest.approx(4 * gap(5e-4), rel=0.05)


@pytest.mark.parametrize("epsilon", [0.0, 0.3, 2.0, 30.0, 1e3])
def test_the_majorants_excess(epsilon: float) -> None:
    for shift in float(inflection_shift(np.array(epsilon))) * np.array([1.0001, 1.3, 3.0, 50.0]):
        literal = float(majorant(epsilon, shift**-2) - hockey_stick(epsilon, shift**-2)) if epsilon < 500 else 0.0
        excess = float(majorant_excess(np.array([epsilon]), np.array([shift]))[0, 0])
        assert literal <= excess <= max(literal, 0.2 * shift) + 1e-12
        if epsilon < 100:
            assert excess == pytest.approx(literal, abs=1e-12)


@pytest.mark.parametrize("epsilon", [1e3, 1e6, 1e10])
def test_the_majorants_excess_is_rounded_up_at_large_losses(epsilon: float) -> None:
    at = float(inflection_shift(np.array([epsilon]))[0])
    shifts = at * np.array([1.0 + 1e-9, 1.0001, 1.01, 1.3, 3.0])
    found = majorant_excess(np.array([epsilon]), shifts)[0]
    with mpmath.workdps(60):
        literal = [float(_excess_in_digits(mpmath.mpf(epsilon), mpmath.mpf(at), mpmath.mpf(mu))) for mu in shifts]
    assert np.all(np.array(literal) <= found)
    assert found == pytest.approx(literal, rel=1e-12, abs=2e-14 * at)


def _excess_in_digits(epsilon, at, mu):
    def curve(shift):
        offset, across = epsilon / shift - shift / 2, epsilon / shift + shift / 2
        # e^ε Φ(-across) by its asymptotic series.
        series = sum((-1) ** n * mpmath.fac2(2 * n - 1) / across ** (2 * n + 1) for n in range(1, 8)) + 1 / across
        return mpmath.ncdf(-offset) - mpmath.npdf(offset) * series

    slope = at / 2 * mpmath.npdf(epsilon / at - at / 2)
    return curve(at) + slope * (1 - (at / mu) ** 2) - curve(mu)


def upper_step(sigma: float, q: float, probes: int, direction: str):
    pair, _ = DPSGD(sigma, q, Hutchinson(probes, secret=False)).step().pairs(512, 1e-13)
    assert isinstance(pair, TightPair)
    seen = pair if direction == "remove" else Mirrored(pair, pair.slack)
    low, high = seen.loss_range(1e-13)
    mesh = 5e-3
    pmf = discretize_step(seen, (max(low, -60.0), high), mesh, 8.0, "upper")
    return lambda e: float(pmf.mass @ np.maximum(1 - np.exp(np.minimum(e - pmf.losses, 0.0)), 0.0)) + pmf.infinite


@pytest.mark.parametrize("direction", ["remove", "add"])
@pytest.mark.parametrize(("sigma", "q", "probes"), [(0.25, 1.0, 64), (0.2, 0.3, 256), (0.5, 0.05, 4), (1.0, 1.0, 2)])
def test_no_spectrum_is_above_and_it_is_attained(sigma: float, q: float, probes: int, direction: str) -> None:
    """(M2): above any constant part and equal spectra, where rank one alone is too small, and no higher."""
    delta = upper_step(sigma, q, probes, direction)

    def expectation(function, constant: float = 0.0, rank: int = 1) -> float:
        dof = probes * rank
        value = lambda x: chi2.pdf(x * dof, dof) * dof * function(sigma**2 * (constant + (1 - constant) * x))  # noqa: E731
        span = [chi2.ppf(p, dof) / dof for p in (1e-30, 1e-3, 0.2, 0.8, 1 - 1e-14)]
        return sum(integrate.quad(value, a, b)[0] for a, b in itertools.pairwise(span))

    for epsilon in (0.0, 0.2, 1.0, 4.0, 12.0):
        answer = delta(epsilon)
        truths = [
            sampled(epsilon, q, direction, lambda e, h=constant: expectation(partial(hockey_stick, e), h))
            for constant in (0.0, 0.5, 1.0)
        ]
        truths.append(sampled(epsilon, q, direction, lambda e: expectation(partial(hockey_stick, e), rank=3)))
        assert answer >= max(truths) - 1e-9
        bound = sampled(epsilon, q, direction, lambda e: expectation(partial(majorant, e)))
        assert answer <= min(bound, 1.0) * 1.01 + 1e-6
        if sigma == 0.25 and epsilon < 1:
            assert max(truths) > truths[0] + 1e-4  # rank one alone is not the worst here


@given(st.lists(st.tuples(st.floats(0.05, 1.5), st.floats(0.0, 1.0)), min_size=3, max_size=12))
def test_taking_out_negative_masses_is_the_lower_convex_envelope(points) -> None:
    """Against the greatest convex minorant, computed chord by chord."""
    nodes = np.cumsum([gap for gap, _ in points]) - 2.0
    value = np.array([height for _, height in points])
    alpha = np.exp(nodes)
    slope = np.append(np.diff(np.append(1.0, value)) / np.diff(np.append(0.0, alpha)), 0.0)
    unit = np.minimum(nodes, 0.0)
    mass = alpha * np.diff(slope) * np.exp(-unit)
    before = mass.copy()
    missing, beyond = keep_the_envelope(nodes, mass)
    assert np.all(mass >= 0)
    infinite = value[-1] + beyond
    got = np.array([(mass * np.exp(unit)) @ np.maximum(1 - a / alpha, 0.0) + infinite for a in alpha])
    np.testing.assert_allclose(got, lower_hull(alpha, value), atol=1e-9)
    total_q = np.sum(mass * np.exp(unit - nodes)) + missing
    assert total_q == pytest.approx(np.sum(before * np.exp(unit - nodes)), abs=1e-9)


def lower_hull(alpha, value):
    """The lower convex envelope of (0, 1) and the points, flat beyond the last: chord by chord."""
    x, y = np.append(0.0, alpha), np.append(1.0, value)
    chord = lambda i, j, k: y[i] + (y[j] - y[i]) * (x[k] - x[i]) / (x[j] - x[i])  # noqa: E731
    return [
        min([y[k], *y[:k], *(chord(i, j, k) for i in range(k) for j in range(k + 1, x.size))]) for k in range(1, x.size)
    ]


ATOMS = st.lists(st.tuples(st.floats(0.3, 60.0), st.floats(0.1, 1.0)), min_size=1, max_size=4)


@given(ATOMS, st.floats(0.0, 0.3), st.sampled_from([0.05, 0.5, 1.0]), st.integers(3, 9), st.integers(-4, 0))
@settings(max_examples=100)
def test_the_curve_at_the_nodes_is_the_envelope_of_the_points(atoms, infinite, q, count, first) -> None:
    """(M1) on few nodes that end where much is left, so that both ends decide: masses between, below and beyond."""
    shift, weight = np.array(atoms).T
    mass = (1.0 - infinite) * weight / weight.sum()
    pair = TightPair(PublicPair(shift, mass, q, infinite))
    at_zero = partial(majorant, x=np.array(0.0))  # where Z = ∞

    def law(epsilon: float) -> float:
        return float(majorant(epsilon, shift**-2.0) @ mass + infinite * max(float(at_zero(epsilon)), 1.0))

    index = np.arange(first, first + count)
    nodes = 0.7 * index
    cells, alpha = pair.cells(nodes), np.exp(nodes)
    points = np.array([sampled(loss, q, "remove", law) for loss in nodes])
    # All beyond the last node counts as infinite, and in the other direction all below the first one.
    removed = np.array(lower_hull(alpha, points + alpha * cells.q_above))
    exact = {"remove": removed, "add": 1.0 + (removed - 1.0 + cells.p_below) / alpha - cells.q_above}
    laws = {"remove": from_above(index, 0.7, cells), "add": from_above(-index[::-1], 0.7, cells.mirrored())}
    for direction, pmf in laws.items():
        losses = nodes if direction == "remove" else -nodes
        rises = np.maximum(-np.expm1(np.minimum(losses[:, None] - pmf.losses, 0.0)), 0.0)
        np.testing.assert_allclose(rises @ pmf.mass + pmf.infinite, exact[direction], rtol=1e-9, atol=1e-9)
