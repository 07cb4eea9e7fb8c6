"""The phase transition: below the detection threshold a signal leaves no trace."""

from dprmt.plots import plot_spike_map

plot_spike_map((64, 256), 1.0)
