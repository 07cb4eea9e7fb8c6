"""What singular vectors of the noisy matrix are worth: their squared overlap with the clean ones."""

from dprmt.plots import plot_overlaps

plot_overlaps((64, 256), 1.0)
