"""The optimizer that a Trainer steps: one call is one private step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from dprmt.training.clipping import PrivateStep


class PrivateOptimizer(torch.optim.Optimizer):  # type: ignore[misc]
    """Looks like the optimizer inside, whose learning rates a schedule sets; charges a step before it is taken."""

    def __init__(self, private: PrivateStep, charge: Callable[[], None]) -> None:
        # No super().__init__(): groups, state and defaults are those of the optimizer inside.
        self._private, self._charge = private, charge
        self._inside: torch.optim.Optimizer = private.optimizer.original_optimizer

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        """Of the optimizer inside."""
        groups: list[dict[str, Any]] = self._inside.param_groups
        return groups

    @property
    def state(self) -> Any:
        """Of the optimizer inside."""
        return self._inside.state

    @property
    def defaults(self) -> dict[str, Any]:
        """Of the optimizer inside."""
        defaults: dict[str, Any] = self._inside.defaults
        return defaults

    def step(self, closure: None = None) -> None:
        """Noise once, the optimizer inside moves."""
        self._charge()
        self._private.step()

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Nothing: a step leaves no sum."""

    def state_dict(self) -> dict[str, Any]:
        """Of the optimizer inside."""
        state: dict[str, Any] = self._inside.state_dict()
        return state

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Of the optimizer inside."""
        self._inside.load_state_dict(state_dict)
