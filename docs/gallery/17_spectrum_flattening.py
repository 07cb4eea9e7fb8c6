"""Noise flattens a spectrum: singular values in units of the largest, clean and at two noise levels."""

import numpy as np

from dprmt.plots import plot_spectrum_flattening

rng, shape = np.random.default_rng(0), (64, 256)
left, right = (np.linalg.qr(rng.standard_normal((side, 64)))[0] for side in shape)
clean = 60 * (left * np.arange(1, 65) ** -1.0) @ right.T
noisy = {f"σ = {level}": clean + level * rng.standard_normal(shape) for level in (0.3, 1.0)}
clean, *flat = np.linalg.svd(np.stack([clean, *noisy.values()]), compute_uv=False)
plot_spectrum_flattening(clean, dict(zip(noisy, flat, strict=True)))
