"""Many answers at once: ε after many numbers of steps, δ at many ε; against closed forms and single answers."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dprmt.accounting import DPSGD, Hutchinson, RandomAllocation
from dprmt.accounting.basics._bounds import PrivacyBounds
from dprmt.accounting.composition._solve import InconsistentBoundsError
from dprmt.accounting.questions._step_counts import Brackets

from .oracles.gaussian import gaussian_delta, gaussian_epsilon

# ----------------------------------------------------------------------------------------- closed forms


def test_epsilon_after_every_step_of_the_gaussian_mechanism():
    """Without sampling ε is known: T steps are one with μ = √T/σ. Every answer holds it, and is narrow."""
    steps = np.arange(1, 301)
    curve = DPSGD(8.0, 1.0).epsilon(steps=steps, delta=1e-6)
    truth = np.array([gaussian_epsilon(math.sqrt(count) / 8.0, 1e-6) for count in steps])
    assert np.all((curve.lower <= truth) & (truth <= curve.upper))
    assert np.all(curve.upper - curve.lower <= 1e-3 * np.maximum(1.0, curve.upper))
    assert curve.is_narrow.all()
    assert np.all((curve.lower <= curve.estimate) & (curve.estimate <= curve.upper))


def test_delta_at_many_epsilons_of_the_gaussian_mechanism():
    epsilons = np.linspace(0.0, 12.0, 61)
    curve = DPSGD(5.0, 1.0).delta(steps=50, epsilon=epsilons)
    truth = gaussian_delta(epsilons, math.sqrt(50) / 5.0)
    assert truth[-1] < 1e-14 * truth[0]
    assert np.all((curve.lower <= truth) & (truth <= curve.upper))
    assert curve.is_narrow.all()


# --------------------------------------------------------------------------------------- single answers


@settings(max_examples=6)
@given(
    sigma=st.floats(0.6, 4.0),
    log_rate=st.floats(-3.0, 0.0),
    probes=st.sampled_from([None, 12, 64]),
    secret=st.booleans(),
    log_delta=st.floats(-9.0, -3.0),
    counts=st.lists(st.integers(1, 3000), min_size=2, max_size=12),
)
def test_every_entry_is_what_a_single_question_gets(sigma, log_rate, probes, secret, log_delta, counts):
    """Bounds of both meet, as both are certified; an entry is no wider than asked unless a single answer is too."""
    rate, delta = 10.0**log_rate, 10.0**log_delta
    mechanism = DPSGD(sigma, rate) if probes is None else DPSGD(sigma, rate, Hutchinson(probes, secret=secret))
    curve = mechanism.epsilon(steps=counts, delta=delta, tolerance=1e-2)
    assert curve.at.tolist() == counts
    for count, found in list(zip(counts, curve, strict=True))[:3]:
        single = mechanism.epsilon(steps=count, delta=delta, tolerance=1e-2)
        assert found.lower <= single.upper
        assert single.lower <= found.upper
        assert found.is_narrow or not single.is_narrow
    order = np.argsort(counts)
    assert np.all(np.diff(curve.upper[order]) >= 0)


def test_epochs_of_random_allocation():
    """One law of an epoch serves all of them; participations in unequal blocks are asked one by one."""
    mechanism = DPSGD(1.0, RandomAllocation(20))
    curve = mechanism.epsilon(epochs=[1, 2, 3, 10], delta=1e-5)
    assert curve.at.tolist() == [1, 2, 3, 10]
    for epochs, found in zip([1, 2, 3, 10], curve, strict=True):
        single = mechanism.epsilon(epochs=epochs, delta=1e-5)
        assert found.lower <= single.upper
        assert single.lower <= found.upper
        assert found.is_narrow
    assert np.array_equal(mechanism.epsilon(steps=[20, 200], delta=1e-5).at, [20, 200])
    blocks = DPSGD(2.0, RandomAllocation(5, participations=2))
    assert blocks.epsilon(epochs=[2], delta=1e-5)[0] == blocks.epsilon(epochs=2, delta=1e-5)


# ------------------------------------------------------------------------------------------- the parts


def test_brackets_serve_their_neighbours_and_contradictions_are_errors():
    brackets = Brackets(np.array([10, 20, 30]), 1e-3, np.zeros(3))
    brackets.add(np.array([1]), np.array([1.0]), np.array([1.0005]))
    assert brackets.lower.tolist() == [0.0, 1.0, 1.0]
    assert brackets.upper.tolist() == [1.0005, 1.0005, math.inf]
    with pytest.raises(InconsistentBoundsError):
        brackets.add(np.array([2]), np.array([0.0]), np.array([0.9]))


def test_what_blocks_leave_is_asked_one_by_one_and_sparsely():
    """Of 1,000 numbers of steps few are asked where ε hardly changes; the rest follows, narrow."""
    counts = np.arange(1, 1001)
    brackets = Brackets(counts, 1e-2, np.zeros(1000))
    while (place := brackets.next_place()) is not None:
        value = math.log(1000 + counts[place])
        brackets.add_one(place, PrivacyBounds(value * (1 - 1e-3), value, value * (1 + 1e-3)))
    assert not brackets.open().size
    assert brackets.asked.sum() < 40
    truth = np.log(1000 + counts)
    assert np.all((brackets.lower <= truth) & (truth <= brackets.upper))


# -------------------------------------------------------------------------------------------- refusals


def test_a_curve_is_zero_only_where_all_steps_together_can_be() -> None:
    """One step's total variation is below δ, that of a thousand steps is not."""
    curve = DPSGD(1.0, 1e-6).epsilon(steps=[1, 1000], delta=1e-6)
    single = DPSGD(1.0, 1e-6).epsilon(steps=1000, delta=1e-6)
    assert curve.upper[0] == 0.0 < single.lower <= curve.upper[1]
