"""Random matrix theory of noisy gradients: what survives in ``Y = X + σW``, and the best estimate of X.

NumPy arrays and torch tensors both work and come back as what they were; torch is never imported here.
"""

from dprmt._lazy import public_names as _public_names
from dprmt.spectra._adam_bound import AdamImprovement as AdamImprovement
from dprmt.spectra._adam_bound import adam_bound_gap as adam_bound_gap
from dprmt.spectra._adam_bound import adam_improvement_bound as adam_improvement_bound
from dprmt.spectra._alignment import BlockCosine as BlockCosine
from dprmt.spectra._alignment import block_cosine as block_cosine
from dprmt.spectra._alignment import cosine_similarity as cosine_similarity
from dprmt.spectra._alignment import improvement as improvement
from dprmt.spectra._alignment import layer_improvements as layer_improvements
from dprmt.spectra._checkpoint import CheckpointSpectra as CheckpointSpectra
from dprmt.spectra._checkpoint import spectra_of as spectra_of
from dprmt.spectra._denoise import LayerReport as LayerReport
from dprmt.spectra._denoise import denoise as denoise
from dprmt.spectra._denoise import denoise_layers as denoise_layers
from dprmt.spectra._marchenko_pastur import MarchenkoPastur as MarchenkoPastur
from dprmt.spectra._noise_level import NoiseFit as NoiseFit
from dprmt.spectra._noise_level import estimate_sigma as estimate_sigma
from dprmt.spectra._noise_level import screenot_threshold as screenot_threshold
from dprmt.spectra._noise_level import whiten as whiten
from dprmt.spectra._noisy_spectrum import NoisySpectrum as NoisySpectrum
from dprmt.spectra._noisy_spectrum import Spike as Spike
from dprmt.spectra._noisy_spectrum import noisy_spectrum as noisy_spectrum
from dprmt.spectra._phase_transition import bulk_edge as bulk_edge
from dprmt.spectra._phase_transition import detection_threshold as detection_threshold
from dprmt.spectra._phase_transition import hard_threshold as hard_threshold
from dprmt.spectra._phase_transition import predicted_spectrum as predicted_spectrum
from dprmt.spectra._phase_transition import shrink as shrink
from dprmt.spectra._phase_transition import spike_map as spike_map
from dprmt.spectra._phase_transition import spike_map_inverse as spike_map_inverse
from dprmt.spectra._phase_transition import vector_overlaps as vector_overlaps
from dprmt.spectra._telemetry import Estimate as Estimate
from dprmt.spectra._telemetry import momentum_noise_scale as momentum_noise_scale
from dprmt.spectra._telemetry import signal_energy as signal_energy
from dprmt.spectra._telemetry import signal_energy_over_steps as signal_energy_over_steps
from dprmt.spectra._tracy_widom import false_alarm_rate as false_alarm_rate
from dprmt.spectra._tracy_widom import kappa_for as kappa_for
from dprmt.spectra._tracy_widom import tracy_widom_edge as tracy_widom_edge
from dprmt.spectra._tracy_widom import visible_signal as visible_signal

__all__ = _public_names(vars())
