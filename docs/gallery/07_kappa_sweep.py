"""The gate κ: of the matrices that pass it, how many gain alignment, and how many pass. Simulated weak spikes."""

import numpy as np

from dprmt.plots import plot_kappa_sweep
from dprmt.spectra import bulk_edge, denoise, detection_threshold, improvement, kappa_for

rng, shape, kappas = np.random.default_rng(0), (16, 128), np.array([1.0, 1.02, 1.05, 1.1, 1.2])
spike = np.outer(np.eye(16)[0], np.eye(128)[0])
ratios, gains = [], []
for strength in rng.uniform(0.3, 1.8, 150):
    clean = strength * detection_threshold(shape, 1.0) * spike
    noisy = clean + rng.standard_normal(shape)
    ratios.append(np.linalg.norm(noisy, 2) / bulk_edge(shape, 1.0))
    gains.append(improvement(denoise(noisy, 1.0, kappa=1.0, method="paper"), noisy, clean))
passing = np.array(ratios) >= kappas[:, None]
improved = (passing & (np.array(gains) > 0)).sum(1) / passing.sum(1)
plot_kappa_sweep(
    kappas,
    {"16 × 128": improved},
    passed={"16 × 128": passing.mean(1)},
    kappa=kappa_for(shape, 0.01),
)
