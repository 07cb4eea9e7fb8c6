"""Accuracy along training, mean and spread over seeds: logistic regression with noise in its gradient."""

import numpy as np

from dprmt.plots import plot_accuracy_over_steps

steps, accuracy = [1, 5, 10, 20, 40], {}
for noise in (0.0, 0.1):
    runs = []
    for seed in range(4):
        rng = np.random.default_rng(seed)
        truth, x, w, path = rng.standard_normal(20), rng.standard_normal((400, 20)), np.zeros(20), []
        y = x @ truth + rng.standard_normal(400) > 0
        for _ in range(40):
            residual = y - 1 / (1 + np.exp(-x @ w))
            w = w + 0.5 * (x.T @ residual / 400 + noise * rng.standard_normal(20))
            path.append(np.mean((x @ w > 0) == y))
        runs.append([path[step - 1] for step in steps])
    accuracy["without noise" if noise == 0 else f"σ = {noise}"] = runs
plot_accuracy_over_steps(steps, accuracy)
