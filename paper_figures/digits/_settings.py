"""How many steps, how large batches, how much privacy."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache


@dataclass(frozen=True)
class Setting:
    """What all methods have in common: the same noise, draws and number of steps, so the same ε.

    Attributes
    ----------
    epsilon, delta : float
        Of a whole run, for an image present or without a gradient.
    batch, steps : int
        Images drawn in a step on average, and steps.
    hidden : int
        Units between the image and the digits; 0 for a head alone.
    of : str
        What is trained on, in a word for tables.
    """

    epsilon: float
    batch: int
    steps: int = 60
    delta: float = 1e-5
    hidden: int = 128
    of: str = "images"

    def noise_multiplier(self, images: int) -> float:
        """σ for that ε, upper end, if ``images`` are trained on."""
        return _noise_multiplier(self, images)


@lru_cache
def _noise_multiplier(setting: Setting, images: int) -> float:
    from dprmt.accounting import DPSGD, calibrate

    run = DPSGD(1.0, setting.batch / images)
    found = calibrate(run, steps=setting.steps, target_epsilon=setting.epsilon, delta=setting.delta)
    return float(found.noise_multiplier)


SETTINGS: Mapping[str, Setting] = {
    "little noise": Setting(epsilon=8.0, batch=2500),
    "more noise": Setting(epsilon=3.0, batch=1000),
}
HEADS: Mapping[str, Setting] = {
    "head, few steps": Setting(epsilon=8.0, batch=2500, steps=15, hidden=0, of="texts"),
    "head, more noise": Setting(epsilon=3.0, batch=1000, hidden=0, of="texts"),
}
"""For a head on what a pretrained model makes of texts: one so short that much stands out, one in which little does."""
