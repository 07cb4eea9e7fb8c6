"""Random matrix theory of noisy gradients: what survives in ``Y = X + σW``, and the best estimate of X.

NumPy arrays and torch tensors both work and come back as what they were; torch is never imported here.
"""

from dprmt.spectra._adam_bound import AdamImprovement as AdamImprovement
from dprmt.spectra._adam_bound import adam_bound_gap as adam_bound_gap
from dprmt.spectra._adam_bound import adam_improvement_bound as adam_improvement_bound
from dprmt.spectra._alignment import StepComparison as StepComparison
from dprmt.spectra._alignment import compare_sgd_steps as compare_sgd_steps
from dprmt.spectra._alignment import cosine_similarity as cosine_similarity
from dprmt.spectra._alignment import improvement as improvement
from dprmt.spectra._alignment import layer_improvements as layer_improvements
from dprmt.spectra._blend import blend as blend
from dprmt.spectra._blend_layers import BlendReport as BlendReport
from dprmt.spectra._blend_layers import blend_layers as blend_layers
from dprmt.spectra._blend_memory import BlendMemory as BlendMemory
from dprmt.spectra._block_cosine import BlockCosine as BlockCosine
from dprmt.spectra._block_cosine import block_cosine as block_cosine
from dprmt.spectra._denoise import denoise as denoise
from dprmt.spectra._denoise import denoise_layers as denoise_layers
from dprmt.spectra._denoiser import LayerDenoiser as LayerDenoiser
from dprmt.spectra._divergence import spectral_divergence as spectral_divergence
from dprmt.spectra._layers import LayerReport as LayerReport
from dprmt.spectra._marchenko_pastur import MarchenkoPastur as MarchenkoPastur
from dprmt.spectra._momentum_noise import momentum_noise_scale as momentum_noise_scale
from dprmt.spectra._noise_gain import NoiseGain as NoiseGain
from dprmt.spectra._noise_gain import noise_gain_bound as noise_gain_bound
from dprmt.spectra._noise_level import estimate_sigma as estimate_sigma
from dprmt.spectra._phase_transition import bulk_edge as bulk_edge
from dprmt.spectra._phase_transition import detection_threshold as detection_threshold
from dprmt.spectra._phase_transition import predicted_spectrum as predicted_spectrum
from dprmt.spectra._phase_transition import spike_map as spike_map
from dprmt.spectra._phase_transition import spike_map_inverse as spike_map_inverse
from dprmt.spectra._phase_transition import vector_overlaps as vector_overlaps
from dprmt.spectra._shrinkage import hard_threshold as hard_threshold
from dprmt.spectra._shrinkage import shrink as shrink
from dprmt.spectra._top_singular_value import TopSingularValue as TopSingularValue
from dprmt.spectra._tracy_widom import TracyWidom as TracyWidom
from dprmt.spectra._tracy_widom import false_alarm_rate as false_alarm_rate
from dprmt.spectra._tracy_widom import kappa_for as kappa_for
from dprmt.spectra._tracy_widom import tracy_widom_edge as tracy_widom_edge

__all__ = [
    "AdamImprovement",
    "BlendMemory",
    "BlendReport",
    "BlockCosine",
    "LayerDenoiser",
    "LayerReport",
    "MarchenkoPastur",
    "NoiseGain",
    "StepComparison",
    "TopSingularValue",
    "TracyWidom",
    "adam_bound_gap",
    "adam_improvement_bound",
    "blend",
    "blend_layers",
    "block_cosine",
    "bulk_edge",
    "compare_sgd_steps",
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
    "noise_gain_bound",
    "predicted_spectrum",
    "shrink",
    "spectral_divergence",
    "spike_map",
    "spike_map_inverse",
    "tracy_widom_edge",
    "vector_overlaps",
]
