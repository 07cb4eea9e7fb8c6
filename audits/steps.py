"""Private steps alone, without a run around them: what tests, audits and benchmarks of the step drive themselves."""

from __future__ import annotations

from typing import Any

import torch

from dprmt.training.clipping import ClippedStep, UnitStep, plan_private
from dprmt.training.optimizers import DPGrape


def make_private(
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer,
    *,
    noise_multiplier: float,
    noise_generator: Any = None,
    **options: Any,
) -> ClippedStep | UnitStep:
    """Plan and privatize in one call; ``options`` are those of `plan_private`."""
    subspaces = optimizer.subspaces if isinstance(optimizer, DPGrape) else None
    plan = plan_private(model, subspaces=subspaces, **options)
    return plan.privatize(optimizer, noise_multiplier=noise_multiplier, noise_generator=noise_generator)
