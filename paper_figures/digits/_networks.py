"""Many networks with one hidden layer, or none, as one batch of matrices, and their clipped sums of gradients."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

Weights = dict[str, torch.Tensor]
"""``first`` (runs, pixels, hidden) and ``second`` (runs, hidden, classes), with ``first bias`` and ``second bias``;
without a hidden layer ``head`` (runs, pixels, classes) and ``head bias``."""


def is_matrix(name: str) -> bool:
    """Whether it is one of the matrices, which denoisers are for, and no bias."""
    return not name.endswith(" bias")


def start(pixels: int, hidden: int, seeds: Sequence[int], classes: int = 10) -> Weights:
    """Uniform weights, as torch's linear layers have them, by seed; ``hidden``: 0 for a head alone."""
    layers = {"first": (pixels, hidden), "second": (hidden, classes)} if hidden else {"head": (pixels, classes)}
    weights: dict[str, list[torch.Tensor]] = {}
    for seed in seeds:
        generator = torch.Generator().manual_seed(seed)
        for name, shape in layers.items():
            reach = 1 / math.sqrt(shape[0])
            for key, size in ((name, shape), (f"{name} bias", shape[1:])):
                drawn = torch.rand(size, generator=generator) * 2 * reach - reach
                weights.setdefault(key, []).append(drawn)
    return {name: torch.stack(values) for name, values in weights.items()}


def logits(weights: Weights, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """What goes into the last layer, and logits, (runs, rows, …) of ``x`` (runs or none, rows, pixels)."""
    if "head" in weights:
        return x, x @ weights["head"] + weights["head bias"][:, None]
    hidden = (x @ weights["first"] + weights["first bias"][:, None]).relu()
    return hidden, hidden @ weights["second"] + weights["second bias"][:, None]


def clipped_sum(weights: Weights, x: torch.Tensor, y: torch.Tensor, clip: float) -> Weights:
    """Σ min(1, C/‖g‖) g over the rows, for each run.

    A row's gradients are outer products, so that ‖g‖² = ‖δ₂‖²(‖h‖² + 1) + ‖δ₁‖²(‖x‖² + 1).
    """
    hidden, out = logits(weights, x)
    error = out.softmax(-1)
    error.scatter_add_(-1, y[..., None], torch.full_like(y[..., None], -1, dtype=error.dtype))
    square = error.square().sum(-1) * (hidden.square().sum(-1) + 1)
    if "head" in weights:
        error = error * _factor(square, clip)[..., None]
        return {"head": hidden.mT @ error, "head bias": error.sum(1)}
    behind = (error @ weights["second"].mT) * (hidden > 0)
    square = square + behind.square().sum(-1) * (x.square().sum(-1) + 1)
    factor = _factor(square, clip)
    error, behind = error * factor[..., None], behind * factor[..., None]
    return {
        "first": x.mT @ behind,
        "first bias": behind.sum(1),
        "second": hidden.mT @ error,
        "second bias": error.sum(1),
    }


def _factor(square: torch.Tensor, clip: float) -> torch.Tensor:
    return (clip / square.sqrt().clamp_min(1e-12)).clamp_max(1.0)


def accuracy(weights: Weights, rows: tuple[torch.Tensor, torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
    """Share of right classes and mean cross-entropy, by run."""
    x, y = rows
    right, loss = [], []
    for run in range(len(next(iter(weights.values())))):
        _, out = logits({name: value[run : run + 1] for name, value in weights.items()}, x)
        right.append((out[0].argmax(-1) == y).double().mean())
        loss.append(torch.nn.functional.cross_entropy(out[0].double(), y))
    return torch.stack(right), torch.stack(loss)
