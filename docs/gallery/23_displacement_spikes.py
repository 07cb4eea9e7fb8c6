"""Since when can the displacement be seen? Its largest singular value crosses the edge of the noise, layer by layer."""

import numpy as np

from dprmt.plots import plot_displacement_spikes

steps = np.arange(5, 101, 5)
tops = {
    "layer 5, value": np.maximum(1.0, 0.16 * np.sqrt(steps)),
    "layer 4, value": np.maximum(0.99, 0.12 * np.sqrt(steps)),
    "layer 4, query": 0.98 + 0.02 * np.cos(steps),
}
plot_displacement_spikes(steps, tops, {"layer 5, value": 45, "layer 4, value": 80})
