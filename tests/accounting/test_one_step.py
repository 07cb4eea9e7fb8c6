"""One step's δ, and losses so large that few of the usual numbers hold."""

from __future__ import annotations

import math

import numpy as np
import pytest

from dprmt.accounting import DPSGD, Hutchinson
from dprmt.accounting.composition._compose import OneStepCurve
from dprmt.accounting.pairs._pairs import LossPMF


@pytest.mark.parametrize("side", ["upper", "lower"])
def test_a_heavy_node_does_not_swallow_a_light_tail(side) -> None:
    """Masses 1 at a loss of 0 and 1e-25 at 3: δ(1) is 1e-25 (1 - e^{-2}), and the difference of sums is 0."""
    curve = OneStepCurve(LossPMF(np.array([0, 1, 3]), np.array([1.0, 0.5, 1e-25]), 1.0, 0.0), side)
    exact = 1e-25 * -math.expm1(-2.0)
    low, high = curve.delta_bounds(1.0)
    assert (high if side == "upper" else low) == pytest.approx(exact, rel=1e-9)
    crossing = curve.epsilon(exact, "upper") if side == "upper" else curve.epsilon(exact, "lower")
    assert crossing == pytest.approx(1.0, abs=1e-9)


def test_an_epsilon_beyond_all_losses_is_answered() -> None:
    """The numbers of its nodes used to overflow."""
    assert DPSGD(1.0, 0.01).delta(steps=1000, epsilon=1e17).upper < 1e-50
    assert DPSGD(1.0, 0.01, Hutchinson(8, secret=False)).delta(steps=1000, epsilon=1e17).lower == 0.0
