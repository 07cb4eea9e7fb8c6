"""What would break the guarantee is refused by name, before a noisy gradient is used."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from opacus.grad_sample import GradSampleModule
from opacus.optimizers import DPOptimizer
from torch import nn

from audits.steps import Parts, make_private, private_sgd
from dprmt import ParameterError, TrainingStateError
from dprmt.training.clipping import ClippedStep
from tests.training.norms_by_word import by_word

CLIPPINGS = ["ghost", "hutchinson"]
DEFAULTS = {"clipping_norm": 1.0, "noise_multiplier": 1.0, "expected_batch_size": 4.0}


def private(model: nn.Module, clipping: str = "hutchinson", **options: Any) -> ClippedStep:
    return private_sgd(model, norms=by_word(clipping, 4), **options)


def network(*more: nn.Module) -> nn.Module:
    return nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 8), *more)


def own_parameter() -> nn.Module:
    """Holds a parameter itself."""
    return Parts(
        lambda model, x: model.layer(model.scale * x), scale=nn.Parameter(torch.ones(8)), layer=nn.Linear(8, 8)
    )


def samples_second() -> nn.Module:
    """Gives its layer the tokens as first axis."""
    return Parts(lambda model, x: model.layer(x.transpose(0, 1)).transpose(0, 1), layer=nn.Linear(8, 8))


def tied() -> nn.Module:
    model = nn.ModuleDict({"first": nn.Linear(8, 8), "second": nn.Linear(8, 8)})
    model["second"].weight = model["first"].weight
    return model


def frozen() -> nn.Module:
    return network().requires_grad_(False)


REFUSED: dict[str, tuple[Callable[[], nn.Module], str]] = {
    "tied": (tied, "first.weight = second.weight"),
    "parameters without a forward pass": (
        lambda: nn.ParameterDict({"a": nn.Parameter(torch.ones(2))}),
        "model: ParameterDict",
    ),
    "batch norm": (lambda: network(nn.BatchNorm1d(8)), "3: BatchNorm1d"),
    "batch norm without parameters": (lambda: network(nn.BatchNorm1d(8, affine=False)), "ModuleValidator.fix"),
    "running statistics": (
        lambda: network(nn.InstanceNorm1d(8, track_running_stats=True)),
        "track_running_stats=False",
    ),
    "bag": (lambda: nn.EmbeddingBag(8, 8), "EmbeddingBag"),
    "renormalized embedding": (lambda: nn.Embedding(8, 8, max_norm=1.0), "max_norm"),
    "embedding by frequency": (lambda: nn.Embedding(8, 8, scale_grad_by_freq=True), "scale_grad_by_freq"),
    "sparse embedding": (lambda: nn.Embedding(8, 8, sparse=True), "sparse"),
    "hooks": (lambda: GradSampleModule(network()), "GradSampleModule"),
}


@pytest.mark.parametrize("clipping", CLIPPINGS)
@pytest.mark.parametrize("case", REFUSED)
def test_models_are_refused_before_the_first_step(case: str, clipping: str) -> None:
    build, words = REFUSED[case]
    with pytest.raises(ParameterError) as error:
        private(build(), clipping)
    assert error.value.name == "model"
    assert words in str(error.value)


def test_a_frozen_tied_or_own_parameter_is_fine() -> None:
    model = tied()
    model["first"].weight.requires_grad_(False)
    assert [layer.layer for layer in private(model).record.layers] == ["first", "second"]  # their biases
    with_own = own_parameter()
    assert [layer.layer for layer in private(with_own).record.layers] == ["model"]  # as a whole
    with_own = own_parameter()
    with_own.scale.requires_grad_(False)
    assert [layer.layer for layer in private(with_own).record.layers] == ["layer"]


def test_the_optimizer_has_the_trainable_parameters_and_no_others() -> None:
    model = network()
    every = list(model.parameters())
    sgd = torch.optim.SGD
    wrapped = DPOptimizer(sgd(every, lr=1.0), noise_multiplier=1.0, max_grad_norm=1.0, expected_batch_size=1)
    cases = [(sgd(every[:-1], lr=1.0), "2.bias"), (sgd([*every, nn.Parameter(torch.ones(3))], lr=1.0), "(3,)")]
    for optimizer, words in [*cases, (wrapped, "DPOptimizer"), ("sgd", "str")]:
        with pytest.raises(ParameterError) as error:
            make_private(model, optimizer, norms="exact", **DEFAULTS)
        assert error.value.name == "optimizer"
        assert words in str(error.value)
    model[0].weight.requires_grad_(False)
    make_private(model, sgd(every, lr=1.0), norms="exact", **DEFAULTS)  # a frozen one is not moved


@pytest.mark.parametrize("clipping", CLIPPINGS)
def test_a_second_forward_pass_is_refused(clipping: str) -> None:
    model = network()
    step = private(model, clipping)
    step.model(torch.ones(2, 8))
    with pytest.raises(TrainingStateError, match="a second forward pass"):
        step.model(torch.ones(2, 8))
    step.discard()
    step.accumulate(step.model(torch.ones(2, 8)).sum(1), samples=[0, 1], step=0)


@pytest.mark.parametrize("clipping", CLIPPINGS)
def test_the_first_axis_is_the_sample(clipping: str) -> None:
    step = private(samples_second(), clipping)
    with pytest.raises(TrainingStateError, match="the first axis of a trainable layer is that of the 2 samples"):
        step.accumulate(step.model(torch.ones(2, 5, 8)).sum((1, 2)), samples=[0, 1], step=0)
    assert all(value.grad is None and value.summed_grad is None for value in step.model.parameters())


def test_a_layer_that_is_not_trained_now() -> None:
    step = private(network())
    for words, act in (
        ("2 is in evaluation mode", nn.Module.eval),
        ("^model", lambda layer: layer.requires_grad_(False)),
    ):
        act(step.model[2])
        with pytest.raises((ParameterError, TrainingStateError), match=words):
            step.accumulate(step.model(torch.ones(2, 8)).sum(1), samples=[0, 1], step=0)
        step.discard()
        step.model.train()


def test_tokens_are_the_largest_possible() -> None:
    step = private(network(), tokens=4)
    with pytest.raises(ParameterError, match="at least 5"):
        step.accumulate(step.model(torch.ones(2, 5, 8)).sum((1, 2)), samples=[0, 1], step=0)
    step = private(network())
    with pytest.raises(ParameterError, match="65000"):
        step.accumulate(step.model(torch.ones(1, 65_000, 8)).sum((1, 2)), samples=[0], step=0)


def test_no_trainable_parameter() -> None:
    model = frozen()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(ParameterError, match="a trainable parameter"):
        make_private(model, optimizer, norms="exact", **DEFAULTS)
