"""Trainings with options, longer than an item, whose results items and documents read; each is named once, here."""

from collections.abc import Callable, Sequence
from importlib import import_module

STUDIES = {
    "heavy-tail": "heavy_tail",
    "effective-step": "effective_step",
    "under-noise": "under_noise",
    "next-token": "next_token",
    "public-model": "public_model",
    "denoising": "denoising",
    "denoising-speedup": "denoising_speedup",
    "digits": "digits",
    "gate-map": "gate_map",
    "last-matrix": "last_matrix",
    "layer-gains": "layer_gains",
    "pretrained-head": "pretrained_head",
    "sampling-accuracy": "sampling_accuracy",
    "telemetry": "telemetry",
    "automatic-rate": "automatic_rate",
}
"""Modules of this folder by the name after ``python -m paper_figures study``."""


def study(name: str) -> Callable[[Sequence[str]], None]:
    """What carries out the command line after the name."""
    found: Callable[[Sequence[str]], None] = import_module(f"{__name__}.{STUDIES[name]}").main
    return found


def summary(name: str) -> str:
    """The first line of the module's documentation."""
    return (import_module(f"{__name__}.{STUDIES[name]}").__doc__ or "").splitlines()[0]
