"""A small model spread over processes by ``fully_shard``, for tests in two and three of them."""

from __future__ import annotations

import torch
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

from audits.processes import in_processes as in_processes

TOKENS = torch.randint(11, (6, 4), generator=torch.Generator().manual_seed(3))


class Block(nn.Module):
    """With a residual."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(width), nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(torch.tanh(self.up(self.norm(x))))


class Network(nn.Module):
    """Sizes that two and three processes do not divide."""

    def __init__(self, width: int = 7) -> None:
        super().__init__()
        self.table, self.head = nn.Embedding(11, width), nn.Linear(width, 5)
        self.blocks = nn.ModuleList([Block(width), Block(width)])

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.table(tokens)
        for block in self.blocks:
            x = block(x)
        return self.head(x).mean(1)


def network(width: int = 7, *, sharded: bool = False, dtype: torch.dtype = torch.float64) -> Network:
    torch.manual_seed(0)
    model = Network(width).to(dtype)
    if sharded:
        for block in model.blocks:
            fully_shard(block)
        fully_shard(model)
    return model


def losses(model: nn.Module, tokens: torch.Tensor) -> torch.Tensor:
    return nn.functional.cross_entropy(model(tokens), tokens[:, 0] % 5, reduction="none")


def whole(value: torch.Tensor) -> torch.Tensor:
    """Of a parameter, on all processes."""
    return (value.full_tensor() if isinstance(value, DTensor) else value).detach().clone()
