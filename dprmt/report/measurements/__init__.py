"""Theory against measurement on real gradients: what `dprmt report` computes. It **reads clean gradients**.

`private_gradients` trains with DP-SGD and hands out, at every step, the clean and the noisy gradient of each layer.
`measure_spikes`, `measure_alignment` and `measure_norm_ratios` compare them with what the theory predicts. Their
results are private if the data are: for data that are public anyway, such as the docstrings of the standard library.
"""

from dprmt._lazy import public_names as _public_names
from dprmt.report.measurements._alignment import KAPPAS as KAPPAS
from dprmt.report.measurements._alignment import AlignmentStep as AlignmentStep
from dprmt.report.measurements._alignment import KappaPoint as KappaPoint
from dprmt.report.measurements._alignment import LayerAlignment as LayerAlignment
from dprmt.report.measurements._alignment import kappa_sweep as kappa_sweep
from dprmt.report.measurements._alignment import measure_alignment as measure_alignment
from dprmt.report.measurements._norm_ratio import NormRatios as NormRatios
from dprmt.report.measurements._norm_ratio import measure_norm_ratios as measure_norm_ratios
from dprmt.report.measurements._run import Experiment as Experiment
from dprmt.report.measurements._run import GradientStep as GradientStep
from dprmt.report.measurements._run import RecipeExperiment as RecipeExperiment
from dprmt.report.measurements._run import losses_without_noise as losses_without_noise
from dprmt.report.measurements._run import private_gradients as private_gradients
from dprmt.report.measurements._run import recipe_experiment as recipe_experiment
from dprmt.report.measurements._run import telemetry_readings as telemetry_readings
from dprmt.report.measurements._spectra import LayerSpectra as LayerSpectra
from dprmt.report.measurements._spectra import measure_spectra as measure_spectra
from dprmt.report.measurements._spikes import Agreement as Agreement
from dprmt.report.measurements._spikes import Spike as Spike
from dprmt.report.measurements._spikes import agreement as agreement
from dprmt.report.measurements._spikes import measure_spikes as measure_spikes

__all__ = _public_names(vars())
