"""Which layers are noise? The signal's share in each layer's released gradient, with intervals; grey: none seen."""

from dprmt.plots import plot_signal_shares

layers = {
    "classifier": (0.42, 0.36, 0.47),
    "layer 5, value": (0.12, 0.05, 0.18),
    "layer 5, query": (0.02, 0.0, 0.08),
    "layer 4, value": (-0.01, 0.0, 0.06),
}
plot_signal_shares(layers)
