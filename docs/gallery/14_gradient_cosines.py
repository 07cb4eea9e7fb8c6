"""Per-sample gradients of a softmax layer: samples of one class pull together."""

import numpy as np

from dprmt.plots import plot_gradient_cosines

rng, labels = np.random.default_rng(0), np.repeat(range(4), 12)
points = np.linalg.qr(rng.standard_normal((32, 4)))[0].T[labels] + 0.1 * rng.standard_normal((48, 32))
scores = np.eye(4)[labels] - 0.25
gradients = np.einsum("ik,id->ikd", scores, points).reshape(48, -1)
gradients /= np.linalg.norm(gradients, axis=1, keepdims=True)
plot_gradient_cosines(np.clip(gradients @ gradients.T, -1, 1), labels)
