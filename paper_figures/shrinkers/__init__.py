"""Denoisers and gains that the studies of denoising compare; none is in the package."""

from paper_figures.shrinkers._blend import BlendMemory as BlendMemory
from paper_figures.shrinkers._blend import blend as blend
from paper_figures.shrinkers._blend import blend_layers as blend_layers
from paper_figures.shrinkers._blend import register_blend as register_blend
from paper_figures.shrinkers._gains import NoiseGain as NoiseGain
from paper_figures.shrinkers._gains import detection_batch as detection_batch
from paper_figures.shrinkers._gains import direction_gain as direction_gain
from paper_figures.shrinkers._gains import filter_gain as filter_gain
from paper_figures.shrinkers._gains import largest_direction_gain as largest_direction_gain
from paper_figures.shrinkers._gains import layer_noise_gains as layer_noise_gains
from paper_figures.shrinkers._gains import noise_gain as noise_gain
