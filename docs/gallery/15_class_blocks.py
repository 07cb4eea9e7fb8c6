"""The gradient of a softmax layer, class by class, against the frequency of the class, at equal scores."""

import numpy as np

from dprmt.plots import plot_class_blocks

rng, sizes = np.random.default_rng(0), np.array([512, 256, 128, 64, 32, 16, 8, 4])
share, classes = sizes / sizes.sum(), len(sizes)
centres = np.linalg.qr(rng.standard_normal((32, classes)))[0].T
own = share[:, None] * centres  # Σ of the inputs of a class over all samples
gradient = own - (share @ centres) / classes
plot_class_blocks(share, np.linalg.norm(gradient, axis=1), np.linalg.norm(own, axis=1), quantity="gradient norm")
