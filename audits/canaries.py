"""Small models whose samples' gradients are whatever one wants, and samples with extreme ones.

A sample is a pair (x, T) with loss Σ T·model(x): the gradient that reaches the model's output is T itself.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

Tensor = torch.Tensor


@dataclass(frozen=True)
class Sample:
    """Inputs and output gradients, of shapes (tokens, d) and (tokens, p)."""

    inputs: Tensor
    targets: Tensor

    def scaled(self, factor: float) -> Sample:
        """The sample whose gradient is so many times as long."""
        return Sample(self.inputs, factor * self.targets)


class Parallel(torch.nn.Module):
    """Linear layers side by side, each with its own part of inputs and outputs: no layer sees another's."""

    def __init__(self, widths: tuple[int, ...], *, bias: bool = False) -> None:
        super().__init__()
        self.widths = widths
        self.layers = torch.nn.ModuleList(torch.nn.Linear(width, width, bias=bias) for width in widths)

    def forward(self, inputs: Tensor) -> Tensor:
        """All outputs, one after another."""
        parts = inputs.split(self.widths, dim=-1)
        return torch.cat([layer(part) for layer, part in zip(self.layers, parts, strict=True)], dim=-1)


def losses(model: torch.nn.Module, samples: list[Sample]) -> Tensor:
    """The samples' losses Σ T·model(x), of shape (B,)."""
    inputs = torch.stack([sample.inputs for sample in samples]).double()
    targets = torch.stack([sample.targets for sample in samples]).double()
    return (targets * model(inputs)).flatten(1).sum(1)


def rank_one(widths: tuple[int, ...], length: float) -> Sample:
    """A gradient with one singular value in every layer, all the same: the heaviest tails that a norm can have."""
    width = sum(widths)
    direction = torch.ones(1, width)
    return Sample(direction, length * direction)


def spread(widths: tuple[int, ...], length: float) -> Sample:
    """A gradient with all singular values equal."""
    width = max(widths)
    tokens = torch.cat([torch.eye(width, other) for other in widths], dim=1)
    return Sample(tokens, length * tokens)


def bias_only(width: int, length: float) -> Sample:
    """A gradient that is all in the biases."""
    return Sample(torch.zeros(1, width), length * torch.ones(1, width))


def small_random(widths: tuple[int, ...], tokens: int, seed: int) -> Sample:
    """An ordinary sample."""
    generator = torch.Generator().manual_seed(seed)
    shape = (tokens, sum(widths))
    return Sample(torch.randn(shape, generator=generator), torch.randn(shape, generator=generator))
