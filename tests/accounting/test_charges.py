"""Terms that are added to be safe, where they are large: numbers as wrong as a term allows, against exact values.

Rounding is most often far smaller than what is charged for it. Here it is as large: masses, transforms and losses are
made wrong by hand, in one direction, and every end still has to hold.
"""

from __future__ import annotations

import math
from dataclasses import replace
from functools import lru_cache
from typing import Any

import numpy as np
import pytest
from scipy import fft

from dprmt.accounting import DPSGD, Poisson, gdp_epsilon, gdp_trade_off
from dprmt.accounting.basics._bounds import Side
from dprmt.accounting.composition import _compose as _composition
from dprmt.accounting.composition import _solve as _level
from dprmt.accounting.composition._compose import ComposedLoss, Curve, DeltaCurve, OneStepCurve, Question, best_tilt
from dprmt.accounting.composition._solve import Level
from dprmt.accounting.pairs import _pairs
from dprmt.accounting.pairs._allocation import AllocationEpoch
from dprmt.accounting.pairs._pairs import LossCells, LossPMF, PublicPair
from dprmt.accounting.questions import _trade_off

from .oracles.gaussian import gaussian_delta

EPS = float(np.finfo(np.float64).eps)
SIGNS = pytest.mark.parametrize("sign", [-1.0, 1.0])
NOISE, GAUSSIAN_STEPS, SHIFT, ALPHA = 10.0, 100, 1e-4, np.array([1e-3, 0.01, 0.1, 0.5, 0.9, 0.99])
REACH, MESH, STEPS, EPSILON = 200, 1e-3, 500, 2.0


def law_of(mass: np.ndarray) -> LossPMF:
    """With empty nodes on the right, where large losses meet."""
    return LossPMF(np.arange(-REACH, 3 * REACH + 1), np.append(mass, np.zeros(2 * REACH)), MESH, 0.0)


def even_masses() -> np.ndarray:
    """At every node the same, except for a rare largest loss."""
    mass = np.ones(2 * REACH + 1)
    mass[-1] = 0.08
    return mass / mass.sum()


@lru_cache
def exact_delta(steps: int, epsilon: float) -> float:
    """E(1 - e^{ε - S})₊ of so many steps, in extended precision."""
    size = fft.next_fast_len(2 * REACH * steps + 1, real=True)
    together = fft.irfft(fft.rfft(even_masses().astype(np.longdouble), size) ** steps, size)
    losses = (np.arange(size) - REACH * steps) * np.longdouble(MESH)
    return float(together @ np.maximum(-np.expm1(np.minimum(epsilon - losses, 0.0)), 0.0))


def by_fft(law: LossPMF, steps: int, epsilon: float, side: Side) -> Curve:
    del side
    question = Question(epsilon=epsilon)
    tilt = best_tilt([(law, steps)], question)[0]
    return DeltaCurve(question, _composition.composed([(law, steps)], tilt, _composition.window([(law, steps)], tilt)))


def check(law: LossPMF, steps: int, epsilon: float, exact: float) -> None:
    """Both ends hold, and are near."""
    low = by_fft(law, steps, epsilon, "lower").delta_bounds(epsilon)[0]
    high = by_fft(law, steps, epsilon, "upper").delta_bounds(epsilon)[1]
    assert low <= exact <= high
    assert high - low < 1e-4 * exact


@SIGNS
def test_masses_as_wrong_as_differences_of_tails_may_be(sign) -> None:
    """(F1): each is off by nearly 64 roundings of the mass from there on, at each of two hundred nodes."""
    truth = even_masses()
    wrong = truth + sign * 60 * EPS * np.cumsum(truth[::-1])[::-1]
    check(law_of(wrong), STEPS, EPSILON, exact_delta(STEPS, EPSILON))


@SIGNS
def test_masses_of_one_step_as_wrong_as_differences_of_tails_may_be(sign) -> None:
    truth = even_masses()
    wrong = law_of(truth + sign * 60 * EPS * np.cumsum(truth[::-1])[::-1])
    for epsilon in (-0.05, 0.0, 0.09):
        exact = exact_delta(1, epsilon)
        assert OneStepCurve(wrong, "lower").delta_bounds(epsilon)[0] <= exact
        assert OneStepCurve(wrong, "upper").delta_bounds(epsilon)[1] >= exact


