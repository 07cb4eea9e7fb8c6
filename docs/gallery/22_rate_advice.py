"""Is the rate too high or too low? The factor that all that was done lacks, at every reading of a run."""

import numpy as np

from dprmt.plots import plot_rate_advice

steps = np.arange(20, 201, 20)
factor = 1 + 100 / steps
plot_rate_advice(steps, factor, 1 + 50 / steps, np.where(steps < 60, np.inf, 1 + 250 / steps))
