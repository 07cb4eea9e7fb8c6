"""Literal references: gradients of one loss at a time, their norms, and the sum of what was clipped."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import torch
from torch import nn

Gradients = dict[str, torch.Tensor]


def gradients_of(model: nn.Module, losses: Iterable[torch.Tensor]) -> list[Gradients]:
    """Of each loss by the trainable parameters, 0 where it does not reach one."""
    trained = {name: value for name, value in model.named_parameters() if value.requires_grad}
    found = []
    for loss in losses:
        own = torch.autograd.grad(loss.sum(), list(trained.values()), retain_graph=True, allow_unused=True)
        values = (torch.zeros_like(p) if g is None else g for p, g in zip(trained.values(), own, strict=True))
        found.append(dict(zip(trained, values, strict=True)))
    return found


def norm_of(gradients: Gradients) -> float:
    """Over all parameters."""
    return math.sqrt(sum(float(value.double().square().sum()) for value in gradients.values()))


def clipped_sum(samples: Sequence[Gradients], bound: float, norms: Sequence[float] | None = None) -> Gradients:
    """Σ g min(1, bound/‖g‖), or with other norms than these."""
    lengths = [norm_of(sample) for sample in samples] if norms is None else norms
    factors = [min(1.0, bound / length) if length else 1.0 for length in lengths]
    return {name: sum(c * s[name] for c, s in zip(factors, samples, strict=True)) for name in samples[0]}  # type: ignore[misc]


def literal_sum(model: nn.Module, losses: Iterable[torch.Tensor], bound: float) -> list[torch.Tensor]:
    """Of clipped gradients, in the order of the trainable parameters."""
    return list(clipped_sum(gradients_of(model, losses), bound).values())
