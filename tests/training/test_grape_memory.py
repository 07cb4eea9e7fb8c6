"""Bytes of live tensors: the counter itself, and that no m x n per-sample gradient is ever formed."""

from __future__ import annotations

import pytest
import torch
from opacus.grad_sample import GradSampleModule
from torch import nn

from dprmt.training.clipping import TensorMemory
from tests.training.projected import projected_step

SIZE, SIDE, RANK, LAYERS = 16, 96, 4, 3
WHOLE, PROJECTED = SIZE * SIDE * SIDE * 4, SIZE * RANK * SIDE * 4  # bytes of one layer's per-sample gradients


def stack() -> nn.Module:
    torch.manual_seed(0)
    layers = [layer for _ in range(LAYERS) for layer in (nn.Linear(SIDE, SIDE, bias=False), nn.Tanh())]
    return nn.Sequential(*layers)


def backward_memory(model: nn.Module, x: torch.Tensor) -> TensorMemory:
    """Counts a backward pass alone."""
    losses = model(x).square().sum((1, 2))
    with TensorMemory() as memory:
        losses.sum().backward()
    return memory


def step_memory(norms: str, tokens: int, **options: object) -> TensorMemory:
    """Counts two whole steps, subspaces and optimizer included."""
    net = stack()
    private = projected_step(
        net,
        rank=RANK,
        clipping_norm=1.0,
        noise_multiplier=1.0,
        expected_batch_size=SIZE,
        lr=0.1,
        norms=norms,
        **options,
    )
    with TensorMemory(net.parameters()) as memory:
        for step in range(2):
            x = torch.randn(SIZE, tokens, SIDE, requires_grad=True)
            private.accumulate(private.model(x).square().sum((1, 2)), samples=range(SIZE), step=step)
            private.step()
    return memory


def test_the_counter_counts() -> None:
    """Allocations, frees, views, in-place operations and the backward pass, on sizes known by hand."""
    known = torch.zeros(100, requires_grad=True)
    with TensorMemory([known]) as memory:
        assert memory.live == 400
        x = known * 2
        x.add_(1)
        y = x.view(10, 10)[1:]
        assert memory.live == 800
        del x
        assert memory.live == 800  # y is a view of it
        del y
        assert (memory.live, memory.peak, memory.largest) == (400, 800, 400)
        memory.reset_peak()
        (known.expand(50, 100) * 1.0).sum().backward()
        assert memory.peak >= 400 + 50 * 400
        assert memory.largest == 50 * 400
        assert memory.live == 800  # and the gradient
    torch.zeros(1000)
    assert memory.live == 800


@pytest.mark.parametrize("tokens", [1, 3])
@pytest.mark.parametrize("norms", ["exact", "ghost"])
@pytest.mark.parametrize("projector", ["gaussian", "stiefel"])
def test_no_whole_per_sample_gradient_is_formed(projector: str, norms: str, tokens: int) -> None:
    """In two whole steps the largest tensor is a weight or projected; all together are below one layer's B m n."""
    memory = step_memory(norms, tokens, projector=projector)
    weight = SIDE * SIDE * 4
    assert memory.largest <= max(weight, 2 * PROJECTED) < WHOLE / 8  # a float64 copy for the norms
    assert memory.peak < LAYERS * weight + WHOLE


def test_whole_per_sample_gradients_would_be_seen() -> None:
    """The test above can fail: Opacus' hooks, and the naive order, form B m n."""
    x = torch.randn(SIZE, 1, SIDE, requires_grad=True)
    memory = backward_memory(GradSampleModule(stack(), loss_reduction="sum"), x)
    assert memory.largest >= WHOLE
    assert memory.peak >= LAYERS * WHOLE
    assert step_memory("exact", 1, order="privatize-then-project").largest >= WHOLE
    assert step_memory("exact", 1, projector="svd").largest >= WHOLE
    assert step_memory("ghost", 1, projector="svd").largest < WHOLE