RARE, FAR = 1e-7, 4000  # of a loss and where it lies, in meshes


def walk_law() -> LossPMF:
    """-1, 0 or 1, so that many steps are binomial, and a rare large loss; with empty nodes where large losses meet."""
    index = np.array([-1, 0, 1, *range(FAR, 4 * FAR, FAR)])
    mass = np.append((1.0 - RARE) * np.array([0.25, 0.5, 0.25]), [RARE, 0.0, 0.0])
    return LossPMF(index, mass, MESH, 0.0)


def delta_of_walk(steps: int, epsilon: float) -> float:
    """Of so many steps, by the number of large losses, in extended precision."""
    total = np.longdouble(0.0)
    chance = np.longdouble(1.0 - RARE) ** steps
    for events in range(12):
        tosses = 2 * (steps - events)
        reach = min(40 * math.isqrt(tosses), tosses // 2 - 1)
        ups = tosses // 2 + np.arange(reach, dtype=np.longdouble)
        falls = np.cumprod(np.append(np.longdouble(1.0), (tosses - ups[:-1]) / (ups[:-1] + 1)))
        weight = np.append(falls[:0:-1], falls)
        losses = (np.arange(-reach + 1, reach) + events * FAR) * np.longdouble(MESH)
        gains = np.maximum(-np.expm1(np.minimum(epsilon - losses, 0.0)), 0.0)
        total += chance * (weight @ gains) / weight.sum()
        chance *= np.longdouble(RARE / (1.0 - RARE)) * (steps - events) / (events + 1)
    return float(total)


@SIGNS
def test_transforms_as_wrong_as_they_may_be(sign, monkeypatch) -> None:
    """(F2): each value is off by nearly 8 log₂N roundings of the sum of all masses, which counts once a step.

    What else is charged is more, here, and set to nothing.
    """
    steps, epsilon, plain = 10**6, 0.9, fft.rfft

    def wrong(values: Any, n: int | None = None, **options: Any) -> Any:
        found = plain(values, n, **options)
        return found * (1.0 + sign * 7 * EPS * math.log2(values.shape[-1] if n is None else n))

    monkeypatch.setattr(fft, "rfft", wrong)
    monkeypatch.setattr(_composition, "_mass_rounding", lambda mass, weights: 0.0)
    monkeypatch.setattr(_composition, "OUTSIDE", math.exp(-70.0))
    check(walk_law(), steps, epsilon, delta_of_walk(steps, epsilon))


@pytest.mark.parametrize("epsilon", [-1.0, 0.9, 1.6, 2.5])
def test_what_lies_outside_a_window_is_charged(epsilon, monkeypatch) -> None:
    """(F0): on windows that hold all but 3e-4 on either side, so that this decides."""
    monkeypatch.setattr(_composition, "OUTSIDE", math.exp(-8.0))
    steps = 10**6
    exact = delta_of_walk(steps, epsilon)
    lower, upper = (by_fft(walk_law(), steps, epsilon, side) for side in ("lower", "upper"))
    assert lower.delta_bounds(epsilon)[0] <= exact <= upper.delta_bounds(epsilon)[1]
    for factor in (0.5, 1.0, 2.0):
        delta = factor * exact
        below, above = lower.epsilon(delta, "lower"), upper.epsilon(delta, "upper")
        assert below == 0.0 or delta_of_walk(steps, below) >= delta
        assert math.isinf(above) or delta_of_walk(steps, above) <= delta


@pytest.mark.parametrize("tilt", [0.4, 3.0])
@SIGNS
def test_misplaced_mass_is_charged_wherever_it_lies(tilt, sign) -> None:
    """(F0): all that may be misplaced in the tilted law is at one node too much, or too little."""
    losses = 0.1 * np.arange(-20, 41)
    tilted = np.exp(-((losses - 1.0) ** 2))
    tilted /= tilted.sum()
    mass, error = tilted * np.exp(-tilt * losses), 0.05

    def delta_at(epsilon: float) -> float:
        return float(mass @ np.maximum(-np.expm1(np.minimum(epsilon - losses, 0.0)), 0.0))

    for place in range(losses.size):
        wrong = tilted.copy()
        wrong[place] = max(wrong[place] + sign * error, 0.0)
        curve = DeltaCurve(Question(epsilon=1.0), ComposedLoss(losses, wrong, tilt, 0.0, 0.0, error))
        for epsilon in (0.0, 0.31, 1.0, 2.27):
            delta = delta_at(epsilon)
            low, high = curve.delta_bounds(epsilon)
            assert low <= delta <= high
            below, above = curve.epsilon(delta, "lower"), curve.epsilon(delta, "upper")
            assert below <= epsilon * (1.0 + 1e-12) <= above * (1.0 + 1e-9)


def test_an_infinite_loss_counts_in_a_trade_off() -> None:
    loss = ComposedLoss(np.array([0.0, 1.0]), np.array([0.9, 0.0]), 0.0, 0.0, 0.1, 0.0)
    for safe in (True, False):
        assert _trade_off._beta(loss, np.array([0.2]), 0.0, safe=safe) == pytest.approx(0.7, abs=1e-9)


def test_what_lies_outside_a_trade_off_s_window_is_charged(monkeypatch) -> None:
    monkeypatch.setattr(_composition, "OUTSIDE", math.exp(-4.0))
    band = DPSGD(NOISE, Poisson(1.0)).trade_off(steps=GAUSSIAN_STEPS, alpha=ALPHA)
    exact = gdp_trade_off(math.sqrt(GAUSSIAN_STEPS) / NOISE, ALPHA)
    assert np.all((band.lower <= exact) & (exact <= band.upper))


@pytest.fixture(params=[-1.0, 1.0])
def shifted_losses(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every loss is wrong by most of what (F3) allows, made a ten-thousandth here; so much is refused otherwise."""
    right, factor = PublicPair.cells, 1.0 + request.param * 0.7 * SHIFT

    def wrong(self: PublicPair, nodes: np.ndarray) -> LossCells:
        cells = right(self, nodes)
        return replace(cells, q=factor * cells.q, q_below=factor * cells.q_below, q_above=factor * cells.q_above)

    monkeypatch.setattr(PublicPair, "cells", wrong)
    monkeypatch.setattr(_level, "_LOSS_DRIFT", SHIFT)
    monkeypatch.setattr(_pairs, "_check_drift", lambda *law: None)


@pytest.mark.usefixtures("shifted_losses")
def test_losses_as_wrong_as_their_grid_may_be() -> None:
    """(F3): one Gaussian mechanism after a hundred steps, however it is asked."""
    run, mu = DPSGD(NOISE, Poisson(1.0)), math.sqrt(GAUSSIAN_STEPS) / NOISE
    exact = gdp_epsilon(mu, 1e-5)
    for bounds in run.epsilon_by_direction(steps=GAUSSIAN_STEPS, delta=1e-5).values():
        assert bounds.lower <= exact <= bounds.upper < exact + 0.03
    curve = run.epsilon(steps=[GAUSSIAN_STEPS - 1, GAUSSIAN_STEPS], delta=1e-5)[1]
    assert curve.lower <= exact <= curve.upper
    delta = gaussian_delta(3.0, mu)
    alone, curve = (run.delta(steps=GAUSSIAN_STEPS, epsilon=asked) for asked in (3.0, [2.5, 3.0]))
    for bounds in (alone, curve[1]):
        assert bounds.lower <= delta <= bounds.upper
    band = run.trade_off(steps=GAUSSIAN_STEPS, alpha=ALPHA)
    assert np.all((band.lower <= gdp_trade_off(mu, ALPHA)) & (gdp_trade_off(mu, ALPHA) <= band.upper))


def test_each_step_of_an_epoch_adds_its_rounding() -> None:
    """(F3), (R7)."""
    step = DPSGD(1.0, Poisson(1.0)).step()
    schedule = [(step, 30), (AllocationEpoch(step, 50), 20)]
    assert Level(schedule, Question(1e-5), "remove", -2.0).drift == _level._LOSS_DRIFT * 1030
