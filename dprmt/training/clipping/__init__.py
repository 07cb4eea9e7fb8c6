"""Clipping of per-sample gradients: exact, ghost, and with estimated norms; whole or projected.

:func:`plan_private` decides how norms are computed, and records what the accountant composes. With the noise
multiplier, the plan makes model and optimizer private. :func:`dprmt.make_private` uses it. :func:`allocation_loader`
adds random allocation to a loop on Opacus' engine.
"""

import dprmt.training._needs_train  # noqa: F401
from dprmt.training.clipping._allocation_loader import AllocationSampler as AllocationSampler
from dprmt.training.clipping._allocation_loader import allocation_loader as allocation_loader
from dprmt.training.clipping._costs import StepCosts as StepCosts
from dprmt.training.clipping._costs import TensorMemory as TensorMemory
from dprmt.training.clipping._costs import WayCost as WayCost
from dprmt.training.clipping._optimizer import NoisySumOptimizer as NoisySumOptimizer
from dprmt.training.clipping._optimizer import sum_of as sum_of
from dprmt.training.clipping._plan import ClippingPlan as ClippingPlan
from dprmt.training.clipping._plan import plan_private as plan_private
from dprmt.training.clipping._sharded_step import ShardedNoisySumOptimizer as ShardedNoisySumOptimizer
from dprmt.training.clipping._sharded_step import ShardedStep as ShardedStep
from dprmt.training.clipping._step import ClippedStep as ClippedStep
from dprmt.training.clipping._unit_step import UnitStep as UnitStep
from dprmt.training.clipping._units import Units as Units

__all__ = [
    "AllocationSampler",
    "ClippedStep",
    "ClippingPlan",
    "NoisySumOptimizer",
    "ShardedNoisySumOptimizer",
    "ShardedStep",
    "StepCosts",
    "TensorMemory",
    "UnitStep",
    "Units",
    "WayCost",
    "allocation_loader",
    "plan_private",
    "sum_of",
]
