"""A run that clips and adds no noise: the comparison that papers draw, and no private mechanism."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from dprmt.statements import relation_label

SENTENCE = "clip only, no privacy: no noise is added, and no ε is stated"


@dataclass(frozen=True)
class ClippingOnly:
    """One step without noise, where others have a mechanism; ``sample_rate`` is that of its batches."""

    sample_rate: float
    noise_multiplier: float = 0.0
    steps_per_epoch: None = None


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
