"""Trainings with options, longer than an item, whose results items and documents read; each is named once, here."""

from collections.abc import Callable, Sequence
from importlib import import_module

STUDIES = {
    "heavy-tail": "heavy_tail",
    "next-token": "next_token",
    "public-model": "public_model",
    "denoising-speedup": "denoising_speedup",
}
"""Modules of this folder by the name after ``python -m paper_figures study``."""

CLOSED = (
    *("automatic-rate", "denoising", "digits", "effective-step", "gate-map", "last-matrix", "layer-gains"),
    *("pretrained-head", "sampling-accuracy", "telemetry", "under-noise"),
)
"""Studies whose question is answered: results and pages stay, their code is in the history, last in `LAST_COMMIT`."""
LAST_COMMIT = "da72f65"


def study(name: str) -> Callable[[Sequence[str]], None]:
    """What carries out the command line after the name."""
    found: Callable[[Sequence[str]], None] = import_module(f"{__name__}.{STUDIES[name]}").main
    return found


def summary(name: str) -> str:
    """The first line of the module's documentation."""
    return (import_module(f"{__name__}.{STUDIES[name]}").__doc__ or "").splitlines()[0]
