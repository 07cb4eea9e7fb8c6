"""A run that clips and adds no noise: the comparison that papers draw, and no private mechanism."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from dprmt.accounting import Poisson, RandomAllocation
from dprmt.statements import relation_label

SENTENCE = "clip only, no privacy: no noise is added, and no ε is stated"


@dataclass(frozen=True)
class ClippingOnly:
    """One step without noise, where others have a mechanism; ``sampling`` is that of its batches."""

    sampling: Poisson | RandomAllocation
    noise_multiplier: float = 0.0

    @property
    def sample_rate(self) -> float:
        """Expected share of the samples in a batch."""
        return self.sampling.rate

    @property
    def steps_per_epoch(self) -> int | None:
        """Steps in which every sample takes part once; None with Poisson sampling."""
        return None if isinstance(self.sampling, Poisson) else self.sampling.steps_per_epoch


def named_relation(mechanism: Any) -> str | None:
    """What every ε of such a run is against; nothing where there is no ε."""
    return None if isinstance(mechanism, ClippingOnly) else relation_label(mechanism.neighbours)


def no_privacy(mechanism: object) -> dict[str, Any]:
    """What every record of such a run says; nothing for others."""
    return {"privacy": SENTENCE} if isinstance(mechanism, ClippingOnly) else {}


def said_of_every_step(mechanism: Any) -> dict[str, Any]:
    """What stands beside the ε of each line: its neighbours; where there is no ε, that there is none."""
    relation = named_relation(mechanism)
    return no_privacy(mechanism) if relation is None else {"neighbours": relation}
