"""Tilted FFT composition against exact convolutions, with its error bound: sound, and not absurd."""

from __future__ import annotations

from fractions import Fraction

import mpmath as mp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dprmt.accounting.composition import _compose
from dprmt.accounting.composition._compose import DeltaCurve, Question, best_tilt, composed, log_kappa, log_mgf, window
from dprmt.accounting.pairs._pairs import LossPMF

MESH = 0.125

# ------------------------------------------------------------------------------------------ exact references


def pmf(index, mass, mesh=MESH, infinite=0.0) -> LossPMF:
    return LossPMF(np.array(index, dtype=np.int64), np.array(mass, dtype=np.float64), mesh, infinite)


def exact_law(phases) -> dict[int, Fraction]:
    """The finite part of the composed loss by schoolbook convolution of fractions: index ↦ probability."""
    law = {0: Fraction(1)}
    for step, count in phases:
        masses = [Fraction(float(m)) for m in step.mass]
        for _ in range(count):
            after: dict[int, Fraction] = {}
            for place, weight in law.items():
                for i, m in zip(step.index.tolist(), masses, strict=True):
                    after[place + i] = after.get(place + i, Fraction(0)) + weight * m
            law = after
    return {place: weight for place, weight in law.items() if weight}


def exact_infinite(phases) -> mp.mpf:
    kept = mp.mpf(1)
    for step, count in phases:
        kept *= (1 - mp.mpf(float(step.infinite))) ** count
    return 1 - kept


def exact_delta(law, mesh, epsilon, infinite) -> mp.mpf:
    """E (1 - e^{ε - S})₊ in 60 digits, plus the infinite part."""
    total = mp.mpf(0)
    for place, weight in law.items():
        excess = mp.mpf(place) * mp.mpf(mesh) - mp.mpf(epsilon)
        if excess > 0:
            total += mp.mpf(weight.numerator) / mp.mpf(weight.denominator) * -mp.expm1(-excess)
    return total + infinite


def curve_of(phases, question: Question) -> DeltaCurve:
    tilt = best_tilt(phases, question)[0]
    return DeltaCurve(question, composed(phases, tilt, window(phases, tilt)))


probabilities = st.one_of(st.floats(1e-3, 1.0), st.floats(-30, -3).map(lambda x: 10.0**x))


@st.composite
def steps(draw, largest=8):
    """One step's loss with 2 to 6 values; the total is at most 1."""
    count = draw(st.integers(2, 6))
    index = draw(st.lists(st.integers(-largest, largest), min_size=count, max_size=count, unique=True))
    weight = np.array(draw(st.lists(probabilities, min_size=count, max_size=count)))
    share = draw(st.sampled_from([1.0, 0.7]))
    infinite = draw(st.sampled_from([0.0, 1e-25, 1e-3]))
    return pmf(np.sort(index), share * (1 - infinite) * weight / weight.sum(), infinite=infinite)


schedules = st.lists(st.tuples(steps(), st.integers(1, 4)), min_size=1, max_size=3).filter(
    lambda phases: sum(count for _, count in phases) <= 7
)

# ------------------------------------------------------------------------------------------ against exact convolution


@given(schedules, st.floats(0.0, 1.2))
@settings(max_examples=40)
def test_delta_bounds_hold_the_exact_delta_and_are_narrow(phases, share):
    """Low ≤ δ(ε) ≤ high against fractions; where a moderate tilt decides, to within 1e-8 of the Chernoff bound."""
    mp.mp.dps = 60
    law, infinite = exact_law(phases), exact_infinite(phases)
    epsilon = share * max(max(law), 1) * MESH
    exact = exact_delta(law, MESH, epsilon, infinite)
    low, high = curve_of(phases, Question(epsilon=epsilon)).delta_bounds(epsilon)
    assert low <= exact * (1 + mp.mpf("1e-15"))
    assert high >= min(exact, 1) * (1 - mp.mpf("1e-15"))
    tilt = best_tilt(phases, Question(epsilon=epsilon))[0]
    if tilt * MESH < 3 and sum(w for place, w in law.items() if place * MESH <= epsilon) > 0.01:
        log_chernoff = float(log_mgf(phases, np.array([tilt]))[0] + log_kappa(np.array(tilt)) - tilt * epsilon)
        assert high - low - float(infinite) <= 1e-8 * np.exp(min(log_chernoff, 0.0)) + 1e-15 * float(infinite)


