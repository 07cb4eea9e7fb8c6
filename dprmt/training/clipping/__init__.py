"""Clipping of per-sample gradients on Opacus' hooks: exact, ghost, and with estimated norms.

:func:`make_private` gives a private step (``dprmt.training._private_step``) for any of the four. Who runs
Opacus' own ghost clipping loop registers the estimators with :func:`register_norm_samplers`.
"""

from dprmt.training.clipping._clipped_step import ClippedStep as ClippedStep
from dprmt.training.clipping._make_private import make_private as make_private
from dprmt.training.clipping._samplers import NormSamplers as NormSamplers
from dprmt.training.clipping._samplers import register_norm_samplers as register_norm_samplers

__all__ = ["ClippedStep", "NormSamplers", "make_private", "register_norm_samplers"]
