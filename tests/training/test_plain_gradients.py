"""Autograd forms no gradient of what the hooks capture, in the first step neither, and nothing released changes."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext

import pytest
import torch
from opacus.grad_sample import GradSampleModule
from torch import nn
from torch.utils.checkpoint import checkpoint
from transformers.pytorch_utils import Conv1D

from audits.steps import private_sgd
from dprmt.training.clipping import ClippedStep, TensorMemory
from tests.training.projected import projected_step


class Texts(nn.Module):
    """Layers of all kinds, of which the first has tokens, and one is used twice."""

    def __init__(self, checkpointed: bool = False) -> None:
        super().__init__()
        self.table, self.up, self.down = nn.Embedding(11, 6, padding_idx=0), nn.Linear(6, 8), Conv1D(6, 8)
        self.norm, self.conv = nn.LayerNorm(6), nn.Conv1d(6, 4, 3, padding=1, bias=False)
        self._checkpointed = checkpointed

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        hidden = self.table(tokens)
        for _ in range(2):
            hidden = checkpoint(self._block, hidden, use_reentrant=False) if self._checkpointed else self._block(hidden)
        return self.conv(hidden.mT).mean((1, 2))

    def _block(self, hidden: torch.Tensor) -> torch.Tensor:
        return self.norm(hidden + self.down(torch.tanh(self.up(hidden))))


class Numbers(nn.Module):
    """The first layer's inputs need no gradient; a bias is trained alone."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(5, 7), nn.Linear(7, 3)
        self.last.weight.requires_grad_(False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(torch.relu(self.first(x))).square().sum((1, 2))


def private(model: nn.Module, norms: str = "ghost") -> ClippedStep:
    return private_sgd(model, 0.1, norms=norms, clipping_norm=0.1, expected_batch_size=2.0)


def texts(number: int) -> torch.Tensor:
    return torch.randint(0, 11, (4, 5), generator=torch.Generator().manual_seed(number))


def numbers(number: int) -> torch.Tensor:
    return torch.randn(4, 3, 5, generator=torch.Generator().manual_seed(number))


CASES: dict[str, tuple[Callable[[], nn.Module], Callable[[int], torch.Tensor]]] = {
    "texts": (Texts, texts),
    "checkpointed": (lambda: Texts(checkpointed=True), texts),
    "numbers": (Numbers, numbers),
}


@pytest.mark.parametrize("autocast", [False, True])
@pytest.mark.parametrize("norms", ["exact", "ghost"])
@pytest.mark.parametrize("case", CASES)
def test_no_parameter_gets_a_gradient_from_autograd(case: str, norms: str, autocast: bool) -> None:
    make, batch = CASES[case]
    model, seen = make(), []
    step = private(model, norms)
    for parameter in model.parameters():
        if parameter.requires_grad:
            parameter.register_hook(seen.append)
    for number in range(3):
        with torch.autocast("cpu", torch.bfloat16) if autocast else nullcontext():
            losses = step.model(batch(number))
        step.accumulate(losses.float(), samples=range(4), step=number)
        step.step()
    assert seen == []


def test_a_failing_forward_pass_leaves_the_parameters_in_their_place() -> None:
    model = Numbers()
    step = private(model)
    for number in range(2):
        step.accumulate(step.model(numbers(number)), samples=range(4), step=number)
        step.step()
        with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
            step.model(torch.randn(4, 3, 6))
        assert all(value.requires_grad for value in model.first.parameters())
        step.discard()


def test_a_large_table_has_no_dense_gradient() -> None:
    """What is as large as the table is its sum, and what the optimizer is given of it; not autograd's zeros."""
    table = nn.Embedding(20_000, 8)
    step = private(nn.Sequential(table, nn.Linear(8, 2)))
    for number in range(2):
        losses = step.model(texts(number)).square().sum((1, 2))
        with TensorMemory() as memory:
            step.accumulate(losses, samples=range(4), step=number)
        step.step()
        assert table.weight.nbytes <= memory.peak < 1.1 * table.weight.nbytes


def test_the_first_look_holds_no_plain_gradient_and_no_other_sum() -> None:
    """Of ten layers whose weights are most of all memory."""
    model = nn.Sequential(*(nn.Linear(256, 256, bias=False) for _ in range(10)), nn.Linear(256, 1), nn.Flatten(0))
    step = private(model)
    losses = step.model(torch.randn(4, 256))
    with TensorMemory() as memory:
        step.accumulate(losses, samples=range(4), step=0)
    assert memory.peak < 1.05 * sum(value.nbytes for value in model.parameters())


SIZE, SIDE, RANK, LAYERS = 16, 96, 4, 3
WHOLE, PROJECTED = SIZE * SIDE * SIDE * 4, SIZE * RANK * SIDE * 4  # bytes of one layer's per-sample gradients


def stack() -> nn.Module:
    torch.manual_seed(0)
    layers = [layer for _ in range(LAYERS) for layer in (nn.Linear(SIDE, SIDE, bias=False), nn.Tanh())]
    return nn.Sequential(*layers)


def step_memory(norms: str, tokens: int, **options: object) -> TensorMemory:
    """Counts two whole steps, subspaces and optimizer included."""
    net = stack()
    usual = {"rank": RANK, "clipping_norm": 1.0, "noise_multiplier": 1.0, "expected_batch_size": SIZE, "lr": 0.1}
    private = projected_step(net, norms=norms, **usual, **options)
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
    hooked = GradSampleModule(stack(), loss_reduction="sum")
    losses = hooked(torch.randn(SIZE, 1, SIDE, requires_grad=True)).square().sum((1, 2))
    with TensorMemory() as memory:
        losses.sum().backward()
    assert memory.largest >= WHOLE
    assert memory.peak >= LAYERS * WHOLE
    assert step_memory("exact", 1, order="privatize-then-project").largest >= WHOLE
    assert step_memory("exact", 1, projector="svd").largest >= WHOLE
    assert step_memory("ghost", 1, projector="svd").largest < WHOLE
