"""Layer by layer: the gain in cosine with the clean gradient against how far the layer stands out."""

import numpy as np

from dprmt.plots import plot_layer_improvement
from dprmt.spectra import bulk_edge, denoise, detection_threshold, improvement

rng, shape = np.random.default_rng(0), (32, 128)
ratios, gains = [], []
for strength in np.linspace(0.5, 2.0, 25):
    clean = strength * detection_threshold(shape, 1.0) * np.outer(np.eye(32)[0], np.eye(128)[0])
    noisy = clean + rng.standard_normal(shape)
    ratios.append(np.linalg.norm(noisy, 2) / bulk_edge(shape, 1.0))
    gains.append(improvement(denoise(noisy, 1.0, kappa=1.0, method="paper"), noisy, clean))
plot_layer_improvement({"32 × 128": (ratios, gains)})
