"""Parameters that are constants of the graph: what is captured is held to what was used, in the first micro-batch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

from dprmt import ParameterError
from dprmt.training.clipping import ClippedStep, make_private
from dprmt.training.clipping._plain_gradients import spares_plain_gradients
from tests.training.test_planted_bugs import literal_sum


class Net(nn.Module):
    """Two layers; what is done with the second is told."""

    def __init__(self, use: Callable[[nn.Linear, torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.first, self.second, self.use = nn.Linear(5, 4), nn.Linear(4, 4), use

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.use(self.second, torch.tanh(self.first(x)) + 0.0).square().sum(-1)


def private(model: nn.Module) -> ClippedStep:
    return make_private(
        model,
        torch.optim.SGD(model.parameters(), lr=1.0),
        norms="exact",
        clipping_norm=1.0,
        noise_multiplier=0.0,
        expected_batch_size=1.0,
    )


def without_hooks(layer: nn.Linear, x: torch.Tensor) -> torch.Tensor:
    return layer.forward(x)


def once_without_hooks(layer: nn.Linear, x: torch.Tensor) -> torch.Tensor:
    return layer(x) + layer.forward(2 * x)


def functionally(layer: nn.Linear, x: torch.Tensor) -> torch.Tensor:
    return layer(x) + functional.linear(x, layer.weight)


def inputs_changed(layer: nn.Linear, x: torch.Tensor) -> torch.Tensor:
    out = layer(x)
    return out + x.mul_(2.0)


def inputs_exchanged(layer: nn.Linear, x: torch.Tensor) -> torch.Tensor:
    out = layer(x) + 3.0 * layer(2.0 * x)
    layer.activations.reverse()  # of Opacus' hooks
    return out


@pytest.mark.parametrize("use", [without_hooks, once_without_hooks, functionally, inputs_changed, inputs_exchanged])
def test_what_is_not_captured_as_it_was_used_is_refused_by_name(use: Any) -> None:
    step = private(Net(use))
    with pytest.raises(ParameterError, match=r"used through its own layer only.*got 'second\.weight'"):
        step.accumulate(step.model(torch.randn(3, 5)), samples=range(3), step=0)
    assert all(getattr(value, "summed_grad", None) is None for value in step.model.parameters())


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_hook_that_changes_a_layers_output_is_refused(when: str) -> None:
    """Between the layer and what its output gradient is captured of; after all hooks it is the layer's user's."""
    model = Net(lambda layer, x: layer(x))
    if when == "before":
        model.second.register_forward_hook(lambda module, inputs, output: 2.0 * output)
    step = private(model)
    if when == "after":
        model.second.register_forward_hook(lambda module, inputs, output: 2.0 * output)
    losses = step.model(torch.randn(3, 5))
    with pytest.raises(ParameterError, match=r"used through its own layer only.*got 'second\.weight'"):
        step.accumulate(losses, samples=range(3), step=0)


def twice(layer: nn.Linear, x: torch.Tensor) -> torch.Tensor:
    return layer(x) * layer(torch.sin(x))


def twice_alike(layer: nn.Linear, x: torch.Tensor) -> torch.Tensor:
    """Both output gradients are the same tensor; inputs are not."""
    return layer(x) + layer(torch.sin(x))


def for_nothing(layer: nn.Linear, x: torch.Tensor) -> torch.Tensor:
    return layer(x) + 0.0 * layer.weight.sum()


@pytest.mark.parametrize("use", [twice, twice_alike, for_nothing])
def test_what_is_right_is_summed(use: Any) -> None:
    torch.manual_seed(0)
    model, inputs = Net(use).double(), torch.randn(3, 5).double()
    expected = literal_sum(model, [model(row[None]).sum() for row in inputs], 1.0)
    before = [value.detach().clone() for value in model.parameters()]
    step = private(model)
    step.accumulate(step.model(inputs), samples=range(3), step=0)
    assert step._first is None
    step.step()
    for old, value, total in zip(before, model.parameters(), expected, strict=True):
        torch.testing.assert_close(old - value.detach(), total, rtol=1e-6, atol=1e-9)


def test_a_class_whose_forward_pass_somebody_has_replaced_is_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    layer = nn.Linear(5, 4)
    assert spares_plain_gradients(layer)
    monkeypatch.setattr(nn.Linear, "forward", lambda self, x: functional.linear(2.0 * x, self.weight, self.bias))
    assert not spares_plain_gradients(layer)
    step = private(Net(lambda layer, x: layer(x)))
    with pytest.raises(ParameterError, match=r"used through its own layer only"):
        step.accumulate(step.model(torch.randn(3, 5)), samples=range(3), step=0)
