"""Compositions of many phases: answers that hold the truth, in both directions."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import brentq
from scipy.special import log_ndtr, ndtr

from dprmt.accounting import DPSGD, Hutchinson, compose
from dprmt.accounting.composition import _solve as _level
from dprmt.accounting.composition._compose import Question
from dprmt.accounting.composition._solve import Level
from dprmt.accounting.pairs._pairs import AtomicPair

EPSILONS = np.concatenate([-np.geomspace(1e-3, 2.0, 15), [0.0], np.geomspace(1e-3, 6.0, 30)])
TAIL = 1e-11


def gaussian_epsilon(mu: float, delta: float) -> float:
    """ε of N(μ, 1) against N(0, 1)."""

    def excess(epsilon: float) -> float:
        return float(ndtr(mu / 2 - epsilon / mu) - np.exp(epsilon + log_ndtr(-mu / 2 - epsilon / mu)) - delta)

    return float(brentq(excess, 0.0, 10.0 * mu + mu**2))


@given(st.lists(st.floats(1.0, 40.0), min_size=5, max_size=40, unique=True), st.integers(1, 5))
@settings(max_examples=12)
def test_gaussian_phases_compose_to_a_gaussian(noise: list[float], steps: int) -> None:
    """Without sampling all phases together are one Gaussian mechanism."""
    bounds = compose([(DPSGD(sigma, 1.0), steps) for sigma in noise]).epsilon_by_direction(1e-6)
    exact = gaussian_epsilon(math.sqrt(steps * sum(sigma**-2.0 for sigma in noise)), 1e-6)
    for bound in bounds.values():
        assert bound.lower <= exact <= bound.upper
        assert bound.is_narrow


def test_phases_without_sampling_and_with_little_noise_are_answered_in_both_directions() -> None:
    noise = (0.1, 0.105, 0.11, 0.115)
    exact = gaussian_epsilon(math.sqrt(sum(sigma**-2.0 for sigma in noise)), 1e-5)
    for bound in compose([(DPSGD(sigma, 1.0), 1) for sigma in noise]).epsilon_by_direction(1e-5).values():
        assert bound.lower <= exact <= bound.upper
        assert bound.is_narrow


def mixed_phases() -> list[tuple[DPSGD, int]]:
    noise = np.linspace(0.8, 1.6, 9)
    phases: list[tuple[DPSGD, int]] = [(DPSGD(sigma, 0.02), 3) for sigma in noise]
    phases += [(DPSGD(sigma, 0.02, Hutchinson(24, secret=False)), 2) for sigma in noise]
    phases += [(DPSGD(sigma, 0.01 * sigma), 4) for sigma in noise]
    return [*phases, (DPSGD(1.0, 0.02, Hutchinson(24, secret=True)), 2)]


def test_one_phase_more_among_many_never_lowers_a_bound_below_the_others() -> None:
    phases = mixed_phases()
    assert compose(phases).epsilon(1e-5).upper > compose(phases[:-1]).epsilon(1e-5).lower


def test_losses_far_beyond_the_question_count_as_infinite(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few probes: of a tail of losses up to 1e4, δ(0) sees that they are large; told apart, they cost the mesh."""
    phases = [(DPSGD(sigma, 0.03, Hutchinson(8, secret=False)), 2) for sigma in (0.8, 1.2)]

    def bounds() -> tuple[float, float]:
        at = Level(compose(phases).schedule, Question(epsilon=0.0), "remove", -1)
        return tuple(at.curve(side).delta_bounds(0.0)[end] for side, end in (("lower", 0), ("upper", 1)))

    monkeypatch.setattr(_level, "MOST_POINTS", 2**15)
    lower, upper = bounds()
    assert upper - lower < 0.1 * upper


def test_a_finer_mesh_narrows_phases_too() -> None:
    """Nodes beside the means of the commonest losses cost a lower bound 2 % here, on a mesh a third as wide."""
    exact, known = [(1.0567, 8), (1.3559, 9)], [(0.9149, 10), (1.3943, 2), (1.0768, 14), (1.3153, 13)]
    phases = [(DPSGD(sigma, 0.00434), steps) for sigma, steps in exact]
    phases += [(DPSGD(sigma, 0.00434, Hutchinson(16, secret=False)), steps) for sigma, steps in known]
    assert compose(phases).epsilon(4.57e-6).is_narrow


def test_an_infinite_loss_is_part_of_the_total_variation() -> None:
    """Whose finite losses are all 0: without it δ(0) would be 0."""
    pair = AtomicPair(np.zeros(1), np.array([0.99]), 0.01, reach=1.0)
    found = _level.coarse_pass([(pair, 3)], Question(1e-3), 1e-12).total_variation
    assert 0.03 <= found < 0.0301
