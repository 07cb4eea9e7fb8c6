"""Is it learning? The change of the objective along a private run, from what it releases anyway, with its band."""

import numpy as np

from dprmt.plots import plot_objective_change

steps = np.arange(10, 201, 10)
change = -0.8 * (1 - np.exp(-steps / 60))
half = 0.012 * np.sqrt(steps)
plot_objective_change(steps, change, change - half, change + half)