@pytest.mark.parametrize("delta", [1e-3, 1e-8, 1e-15, 1e-22, 1e-30])
@pytest.mark.parametrize("infinite", [0.0, 1e-34])
def test_epsilon_bounds_hold_down_to_tiny_deltas(delta, infinite):
    """δ(ε) exactly on both sides of δ, for δ down to 1e-30 where double precision alone has no digits."""
    mp.mp.dps = 60
    phases = [
        (pmf([-2, -1, 0, 1, 2, 3, 7], [0.1, 0.3, 0.25, 0.2, 0.1, 0.05 - 1e-6, 1e-6], infinite=infinite), 9),
        (pmf([-3, 1, 4], [0.3, 0.699, 1e-3]), 4),
    ]
    law, infinite_part = exact_law(phases), exact_infinite(phases)
    curve = curve_of(phases, Question(delta))
    above, below = curve.epsilon(delta, "upper"), curve.epsilon(delta, "lower")
    assert below <= above
    assert exact_delta(law, MESH, above, infinite_part) <= mp.mpf(delta) * (1 + mp.mpf("1e-14"))
    assert exact_delta(law, MESH, below, infinite_part) >= mp.mpf(delta) * (1 - mp.mpf("1e-14")) - infinite_part
    assert above - below <= 1e-5 + 10 * 13 * infinite / delta


def on_common_nodes(phases):
    """The same laws, all on the nodes that any of them has: composed together then."""
    index = np.unique(np.concatenate([law.index for law, _ in phases]))
    common = []
    for law, count in phases:
        mass = np.zeros(index.size)
        mass[np.searchsorted(index, law.index)] = law.mass
        common.append((LossPMF(index, mass, law.mesh, law.infinite), count))
    return common


@given(schedules, st.floats(0.0, 40.0), st.booleans())
@settings(max_examples=60)
def test_the_error_bound_covers_the_actual_error_in_the_tilted_law(phases, tilt, together):
    """Σ |computed - exact| over all places ≤ error, in the tilted law; and error is at most 1e-9 here."""
    mp.mp.dps = 50
    phases = on_common_nodes(phases) if together else phases
    loss = composed(phases, tilt, window(phases, tilt))
    law = exact_law(phases)
    normaliser = mp.e ** mp.mpf(loss.log_scale)
    exact = {
        place: mp.mpf(w.numerator) / w.denominator * mp.e ** (mp.mpf(tilt) * place * mp.mpf(MESH)) / normaliser
        for place, w in law.items()
    }
    first = round(loss.losses[0] / MESH)
    inside = [exact.pop(first + i, mp.mpf(0)) for i in range(loss.mass.size)]
    outside = float(sum(exact.values()))
    distance = float(sum(abs(mp.mpf(float(m)) - e) for m, e in zip(loss.mass, inside, strict=True)))
    assert distance + outside <= loss.error
    assert loss.error <= 1e-9


@given(schedules)
def test_infinite_mass_composes_as_the_complement_of_never(phases):
    """1 - Π (1 - p_i)^{n_i} to relative 1e-14, also for p = 1e-25."""
    tilt = best_tilt(phases, Question(epsilon=0.5))[0]
    loss = composed(phases, tilt, window(phases, tilt))
    mp.mp.dps = 60
    assert loss.infinite == pytest.approx(float(exact_infinite(phases)), rel=1e-14)


@pytest.mark.parametrize("count", [10**3, 10**5, 10**6])
def test_many_steps_match_the_binomial_law(count):
    """A two-valued loss composes to a binomial one: δ(ε) in closed form, for up to a million steps."""
    mp.mp.dps = 40
    p, size = 0.25, 2.0**-12
    phases = [(pmf([-1, 1], [1 - p, p], mesh=size), count)]
    mean, spread = (2 * p - 1) * count, 2 * np.sqrt(p * (1 - p) * count)
    ups = np.arange(0, count + 1)
    epsilon = float(size * (mean + 5 * spread))
    relevant = ups[(2 * ups - count) * size > epsilon][: int(40 * spread) + 50]
    delta, log_odds = mp.mpf(0), mp.log(mp.mpf(p) / (1 - p))
    first = int(relevant[0])
    log_weight = mp.log(mp.binomial(count, first)) + first * mp.log(p) + (count - first) * mp.log(1 - p)
    for up in relevant.tolist():
        delta += mp.exp(log_weight) * -mp.expm1(mp.mpf(epsilon) - (2 * up - count) * mp.mpf(size))
        log_weight += mp.log(mp.mpf(count - up) / (up + 1)) + log_odds if up < count else 0
        if log_weight < -500:
            break
    curve = curve_of(phases, Question(epsilon=epsilon))
    low, high = curve.delta_bounds(epsilon)
    assert low <= delta <= high
    assert high - low <= 1e-4 * float(delta)


