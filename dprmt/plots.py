"""Pictures. Every function takes ``ax=`` and returns it; none shows, saves, or changes global state."""

from dprmt._plots.denoising import plot_kappa_sweep as plot_kappa_sweep
from dprmt._plots.denoising import plot_layer_improvement as plot_layer_improvement
from dprmt._plots.phase_transition import plot_overlaps as plot_overlaps
from dprmt._plots.phase_transition import plot_spike_map as plot_spike_map
from dprmt._plots.privacy import plot_epsilon_against_steps as plot_epsilon_against_steps
from dprmt._plots.privacy import plot_trade_off as plot_trade_off
from dprmt._plots.spectrum import plot_singular_values as plot_singular_values
from dprmt._plots.spectrum import plot_spectrum_histogram as plot_spectrum_histogram

__all__ = [
    "plot_epsilon_against_steps",
    "plot_kappa_sweep",
    "plot_layer_improvement",
    "plot_overlaps",
    "plot_singular_values",
    "plot_spectrum_histogram",
    "plot_spike_map",
    "plot_trade_off",
]
