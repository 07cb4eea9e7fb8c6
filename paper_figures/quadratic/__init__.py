"""The quadratic model of appendix I of arXiv:2510.01137v3 on the curvature of a real layer.

Proposition I.1 is not true as printed; what is recorded and drawn is the corrected bound beside the printed one.
"""

from paper_figures.quadratic._curvature import LayerQuadratic as LayerQuadratic
from paper_figures.quadratic._curvature import digits_layer as digits_layer
from paper_figures.quadratic._curvature import layer_quadratic as layer_quadratic
from paper_figures.quadratic._steps import StepMethod as StepMethod
from paper_figures.quadratic._steps import StepRecord as StepRecord
from paper_figures.quadratic._steps import one_step_improvements as one_step_improvements

__all__ = [
    "LayerQuadratic",
    "StepMethod",
    "StepRecord",
    "digits_layer",
    "layer_quadratic",
    "one_step_improvements",
]
