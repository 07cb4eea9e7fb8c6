"""Measured squared overlaps of singular vectors with the clean ones, and the predicted curves."""

import numpy as np

from dprmt.plots import plot_measured_overlaps
from dprmt.spectra import detection_threshold

rng, shape = np.random.default_rng(0), (32, 256)
signals, left, right = np.geomspace(0.2, 6.0, 20), [], []
for signal in signals:
    clean = signal * detection_threshold(shape, 1.0) * np.outer(np.eye(32)[0], np.eye(256)[0])
    u, _, vt = np.linalg.svd(clean + rng.standard_normal(shape), full_matrices=False)
    left.append(u[0, 0] ** 2)
    right.append(vt[0, 0] ** 2)
plot_measured_overlaps({shape: (signals, left, right)})
