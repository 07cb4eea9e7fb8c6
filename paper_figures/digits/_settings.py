"""How many steps, how large batches, how much privacy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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
    first_rates : sequence of int
        k of the rates 10^(k/4) that are tried first.
    tuning_seeds, seeds : sequence of int
        For the choice of rates, and for the runs at the chosen ones.
    noises : int
        Of Adam with its chosen rate and each of ``seeds``, beside the one that all methods share; even.
    """

    epsilon: float
    batch: int
    steps: int = 60
    delta: float = 1e-5
    hidden: int = 128
    of: str = "images"
    first_rates: Sequence[int] = tuple(range(-12, 0))
    tuning_seeds: Sequence[int] = tuple(range(100, 104))
    seeds: Sequence[int] = tuple(range(20))
    noises: int = 20

    def noise_multiplier(self, samples: int) -> float:
        """σ for that ε, upper end, if ``samples`` are trained on."""
        return _noise_multiplier(self, samples)


@lru_cache
def _noise_multiplier(setting: Setting, samples: int) -> float:
    from dprmt.accounting import DPSGD, calibrate

    run = DPSGD(1.0, setting.batch / samples)
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


def _shorter(batch: int, highest: int, noises: int = 20) -> Setting:
    # Each of its runs takes longer, so that there are fewer.
    return Setting(
        epsilon=8.0,
        batch=batch,
        steps=15,
        hidden=0,
        of="texts",
        first_rates=tuple(range(highest - 4, highest + 1)),
        tuning_seeds=(100, 101, 102),
        seeds=tuple(range(10)),
        noises=noises,
    )


ADAPTERS: Mapping[str, Setting] = {
    "adapter, docstrings": _shorter(batch=250, highest=-2),
    "adapter, SST-2": _shorter(batch=250, highest=-2),
    "adapter, E2E": _shorter(batch=512, highest=0, noises=10),
}
"""For an adapter in a pretrained last layer; of SmolLM2, the last one, in batches in which two directions stand out."""