# ------------------------------------------------------------------------------------------ heterogeneous composition


def test_phases_of_very_different_size_meet_on_one_mesh():
    """A single large step and a thousand small ones, exactly: the law of a sum is the convolution."""
    mp.mp.dps = 50
    small = pmf([-1, 1], [0.5, 0.5], mesh=1e-3)
    large = pmf([-3000, 0, 4000], [0.2, 0.5, 0.3], mesh=1e-3)
    phases = [(small, 200), (large, 1)]
    law = exact_law(phases)
    for epsilon in (0.01, 3.9, 4.01):
        exact = exact_delta(law, 1e-3, epsilon, mp.mpf(0))
        low, high = curve_of(phases, Question(epsilon=epsilon)).delta_bounds(epsilon)
        assert low <= exact <= high
        assert high - low <= 1e-6 * float(exact) + 1e-12


# ------------------------------------------------------------------------------------------ tilt and window


@given(schedules)
def test_the_window_leaves_out_no_more_than_allowed(phases):
    """Tilted mass outside the window is at most 1e-10 on each side, by exact convolution."""
    mp.mp.dps = 40
    tilt = best_tilt(phases, Question(epsilon=1.0))[0]
    span = window(phases, tilt)
    law = {
        k: mp.mpf(w.numerator) / w.denominator * mp.e ** (mp.mpf(tilt) * k * MESH) for k, w in exact_law(phases).items()
    }
    total = sum(law.values())
    assert sum(w for k, w in law.items() if k < span.first) <= total * mp.mpf("1e-10")
    assert sum(w for k, w in law.items() if k >= span.first + span.size) <= total * mp.mpf("1e-10")


@given(steps(), st.integers(1, 50), st.floats(1e-12, 0.1))
def test_the_tilt_is_where_chernoff_is_best(step, count, delta):
    """No other tilt on a fine grid improves the Chernoff bound on ε noticeably."""
    phases = [(step, count)]

    def objective(tilts):
        return (log_mgf(phases, tilts) + log_kappa(tilts) - np.log(delta)) / tilts

    tilt = best_tilt(phases, Question(delta))[0]
    center = 1 / _compose.loss_deviation(phases)
    best = float(np.min(objective(np.geomspace(1e-5 * center, 1e5 * center, 2000))))
    assert float(objective(np.array([tilt]))[0]) <= best + 0.02 * abs(best) + 1e-9


@pytest.mark.parametrize("tilt", [0.0, 1e-3, 0.5, 3.0, 200.0])
def test_kappa_is_the_largest_value_of_its_function(tilt):
    """Log κ(λ) = max_x -λx + log(1 - e^{-x}), on a fine grid and not below it."""
    x = np.geomspace(1e-8, 1e5, 400_001)
    largest = float(np.max(-tilt * x + np.log(-np.expm1(-x))))
    assert largest <= float(log_kappa(np.array(tilt))) + 1e-12
    assert largest >= float(log_kappa(np.array(tilt))) - 1e-6


def test_laws_of_very_different_size_on_common_nodes_each_keep_their_mgf():
    """A mass of 1e-300 beside one of 1, tilted by up to e^{700}: no sum underflows or overflows."""
    apart = [(pmf([0, 1600], [1.0 - 1e-9, 1e-9]), 3), (pmf([0, 1600], [1e-300, 0.0]), 2)]
    apart.append((pmf([-1600, 0], [0.5, 0.5]), 1))
    tilts = np.array([0.0, 0.5, 3.0, 3.5])
    assert np.allclose(log_mgf(on_common_nodes(apart), tilts), log_mgf(apart, tilts), rtol=1e-13)


@pytest.mark.parametrize("count", [1, 3])
def test_a_window_holds_the_phases_that_had_no_say_in_its_tilt(count):
    """Of 40 phases every other one chooses; the others reach ten times as far."""
    wide, narrow = np.arange(-50, 51), np.arange(-5, 6)
    index = np.arange(-50, 51)
    phases, exact = [], np.ones(1)
    for phase in range(40):
        reach = wide if phase % 2 else narrow
        mass = np.where(np.isin(index, reach), 1.0 + 0.01 * phase, 0.0)
        phases.append((LossPMF(index, mass / mass.sum(), MESH, 0.0), count))
        for _ in range(count):
            exact = np.convolve(exact, mass / mass.sum())
    win = window(phases, 0.0)
    loss = composed(phases, 0.0, win)
    first = -50 * 40 * count
    kept = exact[win.first - first : win.first - first + win.size]
    assert np.abs(loss.mass - kept).sum() + exact.sum() - kept.sum() <= loss.error <= 1e-9
