"""Loss against the ε that has been spent: a quadratic under noise, by learning rate, three seeds each."""

import numpy as np

from dprmt.accounting import DPSGD
from dprmt.plots import plot_metric_against_epsilon

steps = np.array([1, 5, 10, 20, 40])
spent = [DPSGD(1.0, 0.05).epsilon(steps=int(step), delta=1e-5).upper for step in steps]
curves = {}
for rate in (0.05, 0.2):
    losses = []
    for seed in range(3):
        rng, x, path = np.random.default_rng(seed), np.ones(50), []
        for _ in range(40):
            x = x - rate * (x + rng.standard_normal(50))
            path.append(x @ x / 100)
        losses.append([path[step - 1] for step in steps])
    curves[f"rate {rate}"] = spent, losses
plot_metric_against_epsilon(curves, metric="loss")
