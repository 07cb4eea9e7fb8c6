"""DP-GRAPE in one call: subspaces, optimizer and private step, for tests that vary all of them."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import torch

from audits.steps import make_private
from dprmt.training.clipping import ClippedStep, plan_private
from dprmt.training.optimizers import DPGrape
from dprmt.training.subspaces import Subspaces

_OF_SUBSPACES = {"rank", "refresh_every", "projector", "seed", "keep"}
_OF_GRAPE = {"betas", "eps", "weight_decay", "rule", "floor"}


def projected_step(
    model: torch.nn.Module, *, lr: float, order: str = "project-then-privatize", norms: Any = "exact", **options: Any
) -> ClippedStep:
    """``order="privatize-then-project"`` is the naive DP-GaLore: whole gradients are noised."""

    def taken(names: Collection[str]) -> dict[str, Any]:
        return {name: options.pop(name) for name in list(options) if name in names}

    subspaces = Subspaces(model, **taken(_OF_SUBSPACES))
    trained = [value for value in model.parameters() if value.requires_grad]
    optimizer = DPGrape(trained, lr, subspaces=subspaces, **taken(_OF_GRAPE))
    if order == "project-then-privatize":
        step = make_private(model, optimizer, norms=norms, **options)
    else:
        noise = taken({"noise_multiplier", "noise_generator"})
        step = plan_private(model, norms=norms, **options).privatize(optimizer, **noise)
    assert isinstance(step, ClippedStep)
    return step
