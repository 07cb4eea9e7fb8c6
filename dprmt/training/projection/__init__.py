"""DP-GRAPE: gradients projected in the backward pass, clipped and noised in the projected space.

:func:`make_private_projected` turns a model into a private step; `dprmt.training.optimizers.DPGrape` is the optimizer
in it and :class:`Subspaces` are its projectors. Numbers stored per sample of a layer with weight m × n (m >= n), T
tokens:

===========================================  =================  ==========================
what                                         per sample         moments
===========================================  =================  ==========================
whole gradients (DP-Adam)                    m·n                2·m·n
projected (``norms="materialize"``)          r·n                2·r·n
projected, as factors (``norms="ghost"``)    T·(r + n)          2·r·n
===========================================  =================  ==========================
"""

from dprmt.training.projection._dp_optimizer import ProjectedDPOptimizer as ProjectedDPOptimizer
from dprmt.training.projection._layers import ProjectedLayer as ProjectedLayer
from dprmt.training.projection._make import make_private_projected as make_private_projected
from dprmt.training.projection._memory import TensorMemory as TensorMemory
from dprmt.training.projection._module import ProjectedGradSampleModule as ProjectedGradSampleModule
from dprmt.training.projection._ranks import EnergyShare as EnergyShare
from dprmt.training.projection._ranks import LayerShape as LayerShape
from dprmt.training.projection._ranks import at_most as at_most
from dprmt.training.projection._ranks import share_of_dimension as share_of_dimension
from dprmt.training.projection._samplers import projected_grad_samples as projected_grad_samples
from dprmt.training.projection._samplers import projected_squared_norms as projected_squared_norms
from dprmt.training.projection._step import ProjectedStep as ProjectedStep
from dprmt.training.projection._subspaces import Subspaces as Subspaces

__all__ = [
    "EnergyShare",
    "LayerShape",
    "ProjectedDPOptimizer",
    "ProjectedGradSampleModule",
    "ProjectedLayer",
    "ProjectedStep",
    "Subspaces",
    "TensorMemory",
    "at_most",
    "make_private_projected",
    "projected_grad_samples",
    "projected_squared_norms",
    "share_of_dimension",
]
