"""Sorted singular values: clean, noisy, denoised, with the bulk edge and the detection threshold."""

import numpy as np

from dprmt.plots import plot_singular_values
from dprmt.spectra import denoise, detection_threshold

rng, shape = np.random.default_rng(0), (64, 256)
left, right = (np.linalg.qr(rng.standard_normal((side, 4)))[0] for side in shape)
clean = left * (detection_threshold(shape, 1.0) * np.array([4.0, 2.5, 1.6, 0.6])) @ right.T
noisy = clean + rng.standard_normal(shape)
values = [np.linalg.svd(x, compute_uv=False) for x in (noisy, clean, denoise(noisy, 1.0))]
plot_singular_values(values[0], shape, 1.0, clean=values[1], denoised=values[2])
