"""Final loss against the learning rate: noise makes long steps costly."""

import numpy as np

from dprmt.plots import plot_metric_against_step

rates, losses = np.geomspace(0.01, 1.0, 12), []
for seed in range(3):
    noise = np.random.default_rng(seed).standard_normal((40, 50))
    x = np.ones((len(rates), 50))
    for step in noise:
        x = x - rates[:, None] * (x + step)
    losses.append((x**2).sum(1) / 100)
plot_metric_against_step({"gradient descent": (rates, losses)}, metric="loss")
