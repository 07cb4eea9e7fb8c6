"""One step's δ, and losses so large that few of the usual numbers hold."""

from __future__ import annotations

import math

import numpy as np
import pytest

from dprmt.accounting import DPSGD, Hutchinson
from dprmt.accounting.composition._curve import OneStepCurve
from dprmt.accounting.pairs import LossPMF


def decided_by_one_norm(mechanism: DPSGD, steps: int, delta: float) -> float:
    """ε of two probes where one squared-norm ratio decides: T q P(1/(2σ²X) > ε) = δ, with P(X < x) = x."""
    return steps * mechanism.sampling.rate / (2 * mechanism.noise_multiplier**2 * delta)


@pytest.mark.parametrize(
    ("mechanism", "steps", "delta"),
    [
        pytest.param(DPSGD(0.3, 1e-6, Hutchinson(2, secret=False)), 1, 1e-20, id="a light tail beside a heavy node"),
        pytest.param(
            DPSGD(3.39559, 0.416614, Hutchinson(2, secret=False)), 113912, 2.5e-11, id="ε = 8e13 had no upper end"
        ),
        pytest.param(DPSGD(0.3, 0.9, Hutchinson(2, secret=False)), 1000, 1e-12, id="a mesh wider than 709"),
    ],
)
def test_losses_that_one_norm_decides(mechanism: DPSGD, steps: int, delta: float) -> None:
    bounds = mechanism.epsilon(steps=steps, delta=delta)
    truth = decided_by_one_norm(mechanism, steps, delta)
    assert bounds.lower <= truth * (1 + 1e-4)
    assert truth * (1 - 1e-4) <= bounds.upper <= 1.005 * truth
    assert mechanism.delta(steps=steps, epsilon=bounds.upper).lower <= delta


@pytest.mark.parametrize("side", ["upper", "lower"])
def test_a_heavy_node_does_not_swallow_a_light_tail(side) -> None:
    """Masses 1 at a loss of 0 and 1e-25 at 3: δ(1) is 1e-25 (1 - e^{-2}), and the difference of sums is 0."""
    curve = OneStepCurve(LossPMF(np.array([0, 1, 3]), np.array([1.0, 0.5, 1e-25]), 1.0, 0.0), side)
    exact = 1e-25 * -math.expm1(-2.0)
    low, high = curve.delta_bounds(1.0)
    assert (high if side == "upper" else low) == pytest.approx(exact, rel=1e-9)
    crossing = curve.epsilon_above(exact) if side == "upper" else curve.epsilon_below(exact)
    assert crossing == pytest.approx(1.0, abs=1e-9)


def test_an_epsilon_beyond_all_losses_is_answered() -> None:
    """The numbers of its nodes used to overflow."""
    for mechanism in (DPSGD(1.0, 0.01), DPSGD(1.0, 0.01, Hutchinson(8, secret=False))):
        assert mechanism.delta(steps=1000, epsilon=1e17).upper < 1e-50
