"""Theory against measurement on real gradients: what `dprmt report` computes. It **reads clean gradients**.

`private_gradients` trains with DP-SGD and hands out, at every step, the clean and the noisy gradient of each layer.
`measure_spikes`, `measure_alignment` and `measure_norm_ratios` compare them with what the theory predicts. Their
results are private if the data are: for data that are public anyway, such as the docstrings of the standard library.
"""

from dprmt.report.measurements._alignment import (
    KAPPAS,
    AlignmentStep,
    KappaPoint,
    LayerAlignment,
    kappa_sweep,
    measure_alignment,
)
from dprmt.report.measurements._norm_ratio import NormRatios, measure_norm_ratios
from dprmt.report.measurements._run import (
    Experiment,
    GradientStep,
    RecipeExperiment,
    losses_without_noise,
    private_gradients,
    recipe_experiment,
    telemetry_readings,
)
from dprmt.report.measurements._spectra import LayerSpectra, measure_spectra
from dprmt.report.measurements._spikes import Agreement, Spike, agreement, measure_spikes

__all__ = [
    "KAPPAS",
    "Agreement",
    "AlignmentStep",
    "Experiment",
    "GradientStep",
    "KappaPoint",
    "LayerAlignment",
    "LayerSpectra",
    "NormRatios",
    "RecipeExperiment",
    "Spike",
    "agreement",
    "kappa_sweep",
    "losses_without_noise",
    "measure_alignment",
    "measure_norm_ratios",
    "measure_spectra",
    "measure_spikes",
    "private_gradients",
    "recipe_experiment",
    "telemetry_readings",
]
