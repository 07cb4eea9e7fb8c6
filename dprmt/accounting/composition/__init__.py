"""From steps to certified bounds: discrete losses, tilted transforms, refinement until the interval is narrow."""

from __future__ import annotations

from dprmt.accounting.composition._composed_loss import (
    ComposedLoss,
    composed_powers,
    log_kappa,
    tilt_for_delta,
    window_of,
)
from dprmt.accounting.composition._delta_curve import DeltaCurve
from dprmt.accounting.composition._delta_size import least_upper, reachable
from dprmt.accounting.composition._level import Level, loss_drift, step_laws
from dprmt.accounting.composition._question import Curve, DeltaAtEpsilon, EpsilonAtDelta, Question, WholeCurve
from dprmt.accounting.composition._solve import (
    InconsistentBoundsError,
    Progress,
    improve,
    intersection,
    interval,
    levels,
    solve,
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
