"""The decrease of a quadratic in one noisy step against its cosine with the gradient, and the lower bounds."""

import numpy as np

from dprmt.plots import plot_step_improvement
from dprmt.spectra import adam_improvement_bound, cosine_similarity

rng, size = np.random.default_rng(0), 30
gradient, hessian = rng.standard_normal(size), np.diag(np.linspace(0.1, 1.0, size))
scale = 1 + 0.1 * rng.random(size)  # the diagonal of Adam's preconditioner
columns = {"cosine": [], "improvement": [], "bound": [], "printed_bound": [], "weighted_bound": []}
for noise in np.linspace(0.0, 3.0, 20):
    step = gradient + noise * rng.standard_normal(size)
    found = adam_improvement_bound(gradient, step, scale, hessian, step_size=0.2 / (1 + noise**2))
    columns["cosine"].append(cosine_similarity(step, gradient))
    for name in list(columns)[1:]:
        columns[name].append(getattr(found, name))
plot_step_improvement({"noisy gradient": columns})
