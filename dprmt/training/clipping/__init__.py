"""Clipping of per-sample gradients: exact, ghost, and with estimated norms; whole or projected.

:func:`plan_private` decides how norms are computed, and records what the accountant composes. With the noise
multiplier, the plan makes model and optimizer private. :func:`dprmt.make_private` uses it.
"""

import dprmt.training._needs_train  # noqa: F401
from dprmt.training.clipping._optimizer import NoisySumOptimizer
from dprmt.training.clipping._plan import ClippingPlan, StepCosts, TensorMemory, plan_private
from dprmt.training.clipping._step import ClippedStep
from dprmt.training.clipping._units import Units

__all__ = ["ClippedStep", "ClippingPlan", "NoisySumOptimizer", "StepCosts", "TensorMemory", "Units"]
__all__ += ["plan_private"]
