"""Denoising methods for the matrices of a gradient, by their name in a recipe."""

from __future__ import annotations

from functools import partial
from typing import Literal

from dprmt.spectra import LayerDenoiser, kappa_for
from dprmt.training.denoising._options import Denoising, Method


def nothing(options: Denoising) -> Method:
    """Return no denoiser: nothing is decomposed or reported."""
    return lambda layers, sigma: (dict(layers), {})


def shrinkage(options: Denoising) -> Method:
    """Shrink above the gate, with or without the norm correction of Eq. 10 of arXiv:2510.01137v3."""
    alarm = options.false_alarm
    kappa = options.kappa if alarm is None else partial(kappa_for, false_alarm=alarm)
    way: Literal["paper", "shrink"] = "paper" if options.keeps_norm else "shrink"
    return LayerDenoiser(kappa, method=way, below_gate="unchanged", loss=options.loss, backend=options.backend)
