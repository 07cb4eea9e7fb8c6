"""Pictures. Every function that draws takes ``ax=`` and returns it; none shows, saves, or changes global state."""

from dprmt.plots._accuracy import plot_accuracy_over_steps as plot_accuracy_over_steps
from dprmt.plots._denoising import plot_kappa_sweep as plot_kappa_sweep
from dprmt.plots._denoising import plot_layer_improvement as plot_layer_improvement
from dprmt.plots._flattening import plot_spectrum_flattening as plot_spectrum_flattening
from dprmt.plots._heavy_tail import plot_gradient_cosines as plot_gradient_cosines
from dprmt.plots._heavy_tail import plot_metric_against_epsilon as plot_metric_against_epsilon
from dprmt.plots._heavy_tail import plot_metric_against_step as plot_metric_against_step
from dprmt.plots._phase_transition import plot_overlaps as plot_overlaps
from dprmt.plots._phase_transition import plot_spike_map as plot_spike_map
from dprmt.plots._privacy import plot_epsilon_against_steps as plot_epsilon_against_steps
from dprmt.plots._privacy import plot_trade_off as plot_trade_off
from dprmt.plots._quadratic import plot_step_improvement as plot_step_improvement
from dprmt.plots._save import save_picture as save_picture
from dprmt.plots._spectrum import plot_singular_values as plot_singular_values
from dprmt.plots._spectrum import plot_spectra as plot_spectra
from dprmt.plots._spectrum import plot_spectrum_histogram as plot_spectrum_histogram
from dprmt.plots._telemetry import plot_displacement_spikes as plot_displacement_spikes
from dprmt.plots._telemetry import plot_objective_change as plot_objective_change
from dprmt.plots._telemetry import plot_rate_advice as plot_rate_advice
from dprmt.plots._telemetry import plot_signal_shares as plot_signal_shares
from dprmt.plots._validation import plot_improvement_over_steps as plot_improvement_over_steps
from dprmt.plots._validation import plot_measured_overlaps as plot_measured_overlaps
from dprmt.plots._validation import plot_measured_spikes as plot_measured_spikes
from dprmt.plots._validation import plot_norm_ratios as plot_norm_ratios
from dprmt.plots._validation import plot_prediction_errors as plot_prediction_errors

__all__ = [
    "plot_accuracy_over_steps",
    "plot_displacement_spikes",
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
    "plot_objective_change",
    "plot_overlaps",
    "plot_prediction_errors",
    "plot_rate_advice",
    "plot_signal_shares",
    "plot_singular_values",
    "plot_spectra",
    "plot_spectrum_flattening",
    "plot_spectrum_histogram",
    "plot_spike_map",
    "plot_step_improvement",
    "plot_trade_off",
    "save_picture",
]
