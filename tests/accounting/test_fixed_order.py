"""What may be claimed for loaders that shuffle and cut (N5)."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dprmt import ParameterError, accounting
from dprmt.accounting import DPSGD, AddRemove, ExactNorms, FixedOrder, Group, Hutchinson, ReplaceOne, ZeroOut, compose


@settings(max_examples=8)
@given(
    sigma=st.floats(0.4, 5.0),
    rate=st.floats(0.01, 1.0),
    steps=st.integers(1, 20),
    delta=st.floats(1e-8, 1e-2),
    norms=st.sampled_from([ExactNorms(), Hutchinson(16, secret=False), Hutchinson(16, secret=True)]),
)
def test_as_many_steps_of_poisson_sampling_cost_no_more(
    sigma: float, rate: float, steps: int, delta: float, norms: ExactNorms | Hutchinson
) -> None:
    """A step at q = 1 dominates one at any q, so E epochs dominate E steps: no lower end exceeds the upper one."""
    order = DPSGD(sigma, FixedOrder(), norms).epsilon(epochs=steps, delta=delta)
    drawn = DPSGD(sigma, accounting.Poisson(rate), norms).epsilon(steps=steps, delta=delta)
    assert drawn.lower <= order.upper
    if rate == 1.0:
        assert order.lower <= drawn.upper


@pytest.mark.parametrize("secret", [False, True])
def test_replacement_with_estimated_norms_is_finite(secret: bool) -> None:
    """Near a lower end, that of equal norms."""
    norms = Hutchinson(32, secret=secret)
    bounds = DPSGD(2.0, FixedOrder(), norms, ReplaceOne()).epsilon(epochs=3, delta=1e-5)
    below = DPSGD(2.0, 1.0, norms, ReplaceOne()).epsilon(steps=3, delta=1e-5).lower
    assert below <= bounds.upper <= 1.02 * below


@pytest.mark.parametrize(("rate", "width"), [(1.0, 1.005), (0.3, 1.02)])
def test_replacement_at_high_rates_is_tight(rate: float, width: float) -> None:
    """δ at ε has the same bound as ε at δ."""
    run = DPSGD(4.0, rate, Hutchinson(32, secret=False), ReplaceOne())
    bounds = run.epsilon(steps=10 if rate < 1.0 else 3, delta=1e-5)
    assert bounds.lower <= bounds.upper <= width * bounds.lower
    delta = run.delta(steps=10 if rate < 1.0 else 3, epsilon=bounds.upper)
    assert delta.lower <= 1e-5
    assert delta.upper <= 1.1e-5


def test_steps_are_epochs_in_all_questions() -> None:
    run = DPSGD(2.0, FixedOrder())
    three = run.epsilon(epochs=3, delta=1e-5)
    assert run.epsilon(steps=3, delta=1e-5) == three
    assert compose([(run, 3)]).epsilon(delta=1e-5).upper == pytest.approx(three.upper, rel=1e-3)
    curve = run.epsilon(epochs=[1, 3], delta=1e-5)
    assert curve.lower[1] <= three.upper
    assert three.lower <= curve.upper[1]
    found = accounting.calibrate(run, epochs=3, target_epsilon=2.0, delta=1e-5)
    assert found.epsilon(epochs=3, delta=1e-5).upper <= 2.0
    assert found.noise_multiplier == pytest.approx(3.44, rel=0.01)


@pytest.mark.parametrize("neighbours", [AddRemove(), Group(2, AddRemove())])
def test_a_removed_sample_moves_others_up(neighbours: AddRemove | Group) -> None:
    with pytest.raises(ParameterError, match=r"neighbours must be ZeroOut\(\) or ReplaceOne\(\) in a fixed order"):
        DPSGD(1.0, FixedOrder(), neighbours=neighbours)


@pytest.mark.parametrize("size", [1, 2, 3, 10])
@pytest.mark.parametrize("relation", [ZeroOut(), ReplaceOne()])
def test_groups_in_a_fixed_order_are_one_batch_at_worst(size: int, relation: ZeroOut | ReplaceOne) -> None:
    """All samples of a person in one batch: a Gaussian of m times the shift, twice that where samples are replaced."""
    shift = size * (2 if relation.is_replacement else 1)
    run = DPSGD(5.0, FixedOrder(), neighbours=Group(size, relation) if size > 1 else relation)
    exact = compose([(accounting.GaussianRelease(5.0 / shift), 3)])
    found = run.epsilon(epochs=3, delta=1e-5)
    assert tuple(found) == pytest.approx(tuple(exact.epsilon(1e-5)), rel=1e-12)
    assert found.is_narrow
    spread = compose([(accounting.GaussianRelease(5.0 / shift * math.sqrt(size)), 3)])  # in as many batches
    assert spread.epsilon(1e-5).lower <= found.upper
