"""What shapes do not show is refused in the first micro-batch: samples that mix, parameters used beside their layer."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from audits.mixing import TopTwo
from audits.steps import Parts, private_sgd
from dprmt import ParameterError, TrainingStateError
from dprmt.training.clipping import ClippedStep, TensorMemory
from dprmt.training.clipping._modules import kind_of
from tests.training.literal import literal_sum
from tests.training.norms_by_word import by_word
from tests.training.projected import projected_step

CLIPPINGS = ("exact", "ghost", "hutchinson")


def private(model: nn.Module, clipping: str, **options: Any) -> Any:
    return private_sgd(model, norms=by_word(clipping, 2), **options)


@pytest.mark.parametrize("clipping", CLIPPINGS)
@pytest.mark.parametrize(
    ("length", "words"),
    [
        (5, r"samples must be the first axis of every trainable layer.*'inner'"),
        (3, "the first axis of a trainable layer is that of the 5 samples"),
    ],
)
def test_a_layer_whose_first_axis_is_not_the_sample(length: int, words: str, clipping: str) -> None:
    """It sees (T, B, d)."""
    model = Parts(
        lambda model, inputs: model.out(model.inner(inputs.transpose(0, 1)).transpose(0, 1)).squeeze(-1),
        inner=nn.Linear(4, 4),
        out=nn.Linear(4, 1),
    )
    step = private(model, clipping)
    with pytest.raises((ParameterError, TrainingStateError), match=words):
        step.accumulate(step.model(torch.randn(5, length, 4)).sum(1), samples=range(5), step=0)
    assert all(value.grad is None and value.summed_grad is None for value in step.model.parameters())


@pytest.mark.parametrize("shows_nothing", [torch.ones(1, 3), torch.full((2, 3), torch.nan)], ids=["one row", "NaN"])
def test_a_micro_batch_that_shows_nothing_leaves_the_next_one_to_be_looked_at(shows_nothing: torch.Tensor) -> None:
    torch.manual_seed(0)
    model = nn.Linear(3, 2)
    inputs = torch.randn(3, 3)
    counted = [row for row in (*shows_nothing, *inputs) if bool(row.isfinite().all())]
    expected = literal_sum(model, [model(row[None]).square().sum() for row in counted], 1.0)
    before = [value.detach().clone() for value in model.parameters()]
    step = private(model, "exact")
    step.accumulate(step.model(shows_nothing).square().sum(1), samples=range(len(shows_nothing)), step=0)
    mixed = step.model(inputs).square().sum(1)
    with pytest.raises(ParameterError, match="no sample in another's loss"):
        step.accumulate(mixed - mixed.mean(), samples=[7, 8, 9], step=0)
    step.discard()
    step.accumulate(step.model(inputs).square().sum(1), samples=[7, 8, 9], step=0)
    step.step()  # the first micro-batch is still in the sum, once
    for old, value, total in zip(before, model.parameters(), expected, strict=True):
        torch.testing.assert_close(old - value.detach(), total, rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize("ends", ["discarded", "summed"])
def test_no_hook_keeps_the_graph_of_a_check(ends: str) -> None:
    """Nothing of it waits for the collector of cycles: the sums are left, or nothing."""
    model = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 1))
    step, inputs = private(model, "exact"), torch.randn(3, 8)
    gc.disable()
    try:
        with TensorMemory() as memory:
            losses = step.model(inputs).flatten()
            if ends == "discarded":
                step.discard()
            else:
                step.accumulate(losses, samples=range(3), step=0)
            del losses
    finally:
        gc.enable()
    assert memory.live == (0 if ends == "discarded" else 4 * sum(value.numel() for value in model.parameters()))


def twice(model: Any, inputs: torch.Tensor) -> torch.Tensor:
    """A linear layer's weight is used once more, transposed, outside of it."""
    return functional.linear(model.inner(inputs), model.inner.weight.T)


