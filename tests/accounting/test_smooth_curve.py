"""(F4) for one number of steps: δ(ε) as a sum of frequencies against exact convolutions, down to tiny δ."""

from __future__ import annotations

import math

import mpmath as mp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dprmt.accounting.basics import Side
from dprmt.accounting.composition import DeltaCurve, FewFrequencies, log_kappa, tilt_for_delta
from dprmt.accounting.composition._composed_loss import Window, composed, log_mgf, tilt_for_epsilon, window
from dprmt.accounting.composition._few_frequencies import SmoothCurve, smooth_curve
from dprmt.accounting.pairs import LossPMF

from .test_composition import exact_delta, exact_infinite, exact_law, pmf, steps

MESH = 0.125


def curve_at(law: LossPMF, count: int, tilt: float, offset: float = 0.0, side: Side = "upper") -> SmoothCurve:
    found = smooth_curve([(law, count)], tilt, window([(law, count)], tilt), offset, side)
    assert found is not None
    return found


def bounds_at(law: LossPMF, count: int, tilt: float, epsilon: float, offset: float = 0.0) -> tuple[float, float]:
    low, one = curve_at(law, count, tilt, offset, "lower").delta_bounds(epsilon)
    nothing, high = curve_at(law, count, tilt, offset, "upper").delta_bounds(epsilon)
    assert nothing == 0.0
    assert one == 1.0
    return low, high


@given(steps(), st.integers(1, 7), st.floats(-0.4, 1.2), st.sampled_from([0.0, -0.3, 2.0]))
@settings(max_examples=60)
def test_delta_bounds_hold_the_exact_delta(law, count, share, offset):
    """At every real ε, so also left of 0 after the offset; where the tilt was chosen to within what it leaves."""
    mp.mp.dps = 60
    phases = [(law, count)]
    exact_parts, infinite = exact_law(phases), exact_infinite(phases)
    epsilon = share * max(max(exact_parts), 1) * MESH
    tilt = tilt_for_epsilon(phases, epsilon)
    exact = exact_delta(exact_parts, MESH, epsilon, infinite)
    low, high = bounds_at(law, count, tilt, epsilon + offset, offset)
    assert low <= exact * (1 + mp.mpf("1e-14"))
    assert high >= min(exact, 1) * (1 - mp.mpf("1e-14"))
    other_low, other_high = DeltaCurve(composed(phases, tilt, window(phases, tilt)), epsilon).delta_bounds(epsilon)
    log_chernoff = float(log_mgf(phases, np.array([tilt]))[0] + log_kappa(np.array(tilt)) - tilt * epsilon)
    assert high - low - float(infinite) <= 3 * (other_high - other_low) + 1e-9 * math.exp(min(log_chernoff, 0.0))


@pytest.mark.parametrize("delta", [1e-3, 1e-8, 1e-15, 1e-22, 1e-30])
@pytest.mark.parametrize("offset", [0.0, -0.8, 0.8])
def test_epsilon_bounds_hold_down_to_tiny_deltas(delta, offset):
    mp.mp.dps = 60
    law, count = pmf([-2, -1, 0, 1, 2, 3, 7], [0.1, 0.3, 0.25, 0.2, 0.1, 0.05 - 1e-6, 1e-6], infinite=1e-34), 9
    parts, infinite = exact_law([(law, count)]), exact_infinite([(law, count)])
    curve = curve_at(law, count, tilt_for_delta([(law, count)], delta), offset)
    above, below = curve.epsilon_above(delta), curve.epsilon_below(delta)
    assert below <= above <= below + 1e-5 + 100 * 1e-34 / delta
    assert exact_delta(parts, MESH, above - offset, infinite) <= mp.mpf(delta) * (1 + mp.mpf("1e-13"))
    assert exact_delta(parts, MESH, below - offset, 0) >= mp.mpf(delta) * (1 - mp.mpf("1e-13"))


def test_what_no_epsilon_can_give():
    """∞ where infinite losses alone exceed δ; 0 where δ(0) is already smaller."""
    law = pmf([-1, 0, 1], [0.3, 0.4, 0.3 - 1e-6], infinite=1e-6)
    curve = curve_at(law, 5, 2.0)
    assert curve.epsilon_above(4e-6) == math.inf
    assert curve.epsilon_above(0.9) == curve.epsilon_below(0.9) == 0.0
    assert curve_at(law, 5, 2.0, -100.0).epsilon_above(1e-3) == 0.0


def test_what_is_left_out_is_charged():
    """Of 200 steps few frequencies are kept; with all kept the answer is the same within the error."""
    law = pmf([-2, -1, 0, 1, 2], [0.1, 0.2, 0.4, 0.2, 0.1])
    tilt = tilt_for_delta([(law, 200)], 1e-6)
    curve = curve_at(law, 200, tilt)
    assert curve.loss.frequency.size < 0.3 * curve.loss.size
    whole = DeltaCurve(composed([(law, 200)], tilt, window([(law, 200)], tilt)), 5.0)
    for epsilon in np.linspace(1.0, 12.0, 12):
        low, high = bounds_at(law, 200, tilt, float(epsilon))
        wide_low, wide_high = whole.delta_bounds(epsilon)
        assert low <= wide_high
        assert wide_low <= high


def test_steps_that_differ_or_are_too_rough_are_left_to_others():
    law = pmf([-1, 1], [0.5, 0.5])
    span = window([(law, 2), (law, 3)], 1.0)
    assert smooth_curve([(law, 2), (law, 3)], 1.0, span, 0.0, "upper") is None
    fine = pmf([-40000, 40000], [0.5, 0.5], mesh=1e-4)
    assert smooth_curve([(fine, 2)], 1.0, window([(fine, 2)], 1.0), 0.0, "upper") is None


def test_losses_far_above_an_offset_are_asked_left_of_zero():
    """δ = .9 lies at a negative ε of the losses less their offset."""
    mp.mp.dps = 30
    law = pmf([-1, 0, 1], [0.3, 0.4, 0.3])
    above = curve_at(law, 5, 2.0, 3.0, "upper").epsilon_above(0.9)
    below = curve_at(law, 5, 2.0, 3.0, "lower").epsilon_below(0.9)
    assert 0.1 < below <= above < 3.0 - 1.0
    for found, sign in ((above, 1), (below, -1)):
        assert sign * (exact_delta(exact_law([(law, 5)]), MESH, found - 3.0, 0) - 0.9) <= 1e-14
    assert above - below < 1e-7


def test_a_transform_that_vanishes_is_kept_where_its_rounding_does_not():
    """One step, uniform over the window: all but one frequency are 0, and each may be off by a rounding."""
    law = pmf(list(range(16)), [1 / 16] * 16)
    loss = FewFrequencies(law, np.ones(1), 1e-17, Window(0, 16))
    assert loss.frequency.size == 9
