"""Clipping of per-sample gradients on Opacus' hooks: exact, ghost, and with estimated norms.

:func:`plan_private` decides how norms are obtained, and knows what the accountant must be told; with the noise
multiplier that this leads to, the plan makes model and optimizer private. :func:`make_private` does both at once. Who
runs Opacus' own ghost clipping loop registers the estimators with :func:`register_norm_samplers`.
"""

from dprmt.training.clipping._clipped_step import ClippedStep as ClippedStep
from dprmt.training.clipping._make_private import make_private as make_private
from dprmt.training.clipping._plan import ClippingPlan as ClippingPlan
from dprmt.training.clipping._plan import plan_private as plan_private
from dprmt.training.clipping._samplers import NormSamplers as NormSamplers
from dprmt.training.clipping._samplers import register_norm_samplers as register_norm_samplers

__all__ = ["ClippedStep", "ClippingPlan", "NormSamplers", "make_private", "plan_private", "register_norm_samplers"]
