"""Theory against measurement on real gradients: what `dprmt report` computes. It **reads clean gradients**.

`private_gradients` trains with DP-SGD and hands out, at every step, the clean and the noisy gradient of each layer.
`measure_spikes`, `measure_alignment` and `measure_norm_ratios` compare them with what the theory predicts. Their
results are private if the data are: for data that are public anyway, such as the docstrings of the standard library.
"""

from dprmt.training.validation._alignment import KAPPAS as KAPPAS
from dprmt.training.validation._alignment import AlignmentStep as AlignmentStep
from dprmt.training.validation._alignment import KappaPoint as KappaPoint
from dprmt.training.validation._alignment import LayerAlignment as LayerAlignment
from dprmt.training.validation._alignment import kappa_sweep as kappa_sweep
from dprmt.training.validation._alignment import measure_alignment as measure_alignment
from dprmt.training.validation._demo import RecipeExperiment as RecipeExperiment
from dprmt.training.validation._demo import recipe_experiment as recipe_experiment
from dprmt.training.validation._norm_ratio import NormRatios as NormRatios
from dprmt.training.validation._norm_ratio import measure_norm_ratios as measure_norm_ratios
from dprmt.training.validation._run import Experiment as Experiment
from dprmt.training.validation._run import GradientStep as GradientStep
from dprmt.training.validation._run import RunOptions as RunOptions
from dprmt.training.validation._run import private_gradients as private_gradients
from dprmt.training.validation._spikes import Agreement as Agreement
from dprmt.training.validation._spikes import Spike as Spike
from dprmt.training.validation._spikes import agreement as agreement
from dprmt.training.validation._spikes import measure_spikes as measure_spikes

__all__ = [
    "KAPPAS",
    "Agreement",
    "AlignmentStep",
    "Experiment",
    "GradientStep",
    "KappaPoint",
    "LayerAlignment",
    "NormRatios",
    "RecipeExperiment",
    "RunOptions",
    "Spike",
    "agreement",
    "kappa_sweep",
    "measure_alignment",
    "measure_norm_ratios",
    "measure_spikes",
    "private_gradients",
    "recipe_experiment",
]
