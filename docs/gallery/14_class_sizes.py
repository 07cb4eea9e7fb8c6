"""Heavy-tailed class imbalance: as many samples in many rare classes as in few frequent ones."""

from dprmt.plots import plot_class_sizes

plot_class_sizes([2**k for k in range(10, 2, -1)], [2**k for k in range(8)])
