"""Private steps alone, without a run around them: what tests, audits and benchmarks of the step drive themselves."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from dprmt.training.clipping import ClippedStep, plan_private
from dprmt.training.clipping._unit_step import UnitStep
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


def private_sgd(model: torch.nn.Module, lr: float = 1.0, **options: Any) -> Any:
    """Make a model private with plain SGD: ghost norms, C = 1, no noise and an expected size of 1, unless told."""
    trained = [value for value in model.parameters() if value.requires_grad]
    usual: dict[str, Any] = {
        "norms": "ghost",
        "clipping_norm": 1.0,
        "noise_multiplier": 0.0,
        "expected_batch_size": 1.0,
    }
    return make_private(model, torch.optim.SGD(trained, lr=lr), **(usual | options))


class Parts(torch.nn.Module):  # type: ignore[misc]  # torch is skipped by mypy
    """A model of named parts, and of the function that calls them: ``Parts(lambda model, x: model.head(x), head=...)``.

    A part that is a tensor but no parameter is a buffer.
    """

    def __init__(self, call: Callable[..., Any], **parts: Any) -> None:
        super().__init__()
        self._call = call
        for name, part in parts.items():
            if isinstance(part, torch.Tensor) and not isinstance(part, torch.nn.Parameter):
                self.register_buffer(name, part)
            else:
                setattr(self, name, part)

    def forward(self, *inputs: Any, **named: Any) -> Any:
        """What the function makes of the inputs."""
        return self._call(self, *inputs, **named)
