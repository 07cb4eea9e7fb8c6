"""One step's δ, and losses so large that few of the usual numbers hold."""

from __future__ import annotations

import math

import numpy as np
import pytest

from dprmt.accounting.composition._curve import OneStepCurve
from dprmt.accounting.pairs._discretization import LossPMF


@pytest.mark.parametrize("side", ["upper", "lower"])
def test_a_heavy_node_does_not_swallow_a_light_tail(side) -> None:
    """Masses 1 at a loss of 0 and 1e-25 at 3: δ(1) is 1e-25 (1 - e^{-2}), and the difference of sums is 0."""
    curve = OneStepCurve(LossPMF(np.array([0, 1, 3]), np.array([1.0, 0.5, 1e-25]), 1.0, 0.0), side)
    exact = 1e-25 * -math.expm1(-2.0)
    low, high = curve.delta_bounds(1.0)
    assert (high if side == "upper" else low) == pytest.approx(exact, rel=1e-9)
    crossing = curve.epsilon_above(exact) if side == "upper" else curve.epsilon_below(exact)
    assert crossing == pytest.approx(1.0, abs=1e-9)
