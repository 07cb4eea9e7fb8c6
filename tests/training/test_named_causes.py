"""What cannot be made private, or no longer is what was made private: refused with its own cause, by name."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from audits.mixing import TopTwo
from audits.steps import Parts, private_sgd
from dprmt import ParameterError, TrainingStateError
from dprmt.training.clipping import ClippedStep

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
@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("DTensor", "sharded along rows by torch's fully_shard over all processes"),
        ("FullyShardedDataParallel", "without FullyShardedDataParallel, whose flat parameters"),
    ],
)
def test_sharded_parameters(kind: str, words: str) -> None:
    from torch.distributed.fsdp import FullyShardedDataParallel
    from torch.distributed.tensor import Shard, distribute_tensor, init_device_mesh

    mesh, model = init_device_mesh("cpu", (1,)), nn.Sequential(nn.Linear(WIDTH, WIDTH))
    if kind == "DTensor":
        for name, value in list(model[0].named_parameters()):
            setattr(model[0], name, nn.Parameter(distribute_tensor(value.detach(), mesh, [Shard(0)])))
    else:
        model = FullyShardedDataParallel(model, device_id=torch.device("cpu"))
    with pytest.raises(ParameterError, match=words):
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


@pytest.mark.parametrize("to", ["the private optimizer", "the one inside"])
def test_a_parameter_that_the_optimizer_gets_later(to: str) -> None:
    step = private_sgd(nn.Linear(WIDTH, 1))
    optimizer = step.optimizer if to == "the private optimizer" else step.optimizer.original_optimizer
    accumulate(step, torch.randn(SIZE, WIDTH))
    optimizer.add_param_group({"params": [nn.Parameter(torch.zeros(3))]})
    for act in (lambda: accumulate(step, torch.randn(SIZE, WIDTH)), step.step):
        with pytest.raises(TrainingStateError, match=r"the optimizer got parameters of shapes \[\(3,\)\] since"):
            act()


def test_a_parameter_that_was_replaced_or_added() -> None:
    model = nn.Sequential(nn.Linear(WIDTH, 1))
    step = private_sgd(model)
    model[0].weight = nn.Parameter(torch.zeros(1, WIDTH))
    with pytest.raises(TrainingStateError, match=r"0\.weight was replaced since the model was made private"):
        accumulate(step, torch.randn(SIZE, WIDTH))
    model = nn.Sequential(nn.Linear(WIDTH, 1))
    step = private_sgd(model)
    model.append(nn.Linear(1, 1))
    with pytest.raises(TrainingStateError, match=r"1\.weight was added since the model was made private"):
        accumulate(step, torch.randn(SIZE, WIDTH))


def test_complex_parameters() -> None:
    parts = {"inner": nn.Linear(WIDTH, 1, dtype=torch.complex64), "head": nn.Linear(1, 1)}
    model = Parts(lambda model, x: model.head(model.inner(x.to(torch.complex64)).abs()), **parts)
    with pytest.raises(
        ParameterError, match=r"without trainable complex parameters.*'inner\.weight: torch\.complex64'"
    ):
        private_sgd(model)
    model.inner.requires_grad_(False)
    accumulate(private_sgd(model), torch.randn(SIZE, WIDTH), as_function=True)
