"""Settings far from the ordinary, or at which an earlier version was wrong: sound, narrow where said, no warning."""

from __future__ import annotations

import math
import time
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from dprmt import ParameterError
from dprmt.accounting import DPSGD, Hutchinson, HutchPlusPlus, LaplaceRelease, ReplaceOne, calibrate, compose
from dprmt.accounting.basics._bounds import PrivacyBounds
from dprmt.accounting.basics._numbers import UnsoundLawError
from dprmt.accounting.composition import _solve as _level
from dprmt.accounting.composition._compose import DeltaCurve, Question, best_tilt, composed, window
from dprmt.accounting.composition._solve import Level, interval, worst_of
from dprmt.accounting.pairs._pairs import AtomicPair, LossCells, from_above, from_below
from dprmt.accounting.pairs._secret_pair import SecretUpperPair

from .oracles.gaussian import gaussian_delta

RATE, TOLERANCE = 2000 / 67349, 1e-3


def public(sigma: float, rate: float, probes: int) -> DPSGD:
    return DPSGD(sigma, rate, Hutchinson(probes, secret=False))


def secret(sigma: float, rate: float, probes: int, **options: Any) -> DPSGD:
    return DPSGD(sigma, rate, Hutchinson(probes, secret=True, **options))


NARROW = {
    "refinement used to stop at 3%": (DPSGD(0.406531, 64 / 42000), 400, 1e-5, 6.69985, 6.69999),
    "σ = 0.6": (DPSGD(0.6, 0.01), 2000, 1e-5, 9.95349, 9.95362),
    "σ = 0.4": (DPSGD(0.4, 0.01), 100, 1e-5, 12.2226, 12.2249),
    "σ = 0.1": (DPSGD(0.1, 0.001), 100, 1e-9, 267.37, 267.37),
    "σ = 1e6": (DPSGD(1e6, RATE), 400, 1e-5, 0, 0),
    "no finer mesh, no gain": (DPSGD(0.66814, 1.608754e-5), 664055, 2.22613e-9, 0.33792, 0.33801),
    "tiny rate": (DPSGD(0.4534, 9.455e-6), 39345, 7.42e-9, 2.5559, 2.5563),
    "polynomial tail": (public(2.125, 5.316e-4, 28), 111668, 6.06e-12, 0.5777, 0.5801),
    "polynomial tail, small rate": (public(0.997, 4.174e-5, 21), 328, 2.6e-11, 2.58616, 2.58722),
    "one step": (secret(16.351, 1.057e-4, 4, analysis="envelope"), 1, 4.99e-11, 4.5e-5, 4.7e-5),
    "many probes, σ = 0.3": (public(0.3, 0.01, 256), 100, 1e-5, 27.6, 27.65),
    "mesh wider than log(1 - q)": (public(0.327, 6.6e-5, 1296), 986632, 1e-5, 29.7422, 29.744),
    "32 probes, σ = 0.41": (public(0.406531, 64 / 42000, 32), 400, 1e-5, 11.679, 11.683),
}
WIDE = {
    "ε near 500": (public(0.5, 0.1, 32), 4500, 1e-5, 400, 700),
    "δ = 1e-18": (secret(1.0, RATE, 32), 400, 1e-18, 11, 12),
    "δ = 1e-18, public": (public(2.0, RATE, 64), 400, 1e-18, 2, 6),
    "q = 1": (public(10.0, 1.0, 32), 400, 1e-5, 10.3, 10.5),
    "q = 1, secret": (secret(10.0, 1.0, 32), 400, 1e-5, 10.2, 10.5),
    "T = 1": (public(1.0, RATE, 32), 1, 1e-5, 0.97, 0.99),
    "T = 1e6": (public(1.0, RATE, 32), 10**6, 1e-5, 990, 1000),
    "T = 1e6, secret": (secret(1.0, RATE, 32), 10**6, 1e-5, 950, 957),
    "σ = 0.3": (public(0.3, RATE, 32), 400, 1e-5, 100, 125),
    "σ = 0.3, exact": (DPSGD(0.3, RATE), 400, 1e-5, 75, 125),
    "σ = 100": (public(100.0, RATE, 32), 400, 1e-5, 0.0157, 0.0159),
    "k = 4": (public(2.0, RATE, 4), 400, 1e-5, 190, 280),
    "k = 2": (public(1.0, RATE, 2), 400, 1e-5, 3e5, 1e6),
    "k = 4096": (public(1.0, RATE, 4096), 400, 1e-5, 3.81, 3.82),
    "hopeless": (public(0.01, 1.0, 2), 10**6, 1e-280, math.inf, math.inf),
    "almost nothing": (public(100.0, 1e-3, 32), 1, 1e-7, 0, 1e-4),
    "rare samples": (public(1.0, 1e-9, 32), 10**6, 1e-5, 0, 0),
    "rare steps decide": (public(0.4096, 3.388e-6, 14), 618735, 3.36e-7, 47.763, 47.780),
    "few secret probes among many steps": (secret(1.811, 2.2719e-4, 9), 53307, 1.89e-9, 16.5, 17.9),
}