@pytest.mark.parametrize("shape", [(9, 4), (4, 9)])
@pytest.mark.parametrize(
    ("projector", "order", "dtype"),
    [
        ("gaussian", "project-then-privatize", torch.bfloat16),
        ("svd", "project-then-privatize", torch.float64),
        ("gaussian", "privatize-then-project", torch.float64),
    ],
)
def test_a_projected_weight_that_is_used_beside_its_layer_is_refused_too(
    shape: tuple[int, int], projector: Any, order: Any, dtype: torch.dtype
) -> None:
    options = {"rank": 3, "clipping_norm": 1.0, "noise_multiplier": 0.0, "expected_batch_size": 1.0, "lr": 0.1}
    options |= {"projector": projector, "order": order, "seed": 0}
    step = projected_step(Parts(twice, inner=nn.Linear(*shape)).to(dtype), **options)
    losses = step.model(torch.randn(3, 2, shape[0], dtype=dtype)).float().square().sum((1, 2))
    with pytest.raises(ParameterError, match=r"used through its own layer only.*got 'inner\.weight'"):
        step.accumulate(losses, samples=range(3), step=0)


SIZE, WIDTH = 4, 8


def accumulate(step: ClippedStep, x: torch.Tensor, *, as_function: bool = False) -> None:
    def losses(x: torch.Tensor) -> torch.Tensor:
        return step.model(x).view(len(x), -1).square().sum(1)

    if as_function:
        step.accumulate(losses, samples=range(len(x)), step=0, batch=x)
    else:
        step.accumulate(losses(x), samples=range(len(x)), step=0)


@pytest.mark.usefixtures("one_process")
@pytest.mark.filterwarnings("ignore")
def test_flat_parameters() -> None:
    from torch.distributed.fsdp import FullyShardedDataParallel

    model = FullyShardedDataParallel(nn.Sequential(nn.Linear(WIDTH, WIDTH)), device_id=torch.device("cpu"))
    with pytest.raises(ParameterError, match="without FullyShardedDataParallel, whose flat parameters"):
        private_sgd(model)


def checkpointed(reentrant: bool) -> nn.Module:
    """A layer whose forward pass is run again in the backward pass."""
    parts = {"first": nn.Linear(WIDTH, WIDTH), "last": nn.Linear(WIDTH, 1)}
    return Parts(lambda model, x: checkpoint(model.last, model.first(x), use_reentrant=reentrant), **parts)


@pytest.mark.parametrize("as_function", [True, False])
def test_checkpointing_is_of_the_kind_that_is_not_reentrant(as_function: bool) -> None:
    x = torch.randn(SIZE, WIDTH)
    accumulate(private_sgd(checkpointed(False)), x, as_function=as_function)
    with pytest.raises(TrainingStateError, match="reentrant kind: use_reentrant=False"):
        accumulate(private_sgd(checkpointed(True)), x, as_function=as_function)


@pytest.mark.parametrize("as_function", [True, False])
def test_rows_that_are_sent_to_experts(as_function: bool) -> None:
    torch.manual_seed(0)
    step = private_sgd(TopTwo(4).train())
    with pytest.raises(TrainingStateError, match=r"^inputs .* of experts\.\d: .*sent to experts by index"):
        accumulate(step, torch.randn(SIZE, WIDTH), as_function=as_function)


def test_a_layer_of_what_all_samples_share() -> None:
    """Such as a table of relative positions."""
    parts = {"table": nn.Linear(WIDTH, WIDTH), "head": nn.Linear(WIDTH, 1)}
    shared = Parts(lambda model, x: model.head(x + model.table(torch.ones(1, WIDTH))), **parts)
    with pytest.raises(TrainingStateError, match=r"^inputs \(1, 8\) .* of table: .*not what all samples share"):
        accumulate(private_sgd(shared), torch.randn(SIZE, WIDTH))


def test_tokens_that_are_sent_to_experts_inside_a_module_taken_whole() -> None:
    from transformers import MixtralConfig, MixtralForCausalLM

    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_attention_heads": 2, "num_key_value_heads": 2}
    model = MixtralForCausalLM(MixtralConfig(vocab_size=20, num_hidden_layers=1, num_local_experts=4, **sizes)).train()
    step = private_sgd(model)
    with pytest.raises(TrainingStateError, match=r"mlp\.gate returns tuple, not a tensor"):
        step.model(input_ids=torch.randint(20, (SIZE, 5)))


