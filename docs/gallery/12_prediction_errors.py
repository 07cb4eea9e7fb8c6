"""By how much the top singular value of one draw differs from its prediction."""

import numpy as np

from dprmt.plots import plot_prediction_errors
from dprmt.spectra import detection_threshold, spike_map

rng, shape = np.random.default_rng(0), (64, 256)
signals, errors = np.geomspace(0.2, 6.0, 30), []
for signal in signals * detection_threshold(shape, 1.0):
    noisy = signal * np.outer(np.eye(64)[0], np.eye(256)[0]) + rng.standard_normal(shape)
    errors.append(np.linalg.norm(noisy, 2) / spike_map(signal, shape, 1.0) - 1)
plot_prediction_errors({shape: (signals, errors)})
