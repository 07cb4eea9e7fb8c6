"""Random matrix theory of noisy gradients: what survives in ``Y = X + σW``, and the best estimate of X.

NumPy arrays and torch tensors both work and come back as what they were; torch is never imported here.
"""

from dprmt.spectra._adam_bound import AdamImprovement, adam_bound_gap, adam_improvement_bound
from dprmt.spectra._alignment import BlockCosine, block_cosine, cosine_similarity, improvement, layer_improvements
from dprmt.spectra._checkpoint import CheckpointSpectra, spectra_of
from dprmt.spectra._denoise import LayerDenoiser, LayerReport, denoise, denoise_layers
from dprmt.spectra._marchenko_pastur import MarchenkoPastur
from dprmt.spectra._noise_level import NoiseFit, estimate_sigma, screenot_threshold, whiten
from dprmt.spectra._noisy_spectrum import NoisySpectrum, Spike, noisy_spectrum
from dprmt.spectra._phase_transition import (
    bulk_edge,
    detection_threshold,
    hard_threshold,
    predicted_spectrum,
    shrink,
    spike_map,
    spike_map_inverse,
    vector_overlaps,
)
from dprmt.spectra._telemetry import (
    Estimate,
    momentum_noise_scale,
    signal_energy,
    signal_energy_over_steps,
)
from dprmt.spectra._top_singular_value import TopSingularValue
from dprmt.spectra._tracy_widom import TracyWidom, false_alarm_rate, kappa_for, tracy_widom_edge, visible_signal

__all__ = [
    "AdamImprovement",
    "BlockCosine",
    "CheckpointSpectra",
    "Estimate",
    "LayerDenoiser",
    "LayerReport",
    "MarchenkoPastur",
    "NoiseFit",
    "NoisySpectrum",
    "Spike",
    "TopSingularValue",
    "TracyWidom",
    "adam_bound_gap",
    "adam_improvement_bound",
    "block_cosine",
    "bulk_edge",
    "cosine_similarity",
    "denoise",
    "denoise_layers",
    "detection_threshold",
    "estimate_sigma",
    "false_alarm_rate",
    "hard_threshold",
    "improvement",
    "kappa_for",
    "layer_improvements",
    "momentum_noise_scale",
    "noisy_spectrum",
    "predicted_spectrum",
    "screenot_threshold",
    "shrink",
    "signal_energy",
    "signal_energy_over_steps",
    "spectra_of",
    "spike_map",
    "spike_map_inverse",
    "tracy_widom_edge",
    "vector_overlaps",
    "visible_signal",
    "whiten",
]
