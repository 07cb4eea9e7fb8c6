"""Many matrices."""

import numpy as np

from dprmt.plots import plot_spectra
from dprmt.spectra import spectra_of

rng = np.random.default_rng(0)
layers = {f"layers.{i}.query": rng.standard_normal((64, 256)) for i in range(8)}
layers["layers.3.query"][:, 0] += 4.0
layers["layers.6.query"] *= 1.4
plot_spectra(spectra_of(layers, sigma=1.0))