def width(bounds: PrivacyBounds) -> float:
    return (bounds.upper - bounds.lower) / max(1.0, bounds.upper)


@pytest.mark.parametrize("name", NARROW | WIDE)
def test_an_answer_holds_its_interval(name: str) -> None:
    """An interval of the truth, found elsewhere: both ends hold it, are near it, and say whether they are narrow."""
    run, steps, delta, low, high = (NARROW | WIDE)[name]
    bounds = run.epsilon(steps=steps, delta=delta, tolerance=TOLERANCE)
    assert 0.0 <= bounds.lower <= bounds.estimate <= bounds.upper
    assert bounds.lower <= high
    assert low <= bounds.upper
    assert bounds.is_narrow == (width(bounds) <= TOLERANCE)
    assert bounds.is_narrow or name not in NARROW
    if high < 900:
        assert 0.5 * low <= bounds.lower
        assert bounds.upper <= 1.05 * high + 1e-12


def test_a_wide_answer_says_so() -> None:
    """With an estimate near the upper bound, which is where the truth most often is."""
    question = Question(1e-5)
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
    level = Level([(DPSGD(1.0, 1.0).step(), 2)], Question(1e-3), "remove", 0.0)
    level.pairs = {side: [(pair, 2)] for side in ("upper", "lower")}
    upper, lower = level.curve("upper"), level.curve("lower")
    assert upper.epsilon(1e-3, "upper") == math.inf
    assert upper.delta_bounds(3.0)[1] == 1.0
    assert 0.0 <= lower.epsilon(1e-3, "lower") < math.inf
    assert 0.0 <= lower.delta_bounds(3.0)[0] <= 1.0


@pytest.mark.parametrize("steps", [1, 2])
@pytest.mark.parametrize("direction", ["remove", "add"])
def test_a_slack_is_charged(direction: Any, steps: int) -> None:
    pair = AtomicPair(np.zeros(1), np.ones(1), 0.0, reach=1.0, slack=1e-3)
    step: Any = SimpleNamespace(steps=1, is_exact=True, pairs=lambda bins, tail: (pair, pair))
    level = Level([(step, steps)], Question(1e-5), direction, 0.0)
    assert level.beyond(level.farthest) == pytest.approx(steps * 1e-3)
    assert level.curve("upper").delta_bounds(0.5)[1] == pytest.approx(steps * 1e-3, rel=1e-2)


@pytest.mark.parametrize("below", [0.0, 1e-6, 0.02, 0.05])
def test_no_threshold_lies_where_the_capped_curve_is_one(below: float) -> None:
    """(C4) with its β: between losses log(1 - q) and log(1 - q + q R(c)) there is no outcome."""
    atoms = np.array([0.3, 0.6, 1.0, 1.4])
    pair = SecretUpperPair(1 / (0.3 * np.sqrt(atoms)), np.full(4, (1 - below) / 4), 0.9, below)
    t, _ = pair.thresholds(np.linspace(-2.2, 12.0, 400))
    finite = t[np.isfinite(t)]
    value = pair._uncapped(finite)[0]
    assert np.all(value <= 1 + 1e-9)
    assert np.any(value > 1 - 1e-6)  # the cap is no larger than it has to be


def test_noise_below_what_is_looked_for_is_said_soon() -> None:
    start = time.process_time()
    with pytest.raises(ParameterError, match=r"target_epsilon must be so small that .* noise multiplier >= 0\.01"):
        calibrate(DPSGD(1.0, 0.01), steps=1000, target_epsilon=1e6, delta=1e-5)
    assert time.process_time() - start < 5.0


@pytest.mark.parametrize(
    ("probes", "rate", "steps", "delta"),
    [
        (None, 1e-6, 1, 1e-30),
        (None, 1e-3, 1, 1e-60),
        (None, 1e-6, 5, 1e-60),
        (4, 1e-3, 1, 1e-60),
        pytest.param(4, 1e-6, 1, 1e-30, marks=pytest.mark.slow),
        pytest.param(4, 1e-6, 5, 1e-60, marks=pytest.mark.slow),
        pytest.param(32, 1e-6, 1, 1e-30, marks=pytest.mark.slow),
        pytest.param(32, 1e-3, 1, 1e-60, marks=pytest.mark.slow),
        pytest.param(32, 1e-6, 5, 1e-60, marks=pytest.mark.slow),
    ],
)
def test_adding_a_sample_never_costs_more_than_its_largest_loss(probes, rate: float, steps: int, delta: float) -> None:
    """-T log(1 - q), whatever δ: rounding left masses of 1e-20 beyond it, and lower bounds .4 % above."""
    runs = [DPSGD(0.3, rate)] if probes is None else [public(0.3, rate, probes), secret(0.3, rate, probes)]
    for run in runs:
        bounds = compose([(run, steps)]).epsilon_by_direction(delta)["add"]
        most = -steps * math.log1p(-rate)
        assert bounds.lower <= most * (1 + 1e-12) <= bounds.upper
        assert compose([(run, steps)]).delta_by_direction(1.001 * most)["add"].lower == 0.0