def test_a_parameter_that_the_optimizer_gets_later() -> None:
    step = private_sgd(nn.Linear(WIDTH, 1))
    accumulate(step, torch.randn(SIZE, WIDTH))
    step.optimizer.original_optimizer.add_param_group({"params": [nn.Parameter(torch.zeros(3))]})
    with pytest.raises(TrainingStateError, match=r"the optimizer got parameters of shapes \[\(3,\)\] since"):
        step.step()


def test_complex_parameters() -> None:
    parts = {"inner": nn.Linear(WIDTH, 1, dtype=torch.complex64), "head": nn.Linear(1, 1)}
    model = Parts(lambda model, x: model.head(model.inner(x.to(torch.complex64)).abs()), **parts)
    with pytest.raises(ParameterError, match=r"without trainable complex .*'inner\.weight: torch\.complex64'"):
        private_sgd(model)
    model.inner.requires_grad_(False)
    accumulate(private_sgd(model), torch.randn(SIZE, WIDTH), as_function=True)


class Net(nn.Module):
    """Two layers; what is done with the second is told."""

    def __init__(self, use: Callable[[nn.Linear, torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.first, self.second, self.use = nn.Linear(5, 4), nn.Linear(4, 4), use

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.use(self.second, torch.tanh(self.first(x)) + 0.0).square().sum(-1)


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
    step = private(Net(use), "exact")
    with pytest.raises(ParameterError, match=r"used through its own layer only.*got 'second\.(weight|bias)'"):
        step.accumulate(step.model(torch.randn(3, 5)), samples=range(3), step=0)
    assert all(getattr(value, "summed_grad", None) is None for value in step.model.parameters())


def test_an_input_that_is_changed_in_place_afterwards_is_an_error_of_autograd() -> None:
    """The layer's sum would be of the changed input."""
    step = private(Net(inputs_changed), "exact")
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        step.accumulate(step.model(torch.randn(3, 5)), samples=range(3), step=0)


def test_a_single_use_beside_a_layer_is_refused_in_any_micro_batch() -> None:
    """Of one sample, and after the first micro-batch."""
    step = private(Net(lambda layer, x: functionally(layer, x) if len(x) == 1 else layer(x)), "exact")
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
    step = private(model, "exact")
    if when != "before":
        model.second.register_forward_hook(double, prepend=when == "prepended")
    if when == "prepended":
        with pytest.raises(TrainingStateError, match="a hook was put before hooks of second"):
            step.model(inputs)
        return
    check_sum(step, inputs)


def used_twice(layer: nn.Linear, x: torch.Tensor) -> torch.Tensor:
    return layer(x) * layer(torch.sin(x))


def twice_alike(layer: nn.Linear, x: torch.Tensor) -> torch.Tensor:
    """Both output gradients are the same tensor; inputs are not."""
    return layer(x) + layer(torch.sin(x))


def for_nothing(layer: nn.Linear, x: torch.Tensor) -> torch.Tensor:
    return layer(x) + 0.0 * layer.weight.sum()


@pytest.mark.parametrize("use", [used_twice, twice_alike, for_nothing])
def test_what_is_right_is_summed(use: Any) -> None:
    torch.manual_seed(0)
    check_sum(private(Net(use).double(), "exact"), torch.randn(3, 5).double())


@pytest.mark.parametrize("where", ["class", "instance", "later"])
def test_a_forward_pass_that_was_replaced_is_run_sample_by_sample(where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What goes into it is no factor of its gradient; once hooks are on, it may not be replaced."""
    torch.manual_seed(0)
    model, inputs = Net(lambda layer, x: layer(x)).double(), torch.randn(3, 5).double()
    assert kind_of(model.second) == "matrix"

    def forward(self: nn.Linear, x: torch.Tensor) -> torch.Tensor:
        return functional.linear(2.0 * x, self.weight, self.bias)

    if where == "class":
        monkeypatch.setattr(nn.Linear, "forward", forward)
    elif where == "instance":
        model.second.forward = forward.__get__(model.second)
    step = private(model, "exact")
    if where == "later":
        model.second.forward = forward.__get__(model.second)
        with pytest.raises(TrainingStateError, match="forward pass of a Linear was replaced"):
            step.model(inputs)
        return
    assert kind_of(model.second) == "whole"
    check_sum(step, inputs)
