"""The law of a randomized norm: estimated over true squared norm, drawn, exact, and the envelope of all spectra."""

import numpy as np

from dprmt.accounting import chi2_mixture_cdf, envelope_cdf
from dprmt.plots import plot_norm_ratios

probes, draws = 8, 400
shares = np.array([0.6, 0.3, 0.1])  # of the squared singular values of a gradient
ratios = np.sort(np.random.default_rng(0).chisquare(probes, (draws, 3)) @ shares / probes)
plot_norm_ratios(
    ratios,
    np.arange(1, draws + 1) / draws,
    predicted=chi2_mixture_cdf(ratios, shares / probes, [probes] * 3),
    envelope=envelope_cdf(ratios, probes=probes, rank=3),
    band=np.sqrt(np.log(2 / 0.05) / (2 * draws)),
)
