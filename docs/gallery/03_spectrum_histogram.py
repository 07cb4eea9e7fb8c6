"""Singular values of a noisy matrix against the Marchenko–Pastur law of its noise, with two spikes."""

import numpy as np

from dprmt.plots import plot_spectrum_histogram
from dprmt.spectra import detection_threshold

rng, shape = np.random.default_rng(0), (128, 384)
signals = detection_threshold(shape, 1.0) * np.array([2.5, 1.6])
left, right = (np.linalg.qr(rng.standard_normal((side, 2)))[0] for side in shape)
noisy = left * signals @ right.T + rng.standard_normal(shape)
plot_spectrum_histogram(np.linalg.svd(noisy, compute_uv=False), shape, 1.0, signals=signals)
