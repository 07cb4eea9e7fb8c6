"""Measured top singular values of simulated noisy matrices on the phase transition, in units that all shapes share."""

import numpy as np

from dprmt.plots import plot_measured_spikes
from dprmt.spectra import bulk_edge, detection_threshold

rng, points = np.random.default_rng(0), {}
for shape in ((16, 128), (64, 64)):
    signals = np.geomspace(0.2, 6.0, 15)
    spike = detection_threshold(shape, 1.0) * np.outer(np.eye(shape[0])[0], np.eye(shape[1])[0])
    tops = [np.linalg.norm(signal * spike + rng.standard_normal(shape), 2) for signal in signals]
    points[shape] = signals, np.array(tops) / bulk_edge(shape, 1.0)
plot_measured_spikes(points)
