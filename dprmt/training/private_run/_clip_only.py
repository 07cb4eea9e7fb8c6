"""A run that clips without noise, for comparison: it is no private mechanism."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from dprmt.accounting import Poisson, RandomAllocation
from dprmt.statements import relation_label

SENTENCE = "clip only, no privacy: no noise is added, and no ε is stated"


@dataclass(frozen=True)
class ClippingOnly:
    """One step without noise, in the place of a mechanism; ``sampling`` is the scheme of its batches."""

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
    """Name the neighbouring relation of every ε of a run; empty without ε."""
    return None if isinstance(mechanism, ClippingOnly) else relation_label(mechanism.neighbours)


def no_privacy(mechanism: object) -> dict[str, Any]:
    """Return the statement that a run has no privacy, for its records; empty for other runs."""
    return {"privacy": SENTENCE} if isinstance(mechanism, ClippingOnly) else {}


def said_of_every_step(mechanism: Any) -> dict[str, Any]:
    """Return the text for the ε of each line: its neighbours, or that there is no ε."""
    relation = named_relation(mechanism)
    return no_privacy(mechanism) if relation is None else {"neighbours": relation}
