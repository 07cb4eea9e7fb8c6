"""Denoisers and gains that closed studies compare; the word ``"blend"`` of their recipes."""

from __future__ import annotations

from functools import partial
from typing import Any

from dprmt.training.recipes import DENOISERS, DenoiserWord
from paper_figures.shrinkers._blend import blend as blend
from paper_figures.shrinkers._blend_layers import BlendReport as BlendReport
from paper_figures.shrinkers._blend_layers import blend_layers as blend_layers
from paper_figures.shrinkers._blend_memory import BlendMemory as BlendMemory
from paper_figures.shrinkers._detection_batch import detection_batch as detection_batch
from paper_figures.shrinkers._direction_gain import direction_gain as direction_gain
from paper_figures.shrinkers._direction_gain import filter_gain as filter_gain
from paper_figures.shrinkers._direction_gain import largest_direction_gain as largest_direction_gain
from paper_figures.shrinkers._divergence import spectral_divergence as spectral_divergence
from paper_figures.shrinkers._layer_gains import layer_noise_gains as layer_noise_gains
from paper_figures.shrinkers._noise_gain import NoiseGain as NoiseGain
from paper_figures.shrinkers._noise_gain import noise_gain as noise_gain


def blended(options: Any) -> Any:
    """The denoiser of a run; its memory over steps is that of the process."""
    memory = BlendMemory() if options.on == "gradient" else None
    return partial(blend_layers, norm_correction=options.keeps_norm, memory=memory)


DENOISERS["blend"] = DenoiserWord("paper_figures.shrinkers:blended", keeps_norm=True)
