"""Improvement over the steps of a run: of Eq. 10, and of the blend of a study, on a slowly falling spectrum."""

from functools import partial

import numpy as np

from dprmt.plots import plot_improvement_over_steps
from dprmt.spectra import denoise, detection_threshold, improvement
from paper_figures.shrinkers import blend

paper = partial(denoise, method="paper")

rng, shape = np.random.default_rng(0), (48, 96)
left, right = (np.linalg.qr(rng.standard_normal((side, 48)))[0] for side in shape)
clean = 2 * detection_threshold(shape, 1.0) * (left * np.arange(1, 49) ** -0.5) @ right.T
noisy = [clean + rng.standard_normal(shape) for _ in range(12)]
curves = {name: [improvement(f(y, 1.0), y, clean) for y in noisy] for name, f in (("Eq. 10", paper), ("blend", blend))}
plot_improvement_over_steps(range(1, 13), curves)
