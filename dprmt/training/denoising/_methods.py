"""What a denoiser does to the matrices of a gradient, by its word in a recipe."""

from __future__ import annotations

from functools import partial

from dprmt.spectra import BlendMemory, LayerDenoiser, blend_layers, kappa_for
from dprmt.training.denoising._options import Denoising, Method


def nothing(options: Denoising, memory: BlendMemory | None) -> Method:
    """No denoiser: nothing is looked at, nothing reported."""
    return lambda layers, sigma: (dict(layers), {})


def gate(options: Denoising, memory: BlendMemory | None) -> Method:
    """Eq. 10 of arXiv:2510.01137v3, with or without its norm correction."""
    alarm = options.false_alarm
    kappa = options.kappa if alarm is None else partial(kappa_for, false_alarm=alarm)
    return LayerDenoiser(kappa, options.keeps_norm, loss=options.loss, backend=options.backend)


def blend(options: Denoising, memory: BlendMemory | None) -> Method:
    """Shrinkers blended by their estimated cosine with the clean gradient."""
    weights = options.layer_weights
    return partial(blend_layers, norm_correction=options.keeps_norm, layer_weights=weights, memory=memory)
