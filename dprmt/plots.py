"""Pictures. Every function takes ``ax=`` and returns it; none shows, saves, or changes global state."""

from dprmt._plots.accuracy import plot_accuracy_over_steps as plot_accuracy_over_steps
from dprmt._plots.denoising import plot_kappa_sweep as plot_kappa_sweep
from dprmt._plots.denoising import plot_layer_improvement as plot_layer_improvement
from dprmt._plots.flattening import plot_spectrum_flattening as plot_spectrum_flattening
from dprmt._plots.heavy_tail import plot_class_blocks as plot_class_blocks
from dprmt._plots.heavy_tail import plot_class_sizes as plot_class_sizes
from dprmt._plots.heavy_tail import plot_gradient_cosines as plot_gradient_cosines
from dprmt._plots.heavy_tail import plot_metric_against_epsilon as plot_metric_against_epsilon
from dprmt._plots.heavy_tail import plot_metric_against_step as plot_metric_against_step
from dprmt._plots.phase_transition import plot_overlaps as plot_overlaps
from dprmt._plots.phase_transition import plot_spike_map as plot_spike_map
from dprmt._plots.privacy import plot_epsilon_against_steps as plot_epsilon_against_steps
from dprmt._plots.privacy import plot_trade_off as plot_trade_off
from dprmt._plots.quadratic import plot_step_improvement as plot_step_improvement
from dprmt._plots.spectrum import plot_singular_values as plot_singular_values
from dprmt._plots.spectrum import plot_spectrum_histogram as plot_spectrum_histogram
from dprmt._plots.validation import plot_improvement_over_steps as plot_improvement_over_steps
from dprmt._plots.validation import plot_measured_overlaps as plot_measured_overlaps
from dprmt._plots.validation import plot_measured_spikes as plot_measured_spikes
from dprmt._plots.validation import plot_norm_ratios as plot_norm_ratios
from dprmt._plots.validation import plot_prediction_errors as plot_prediction_errors

__all__ = [
    "plot_accuracy_over_steps",
    "plot_class_blocks",
    "plot_class_sizes",
    "plot_epsilon_against_steps",
    "plot_gradient_cosines",
    "plot_improvement_over_steps",
    "plot_kappa_sweep",
    "plot_layer_improvement",
    "plot_measured_overlaps",
    "plot_measured_spikes",
    "plot_metric_against_epsilon",
    "plot_metric_against_step",
    "plot_norm_ratios",
    "plot_overlaps",
    "plot_prediction_errors",
    "plot_singular_values",
    "plot_spectrum_flattening",
    "plot_spectrum_histogram",
    "plot_spike_map",
    "plot_step_improvement",
    "plot_trade_off",
]
