"""A slow literal DP-GRAPE: one sample at a time, whole gradients, loops instead of hooks."""

from __future__ import annotations

import torch
from torch import nn
from transformers.pytorch_utils import Conv1D

from dprmt.training.clipping import ClippedStep

Data = tuple[torch.Tensor, torch.Tensor]


class Net(nn.Module):
    """Tokens through embedding, Linear both ways round, Conv1D and LayerNorm, to one score per class."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(11, 6)
        self.up = nn.Linear(6, 14)
        self.conv = Conv1D(7, 14)
        self.norm = nn.LayerNorm(7)
        self.head = nn.Linear(7, 3, bias=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Scores (B, 3) of tokens (B, T)."""
        hidden = self.norm(self.conv(torch.tanh(self.up(self.embedding(tokens)))))
        return self.head(hidden.mean(1))


def make_net(seed: int = 0, dtype: torch.dtype = torch.float64) -> Net:
    """A net with given random weights, in training mode."""
    torch.manual_seed(seed)
    return Net().to(dtype).train()


def make_data(size: int = 6, seed: int = 1) -> Data:
    """Tokens (B, 5) and labels (B,)."""
    rng = torch.Generator().manual_seed(seed)
    return torch.randint(0, 11, (size, 5), generator=rng), torch.randint(0, 3, (size,), generator=rng)


def losses_of(model: nn.Module, data: Data) -> torch.Tensor:
    """Cross entropy of every sample, scaled so that some are clipped at 1 and some are not."""
    scale = torch.linspace(0.005, 3.0, len(data[0]), dtype=torch.float64)
    return scale * nn.functional.cross_entropy(model(data[0]).double(), data[1], reduction="none")


def project(private: ClippedStep, name: str, gradient: torch.Tensor) -> torch.Tensor:
    """Pᵀ times the gradient, the longer side first; unprojected parameters as they are."""
    layers = {layer.name: layer for layer in private.optimizer.original_optimizer.subspaces}
    if name not in layers:
        return gradient
    matrix = gradient if gradient.shape[0] >= gradient.shape[1] else gradient.T
    return private.optimizer.original_optimizer.subspaces.projector(layers[name].weight).to(gradient.dtype).T @ matrix


def lift(private: ClippedStep, name: str, step: torch.Tensor, shape: torch.Size) -> torch.Tensor:
    """P times a step, lying as the weight does."""
    layers = {layer.name: layer for layer in private.optimizer.original_optimizer.subspaces}
    if name not in layers:
        return step
    matrix = private.optimizer.original_optimizer.subspaces.projector(layers[name].weight).to(step.dtype) @ step
    return matrix if shape[0] >= shape[1] else matrix.T


class LiteralAdam:
    """Adam on a dict, with the moments set to 0 as told; the oracle of the optimizer."""

    def __init__(self, lr: float, betas: tuple[float, float], eps: float) -> None:
        self.lr, self.betas, self.eps, self.t = lr, betas, eps, 0
        self.m: dict[str, torch.Tensor] = {}
        self.v: dict[str, torch.Tensor] = {}

    def step(self, gradients: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """What is to be added, by name."""
        self.t += 1
        β1, β2 = self.betas
        result = {}
        for name, g in gradients.items():
            self.m[name] = β1 * self.m.get(name, torch.zeros_like(g)) + (1 - β1) * g
            self.v[name] = β2 * self.v.get(name, torch.zeros_like(g)) + (1 - β2) * g**2
            m_hat, v_hat = self.m[name] / (1 - β1**self.t), self.v[name] / (1 - β2**self.t)
            result[name] = -self.lr * m_hat / (v_hat.sqrt() + self.eps)
        return result
