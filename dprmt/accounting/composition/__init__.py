"""From steps to certified bounds: discrete losses, tilted transforms, refinement until the interval is narrow."""

from __future__ import annotations

from dprmt.accounting.composition._compose import ComposedLoss, best_tilt, composed, log_kappa, window
from dprmt.accounting.composition._curve import (
    Curve,
    DeltaAtEpsilon,
    DeltaCurve,
    EpsilonAtDelta,
    OneStepCurve,
    Question,
)
from dprmt.accounting.composition._solve import (
    MOST_WORK,
    InconsistentBoundsError,
    Level,
    intersection,
    interval,
    least_resolved,
    levels,
    loss_drift,
    sized,
    solve,
    step_laws,
)

__all__ = [
    "MOST_WORK",
    "ComposedLoss",
    "Curve",
    "DeltaAtEpsilon",
    "DeltaCurve",
    "EpsilonAtDelta",
    "InconsistentBoundsError",
    "Level",
    "OneStepCurve",
    "Question",
    "best_tilt",
    "composed",
    "intersection",
    "interval",
    "least_resolved",
    "levels",
    "log_kappa",
    "loss_drift",
    "sized",
    "solve",
    "step_laws",
    "window",
]
