"""Pictures. Every function that draws takes ``ax=`` and returns it; none shows, saves, or changes global state."""

from dprmt._lazy import public_names as _public_names
from dprmt.plots._phase_transition import plot_measured_overlaps as plot_measured_overlaps
from dprmt.plots._phase_transition import plot_measured_spikes as plot_measured_spikes
from dprmt.plots._phase_transition import plot_overlaps as plot_overlaps
from dprmt.plots._phase_transition import plot_spike_map as plot_spike_map
from dprmt.plots._runs import plot_epsilon_against_steps as plot_epsilon_against_steps
from dprmt.plots._runs import plot_improvement_over_steps as plot_improvement_over_steps
from dprmt.plots._runs import plot_kappa_sweep as plot_kappa_sweep
from dprmt.plots._runs import plot_layer_improvement as plot_layer_improvement
from dprmt.plots._runs import plot_norm_ratios as plot_norm_ratios
from dprmt.plots._runs import plot_signal_shares as plot_signal_shares
from dprmt.plots._runs import plot_trade_off as plot_trade_off
from dprmt.plots._spectrum import plot_singular_values as plot_singular_values
from dprmt.plots._spectrum import plot_spectra as plot_spectra
from dprmt.plots._spectrum import plot_spectrum_histogram as plot_spectrum_histogram

__all__ = _public_names(vars())
