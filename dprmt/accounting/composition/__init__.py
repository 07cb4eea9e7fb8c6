"""From steps to certified bounds: discrete losses, tilted transforms, refinement until the interval is narrow."""

from __future__ import annotations

from dprmt.accounting.composition._compose import (
    ComposedLoss,
    composed_powers,
    log_kappa,
    tilt_for_delta,
    window_of,
)
from dprmt.accounting.composition._curve import Curve, DeltaAtEpsilon, DeltaCurve, EpsilonAtDelta, Question, WholeCurve
from dprmt.accounting.composition._solve import (
    InconsistentBoundsError,
    Level,
    Progress,
    improve,
    intersection,
    interval,
    is_hopeless,
    least_upper,
    levels,
    loss_drift,
    reachable,
    solve,
    step_laws,
)

__all__ = [
    "ComposedLoss",
    "Curve",
    "DeltaAtEpsilon",
    "DeltaCurve",
    "EpsilonAtDelta",
    "InconsistentBoundsError",
    "Level",
    "Progress",
    "Question",
    "WholeCurve",
    "composed_powers",
    "improve",
    "intersection",
    "interval",
    "is_hopeless",
    "least_upper",
    "levels",
    "log_kappa",
    "loss_drift",
    "reachable",
    "solve",
    "step_laws",
    "tilt_for_delta",
    "window_of",
]
