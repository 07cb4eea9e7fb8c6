"""Torch's own optimizers under the words of a recipe."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from dprmt._validation import check_real
from dprmt.training.optimizers._noise_aware import checked_betas


def gd(params: Iterable[Any], *, lr: float, weight_decay: float, **_: Any) -> torch.optim.Optimizer:
    """Make DP-GD."""
    return torch.optim.SGD(params, lr=lr, weight_decay=weight_decay)


def gdm(params: Iterable[Any], *, lr: float, momentum: float, weight_decay: float, **_: Any) -> torch.optim.Optimizer:
    """Make DP-GDM: momentum without dampening."""
    μ = check_real("momentum", momentum, low=0.0, high=1.0, high_open=True)
    return torch.optim.SGD(params, lr=lr, momentum=μ, weight_decay=weight_decay)


def adam(params: Iterable[Any], **options: Any) -> torch.optim.Optimizer:
    """Make DP-Adam."""
    return torch.optim.Adam(params, **_of_adam(**options))


def adamw(params: Iterable[Any], **options: Any) -> torch.optim.Optimizer:
    """Make DP-Adam with decoupled weight decay."""
    return torch.optim.AdamW(params, **_of_adam(**options))


def _of_adam(*, lr: float, betas: tuple[float, float], eps: float, weight_decay: float, **_: Any) -> dict[str, Any]:
    return {
        "lr": lr,
        "betas": checked_betas(betas),
        "eps": check_real("eps", eps, low=0.0),
        "weight_decay": weight_decay,
    }
