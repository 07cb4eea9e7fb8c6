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
from dprmt.spectra._detection_batch import detection_batch as detection_batch
from dprmt.spectra._direction_gain import direction_gain as direction_gain
from dprmt.spectra._direction_gain import filter_gain as filter_gain
from dprmt.spectra._direction_gain import largest_direction_gain as largest_direction_gain
from dprmt.spectra._directional_slope import DirectionalSlope as DirectionalSlope
from dprmt.spectra._directional_slope import directional_slope as directional_slope
from dprmt.spectra._displacement import DisplacementNoise as DisplacementNoise
from dprmt.spectra._displacement import DisplacementSpectrum as DisplacementSpectrum
from dprmt.spectra._displacement import displacement_spectrum as displacement_spectrum
from dprmt.spectra._displacement import steps_until_visible as steps_until_visible
from dprmt.spectra._displacement_factor import displacement_factor as displacement_factor
from dprmt.spectra._divergence import spectral_divergence as spectral_divergence
from dprmt.spectra._estimate import Estimate as Estimate
from dprmt.spectra._layer_products import layer_products as layer_products
from dprmt.spectra._layers import LayerReport as LayerReport
from dprmt.spectra._marchenko_pastur import MarchenkoPastur as MarchenkoPastur
from dprmt.spectra._momentum_noise import momentum_noise_scale as momentum_noise_scale
from dprmt.spectra._noise_gain import NoiseGain as NoiseGain
from dprmt.spectra._noise_gain import noise_gain as noise_gain
from dprmt.spectra._noise_level import estimate_sigma as estimate_sigma
from dprmt.spectra._noisy_spectrum import NoisySpectrum as NoisySpectrum
from dprmt.spectra._noisy_spectrum import Spike as Spike
from dprmt.spectra._noisy_spectrum import noisy_spectrum as noisy_spectrum
from dprmt.spectra._noisy_spectrum import noisy_spectrum_from_dict as noisy_spectrum_from_dict
from dprmt.spectra._phase_transition import bulk_edge as bulk_edge
from dprmt.spectra._phase_transition import detection_threshold as detection_threshold
from dprmt.spectra._phase_transition import predicted_spectrum as predicted_spectrum
from dprmt.spectra._phase_transition import spike_map as spike_map
from dprmt.spectra._phase_transition import spike_map_inverse as spike_map_inverse
from dprmt.spectra._phase_transition import vector_overlaps as vector_overlaps
from dprmt.spectra._shrinkage import hard_threshold as hard_threshold
from dprmt.spectra._shrinkage import shrink as shrink
from dprmt.spectra._signal_energy import signal_energy as signal_energy
from dprmt.spectra._signal_energy import signal_energy_over_steps as signal_energy_over_steps
from dprmt.spectra._spiked_polar import spiked_polar as spiked_polar
from dprmt.spectra._top_singular_value import TopSingularValue as TopSingularValue
from dprmt.spectra._tracy_widom import TracyWidom as TracyWidom
from dprmt.spectra._tracy_widom import false_alarm_rate as false_alarm_rate
from dprmt.spectra._tracy_widom import kappa_for as kappa_for
from dprmt.spectra._tracy_widom import tracy_widom_edge as tracy_widom_edge
from dprmt.spectra._update_estimates import best_rate_factor as best_rate_factor
from dprmt.spectra._update_estimates import objective_change as objective_change
from dprmt.spectra._update_estimates import update_curvature as update_curvature
from dprmt.spectra._update_products import UpdateProducts as UpdateProducts
from dprmt.spectra._update_products import slope_after as slope_after
from dprmt.spectra._update_products import slope_before as slope_before
from dprmt.spectra._update_products import update_products as update_products

__all__ = [
    "AdamImprovement",
    "BlendMemory",
    "BlendReport",
    "BlockCosine",
    "DirectionalSlope",
    "DisplacementNoise",
    "DisplacementSpectrum",
    "Estimate",
    "LayerDenoiser",
    "LayerReport",
    "MarchenkoPastur",
    "NoiseGain",
    "NoisySpectrum",
    "Spike",
    "StepComparison",
    "TopSingularValue",
    "TracyWidom",
    "UpdateProducts",
    "adam_bound_gap",
    "adam_improvement_bound",
    "best_rate_factor",
    "blend",
    "blend_layers",
    "block_cosine",
    "bulk_edge",
    "compare_sgd_steps",
    "cosine_similarity",
    "denoise",
    "denoise_layers",
    "detection_batch",
    "detection_threshold",
    "direction_gain",
    "directional_slope",
    "displacement_factor",
    "displacement_spectrum",
    "estimate_sigma",
    "false_alarm_rate",
    "filter_gain",
    "hard_threshold",
    "improvement",
    "kappa_for",
    "largest_direction_gain",
    "layer_improvements",
    "layer_products",
    "momentum_noise_scale",
    "noise_gain",
    "noisy_spectrum",
    "noisy_spectrum_from_dict",
    "objective_change",
    "predicted_spectrum",
    "shrink",
    "signal_energy",
    "signal_energy_over_steps",
    "slope_after",
    "slope_before",
    "spectral_divergence",
    "spike_map",
    "spike_map_inverse",
    "spiked_polar",
    "steps_until_visible",
    "tracy_widom_edge",
    "update_curvature",
    "update_products",
    "vector_overlaps",
]
