"""Parameters that are constants of the graph: what is captured is held to what was used, in the first micro-batch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

from audits.steps import private_sgd
from dprmt import ParameterError, TrainingStateError
from dprmt.training.clipping import ClippedStep
from dprmt.training.clipping._modules import is_torch_layer
from tests.training.literal import literal_sum


class Net(nn.Module):
    """Two layers; what is done with the second is told."""

    def __init__(self, use: Callable[[nn.Linear, torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.first, self.second, self.use = nn.Linear(5, 4), nn.Linear(4, 4), use

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.use(self.second, torch.tanh(self.first(x)) + 0.0).square().sum(-1)


def private(model: nn.Module) -> ClippedStep:
    return private_sgd(model, norms="exact")


def check_sum(step: ClippedStep, inputs: torch.Tensor) -> None:
    """Against the loop, once the hooks are off."""
    step.accumulate(step.model(inputs), samples=range(3), step=0)
    found = [value.summed_grad.clone() for value in step.model.parameters()]
    model = step.close()
    for one, other in zip(found, literal_sum(model, (model(row[None]) for row in inputs), 1.0), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-6, atol=1e-9)


def without_hooks(layer: nn.Linear, x: torch.Tensor) -> torch.Tensor:
    return layer.forward(x)


def once_without_hooks(layer: nn.Linear, x: torch.Tensor) -> torch.Tensor:
    return layer(x) + layer.forward(2 * x)


def functionally(layer: nn.Linear, x: torch.Tensor) -> torch.Tensor:
    return layer(x) + functional.linear(x, layer.weight)


def inputs_changed(layer: nn.Linear, x: torch.Tensor) -> torch.Tensor:
    out = layer(x)
    return out + x.mul_(2.0)


@pytest.mark.parametrize("use", [without_hooks, once_without_hooks, functionally])
def test_what_is_not_captured_as_it_was_used_is_refused_by_name(use: Any) -> None:
    step = private(Net(use))
    with pytest.raises(ParameterError, match=r"used through its own layer only.*got 'second\.(weight|bias)'"):
        step.accumulate(step.model(torch.randn(3, 5)), samples=range(3), step=0)
    assert all(getattr(value, "summed_grad", None) is None for value in step.model.parameters())


def test_an_input_that_is_changed_in_place_afterwards_is_an_error_of_autograd() -> None:
    """The layer's sum would be of the changed input."""
    step = private(Net(inputs_changed))
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        step.accumulate(step.model(torch.randn(3, 5)), samples=range(3), step=0)


def test_a_single_use_beside_a_layer_is_refused_in_any_micro_batch() -> None:
    """Of one sample, and after the first micro-batch."""
    step = private(Net(lambda layer, x: functionally(layer, x) if len(x) == 1 else layer(x)))
    step.accumulate(step.model(torch.randn(3, 5)), samples=range(3), step=0)
    with pytest.raises(ParameterError, match=r"used through its own layer only.*got 'second\.weight'"):
        step.accumulate(step.model(torch.randn(1, 5)), samples=[3], step=0)


@pytest.mark.parametrize("when", ["before", "after", "prepended"])
def test_a_hook_that_changes_a_layers_output_comes_after_what_is_captured(when: str) -> None:
    torch.manual_seed(0)
    model, inputs = Net(lambda layer, x: layer(x)).double(), torch.randn(3, 5).double()

    def double(module: nn.Module, inputs: Any, output: torch.Tensor) -> torch.Tensor:
        return 2.0 * output

    if when == "before":
        model.second.register_forward_hook(double)
    step = private(model)
    if when != "before":
        model.second.register_forward_hook(double, prepend=when == "prepended")
    if when == "prepended":
        with pytest.raises(TrainingStateError, match="a hook was put before hooks of second"):
            step.model(inputs)
        return
    check_sum(step, inputs)


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
    check_sum(private(Net(use).double()), torch.randn(3, 5).double())


@pytest.mark.parametrize("where", ["class", "instance", "later"])
def test_a_forward_pass_that_was_replaced_is_run_sample_by_sample(where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What goes into it is no factor of its gradient; once hooks are on, it may not be replaced."""
    torch.manual_seed(0)
    model, inputs = Net(lambda layer, x: layer(x)).double(), torch.randn(3, 5).double()
    assert is_torch_layer(model.second)

    def forward(self: nn.Linear, x: torch.Tensor) -> torch.Tensor:
        return functional.linear(2.0 * x, self.weight, self.bias)

    if where == "class":
        monkeypatch.setattr(nn.Linear, "forward", forward)
    elif where == "instance":
        model.second.forward = forward.__get__(model.second)
    step = private(model)
    if where == "later":
        model.second.forward = forward.__get__(model.second)
        with pytest.raises(TrainingStateError, match="forward pass of a Linear was replaced"):
            step.model(inputs)
        return
    assert not is_torch_layer(model.second)
    check_sum(step, inputs)
