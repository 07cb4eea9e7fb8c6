"""Pictures. Every function that draws takes ``ax=`` and returns it; none shows, saves, or changes global state."""

from dprmt.plots._denoising import plot_improvement_over_steps, plot_kappa_sweep, plot_layer_improvement
from dprmt.plots._phase_transition import (
    plot_measured_overlaps,
    plot_measured_spikes,
    plot_overlaps,
    plot_spike_map,
)
from dprmt.plots._runs import (
    plot_epsilon_against_steps,
    plot_norm_ratios,
    plot_signal_shares,
    plot_trade_off,
)
from dprmt.plots._spectrum import plot_singular_values, plot_spectra, plot_spectrum_histogram
from dprmt.plots._style import save_picture

__all__ = [
    "plot_epsilon_against_steps",
    "plot_improvement_over_steps",
    "plot_kappa_sweep",
    "plot_layer_improvement",
    "plot_measured_overlaps",
    "plot_measured_spikes",
    "plot_norm_ratios",
    "plot_overlaps",
    "plot_signal_shares",
    "plot_singular_values",
    "plot_spectra",
    "plot_spectrum_histogram",
    "plot_spike_map",
    "plot_trade_off",
    "save_picture",
]