@pytest.mark.parametrize("steps", [1, 2, 10, 10**6])
@pytest.mark.parametrize("noise", [1e-3, 1e-2])
def test_losses_beyond_underflow_have_ends(noise: float, steps: int) -> None:
    """The gaussian mechanism, whose ε at δ is μ²/2 + μ·(about 4.3), as large as it is."""
    mu = steps**0.5 / noise
    for bounds in compose([(DPSGD(noise, 1.0), steps)]).epsilon_by_direction(1e-5).values():
        assert bounds.lower <= mu * (mu / 2 + 4.4)
        assert bounds.upper >= mu * (mu / 2 + 4.2)
    assert DPSGD(noise, 1.0).delta(steps=steps, epsilon=5.0).upper == pytest.approx(1.0)


def test_a_trade_off_of_replaced_samples_at_a_rate_of_0_is_a_number() -> None:
    """By composed curves with an ε beyond e^709: ∞ · 0 was none."""
    run = compose([(DPSGD(0.49, 0.13, HutchPlusPlus(48, 16, secret=False), ReplaceOne()), 14202)])
    band = run.trade_off([0.0, 1e-6, 1.0])
    assert np.all((band.lower >= 0.0) & (band.lower <= band.upper) & (band.upper <= 1.0))


def test_replaced_samples_at_a_loss_beyond_all_numbers_have_an_answer() -> None:
    """Where e^loss is infinite and what it is multiplied by is 0, nothing warned of a bound that is none."""
    phases = [(DPSGD(0.4366, 0.00382, Hutchinson(12, secret=False), ReplaceOne()), 11), (LaplaceRelease(0.45), 3)]
    assert 0.0 < compose(phases).delta(16.5).upper < 1e-3


def test_nearly_constant_losses_beside_large_ones() -> None:
    """The composition of five unsampled steps with five negligible ones: μ = √5, in closed form."""
    bounds = compose([(DPSGD(1.0, 1.0), 5), (DPSGD(1e6, 1e-3), 5)]).epsilon(1e-5)
    mu = np.sqrt(5.0)
    assert gaussian_delta(bounds.lower, mu) >= 1e-5 * (1 - 1e-6)
    assert gaussian_delta(bounds.upper, mu) <= 1e-5 * (1 + 1e-6)


def test_an_answer_beyond_all_losses_is_zero_up_to_error() -> None:
    """A loss curve with no grid point near ε used to raise."""
    step = DPSGD(1.0, 0.01).step()
    pair, _ = step.pairs(8, 1e-12)
    index = np.arange(-50, 50, dtype=np.int64)
    pmf = from_below(index, 0.01, pair.cells(index * 0.01))
    question = Question(epsilon=40.0)
    tilt = best_tilt([(pmf, 3)], question)[0]
    low, high = DeltaCurve(question, composed([(pmf, 3)], tilt, window([(pmf, 3)], tilt))).delta_bounds(40.0)
    assert (low, high) == pytest.approx((0.0, 0.0), abs=1e-8)


@pytest.mark.parametrize(
    ("asked", "at"), [("epsilon", 1e-5), ("delta", 1.5)], ids=["epsilon at delta", "delta at epsilon"]
)
def test_small_rates_beside_large_ones_by_direction(asked: str, at: float) -> None:
    """A node between log(1 - q) and the commonest losses' mean made the lower end of adding a sample 2.381."""
    run = compose(
        [
            (DPSGD(1.6526650801318743, 0.01561269961016319, Hutchinson(32, secret=False)), 3056),
            (DPSGD(1.9116909043188168, 0.0007141453229595131), 7502),
        ]
    )
    found = getattr(run, f"{asked}_by_direction")(at)["add"]
    if asked == "epsilon":  # the truth lies between 2.3535 and 2.3537
        assert found.lower < 2.3537
        assert found.upper > 2.3535
    assert found.is_narrow


def test_upper_laws_that_lose_mean_are_errors_of_ours() -> None:
    """Q-mass that no node of a cell can carry: connecting the dots would move losses down."""
    cells = LossCells(np.array([0.5]), np.array([0.2]), 0.0, 0.0, 0.0, 0.0)
    with pytest.raises(UnsoundLawError, match="wrong side: please report"):
        from_above(np.array([0, 1]), 0.1, cells)  # its mean loss is log(2.5)


@pytest.mark.parametrize(
    ("run", "steps"), [(DPSGD(0.779078, 2000 / 67349), 400), (DPSGD(0.6, 0.01), 3000), (DPSGD(2.0, 0.05), 3000)]
)
def test_no_mesh_is_unlucky(run: DPSGD, steps: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of second order in the mesh, wherever its nodes would fall beside the commonest loss."""
    schedule = [(run.step(), steps)]
    for mesh in (0.06, 0.05, 0.04, 0.035, 0.03, 0.025, 0.02, 0.015):
        monkeypatch.setattr(_level, "_MESH", mesh)
        at = Level(schedule, Question(1e-5), "remove", 0)
        upper = at.curve("upper").epsilon(1e-5, "upper")
        lower = at.curve("lower").epsilon(1e-5, "lower")
        assert 0.0 < upper - lower < 0.6 * mesh**2 * upper
