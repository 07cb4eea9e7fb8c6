"""The accountant keeps its tolerance, or says that it does not."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from dprmt.accounting import DPSGD, Hutchinson
from dprmt.accounting.basics._bounds import PrivacyBounds, worst_of
from dprmt.accounting.composition._curve import EpsilonAtDelta
from dprmt.accounting.composition._solve import Level, _solve_at_level, interval
from dprmt.accounting.pairs._pairs import AtomicPair, Schedule
from dprmt.accounting.pairs._secret_pair import SecretUpperPair

TOLERANCE = 1e-3
SECRET_ENVELOPE: Any = {"analysis": "envelope", "secret": True}


def R(sigma: float, rate: float, probes: int, **options: Any) -> DPSGD:
    return DPSGD(sigma, rate, Hutchinson(probes, **{"secret": False} | options))


def width(bounds: PrivacyBounds) -> float:
    return (bounds.upper - bounds.lower) / max(1.0, bounds.upper)


@pytest.mark.parametrize(
    ("mechanism", "steps", "delta", "low", "high"),
    [
        pytest.param(DPSGD(0.406531, 64 / 42000), 400, 1e-5, 6.69985, 6.69999, id="refinement used to stop at 3%"),
        pytest.param(DPSGD(0.6, 0.01), 2000, 1e-5, 9.95349, 9.95362, id="σ = 0.6"),
        pytest.param(DPSGD(0.4, 0.01), 100, 1e-5, 12.2226, 12.2249, id="σ = 0.4"),
        pytest.param(DPSGD(0.66814, 1.608754e-5), 664055, 2.22613e-9, 0.33792, 0.33801, id="no finer mesh, no gain"),
        pytest.param(R(2.125, 5.316e-4, 28), 111668, 6.06e-12, 0.5777, 0.5801, id="polynomial tail"),
        pytest.param(R(0.997, 4.174e-5, 21), 328, 2.6e-11, 2.58616, 2.58722, id="polynomial tail, small rate"),
        pytest.param(R(16.351, 1.057e-4, 4, **SECRET_ENVELOPE), 1, 4.99e-11, 4.5e-5, 4.7e-5, id="one step"),
        pytest.param(DPSGD(0.4534, 9.455e-6), 39345, 7.42e-9, 2.5559, 2.5563, id="tiny rate"),
        pytest.param(R(0.3, 0.01, 256), 100, 1e-5, 27.6, 27.65, id="many probes, σ = 0.3"),
        pytest.param(R(0.327, 6.6e-5, 1296), 986632, 1e-5, 29.7422, 29.744, id="mesh wider than log(1 - q)"),
        pytest.param(R(0.406531, 64 / 42000, 32), 400, 1e-5, 11.679, 11.683, id="32 probes, σ = 0.41"),
    ],
)
def test_as_narrow_as_asked(mechanism, steps: int, delta: float, low: float, high: float) -> None:
    """Settings that used to stay wide; each holds an independently narrowed interval of the truth."""
    bounds = mechanism.epsilon(steps=steps, delta=delta, tolerance=TOLERANCE)
    assert bounds.lower <= high
    assert low <= bounds.upper
    assert width(bounds) <= TOLERANCE
    assert bounds.is_narrow


def test_where_no_mesh_is_fine_enough_both_ends_are_near() -> None:
    """Rare steps decide; the answer is wide, and says so."""
    low, high = 47.763, 47.780
    bounds = R(0.4096, 3.388e-6, 14).epsilon(steps=618735, delta=3.36e-7, tolerance=TOLERANCE)
    assert 0.95 * low <= bounds.lower <= high
    assert low <= bounds.upper <= 1.05 * high
    assert bounds.is_narrow == (width(bounds) <= TOLERANCE)


def test_what_is_known_of_another_direction_decides_what_is_computed() -> None:
    """Nothing: both sides. That a large ε will do, or any, as of a second analysis: one side, as sharp."""
    schedule: Schedule = [(DPSGD(1.0, 0.01).step(), 1000)]
    question = EpsilonAtDelta(1e-5)
    both = _solve_at_level(Level(schedule, question, "remove", 0.0), enough=0.0)
    above = _solve_at_level(Level(schedule, question, "remove", 0.0), enough=math.inf)
    rough = _solve_at_level(Level(schedule, question, "remove", 0.0), enough=3.0)
    assert set(both) == {"upper", "lower"}
    assert above == {"upper": both["upper"]}
    assert rough == above


def test_a_wide_answer_says_so() -> None:
    """With an estimate near the upper bound, which is where the truth most often is."""
    question = EpsilonAtDelta(1e-5)
    wide = interval(1.0, 2.0, "remove", question, TOLERANCE)
    assert not wide.is_narrow
    assert wide.estimate >= 1.9
    narrow = interval(1.9999, 2.0, "add", question, TOLERANCE)
    assert narrow.is_narrow
    assert narrow.estimate < 1.99998
    assert not interval(1.0, math.inf, "add", question, TOLERANCE).is_narrow
    assert worst_of({"remove": narrow, "add": interval(0.1, 0.5, "add", question, TOLERANCE)}).is_narrow
    assert not worst_of({"remove": wide, "add": narrow}).is_narrow
    assert wide.as_dict()["is_narrow"] is False


def test_losses_beyond_all_windows_are_infinite_from_above() -> None:
    """From below they count as the largest loss of a window that is short enough, or as nothing."""
    pair = AtomicPair(np.array([1e15]), np.ones(1), 0.0)
    level = Level([(DPSGD(1.0, 1.0).step(), 2)], EpsilonAtDelta(1e-3), "remove", 0.0)
    level.pairs = {side: [(pair, 2)] for side in ("upper", "lower")}
    upper, lower = level.curve("upper"), level.curve("lower")
    assert upper.epsilon_above(1e-3) == math.inf
    assert upper.delta_bounds(3.0)[1] == 1.0
    assert 0.0 <= lower.epsilon_below(1e-3) < math.inf
    assert 0.0 <= lower.delta_bounds(3.0)[0] <= 1.0


@pytest.mark.parametrize("below", [0.0, 1e-6, 0.02, 0.05])
def test_no_threshold_lies_where_the_capped_curve_is_one(below: float) -> None:
    """(C6) with its β: between losses log(1 - q) and log(1 - q + q R(c)) there is no outcome."""
    atoms = np.array([0.3, 0.6, 1.0, 1.4])
    pair = SecretUpperPair(1 / (0.3 * np.sqrt(atoms)), np.full(4, (1 - below) / 4), 0.9, below)
    t, _ = pair.thresholds(np.linspace(-2.2, 12.0, 400))
    finite = t[np.isfinite(t)]
    value = pair._uncapped(finite)[0]
    assert np.all(value <= 1 + 1e-9)
    assert np.any(value > 1 - 1e-6)  # the cap is no larger than it has to be
