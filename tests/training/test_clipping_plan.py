"""Plans, an estimator from outside the package, and what is refused by name before a noisy gradient is used."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from opacus.grad_sample import GradSampleModule
from opacus.optimizers import DPOptimizer
from torch import nn
from transformers.pytorch_utils import Conv1D

from audits.steps import Parts, make_private, private_sgd
from dprmt import ParameterError, TrainingStateError
from dprmt.accounting import DPSGD, ExactNorms, Hutchinson, HutchPlusPlus, Norms
from dprmt.training.clipping import ClippedStep, plan_private
from dprmt.training.norms import NormEstimator, exact_squared_norms
from tests.training.literal import clipped_sum, gradients_of, norm_of
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


def tied(first: Any = nn.Linear, second: Any = nn.Linear) -> nn.Module:
    model = nn.ModuleDict({"first": first(8, 8), "second": second(8, 8)})
    model["second"].weight = model["first"].weight
    return model


REFUSED: dict[str, tuple[Callable[[], nn.Module], str]] = {
    "tied": (tied, "first.weight = second.weight"),
    "a table as a Conv1D": (lambda: tied(nn.Embedding, Conv1D), "first.weight = second.weight"),
    "parameters alone": (lambda: nn.ParameterDict({"a": nn.Parameter(torch.ones(2))}), "model: ParameterDict"),
    "batch norm": (lambda: network(nn.BatchNorm1d(8)), "3: BatchNorm1d"),
    "batch norm without parameters": (lambda: network(nn.BatchNorm1d(8, affine=False)), "ModuleValidator.fix"),
    "running statistics": (lambda: network(nn.InstanceNorm1d(8, track_running_stats=True)), "track_running_stats="),
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


def test_the_norm_of_a_tied_table_is_exact() -> None:
    assert private(network()).record.estimated
    assert not private(tied(nn.Embedding, nn.Linear)).record.estimated


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


def test_a_layer_that_is_not_trained_now() -> None:
    step = private(network())
    step.model[2].eval()
    with pytest.raises(TrainingStateError, match="2 is in evaluation mode"):
        step.accumulate(step.model(torch.ones(2, 8)).sum(1), samples=[0, 1], step=0)


def test_tokens_are_the_largest_possible() -> None:
    step = private(network(), tokens=4)
    with pytest.raises(ParameterError, match="at least 5"):
        step.accumulate(step.model(torch.ones(2, 5, 8)).sum((1, 2)), samples=[0, 1], step=0)
    step = private(network())
    with pytest.raises(ParameterError, match="65000"):
        step.accumulate(step.model(torch.ones(1, 65_000, 8)).sum((1, 2)), samples=[0], step=0)


def test_no_trainable_parameter() -> None:
    model = network().requires_grad_(False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(ParameterError, match="a trainable parameter"):
        make_private(model, optimizer, norms="exact", **DEFAULTS)


# Plans


COMMON = {"clipping_norm": 1.0, "expected_batch_size": 2.0}


@dataclass(frozen=True)
class Longer:
    """Lengths times the step's number and that of the layer's letters: of no law."""

    norms: Norms | None = None

    def is_cheaper(self, in_features: int, out_features: int) -> bool:
        return min(in_features, out_features) > 3

    def terms(self, tokens: int, in_features: int, out_features: int) -> int:
        return tokens + in_features + out_features

    def squared_norms(self, activations, gradients, *, layer, step, samples=None, bias=False):  # type: ignore
        return (step * len(layer)) ** 2 * exact_squared_norms(activations, gradients, bias=bias)


def test_an_estimator_from_outside_clips_by_its_own_norms() -> None:
    """Against a literal loop: the released sum with SGD at learning rate 1 is Σ g_i min(1, (1-ρ)C/√n̂_i) / L."""
    torch.manual_seed(0)
    net, estimator, x = nn.Linear(6, 5).double(), Longer(), torch.randn(4, 3, 6, dtype=torch.float64)
    plain = copy.deepcopy(net)
    assert isinstance(estimator, NormEstimator)
    private = private_sgd(net, norms=estimator, tokens=3, **COMMON)
    private.accumulate(private.model(x).square().sum((1, 2)), samples=range(4), step=2)
    private.step()
    samples = gradients_of(plain, (plain(row).square().sum() for row in x))
    expected = clipped_sum(samples, 1 - private.rounding, [2 * len("model") * norm_of(sample) for sample in samples])
    for name, value in expected.items():
        torch.testing.assert_close(
            plain.get_parameter(name) - net.get_parameter(name), value / 2, rtol=1e-9, atol=1e-12
        )


def test_a_layer_in_float64_leaves_the_others_their_rounding_margin() -> None:
    def margin(first: torch.dtype, second: torch.dtype) -> float:
        net = nn.Sequential(nn.Linear(6, 5).to(first), nn.Linear(5, 4).to(second))
        step = private_sgd(net, norms="exact", tokens=3, **COMMON)
        return float(step.rounding)

    single, double = torch.float32, torch.float64
    assert margin(single, double) == margin(double, single) == margin(single, single) > 1e3 * margin(double, double)


def test_the_accountant_refuses_a_law_that_it_does_not_know() -> None:
    plan = plan_private(nn.Linear(6, 5), norms=Longer(), **COMMON)
    with pytest.raises(ParameterError, match="law"):
        plan.record.mechanism(1.0, 0.01)
    claimed = plan_private(nn.Linear(6, 5), norms=Longer(norms=Hutchinson(3, secret=False)), **COMMON)
    assert claimed.record.mechanism(1.0, 0.01) == DPSGD(1.0, 0.01, Hutchinson(3, secret=False))
    exact = plan_private(nn.Linear(3, 5), norms=Longer(), **COMMON)  # nothing is worth an estimate
    assert exact.record.mechanism(1.0, 0.01) == DPSGD(1.0, 0.01)


def test_a_plan_is_for_the_model_as_it_was() -> None:
    net = nn.Sequential(nn.Linear(9, 8), nn.Linear(8, 7))
    plan = plan_private(net, norms="ghost", **COMMON)
    net[0].requires_grad_(False)
    with pytest.raises(ParameterError, match="as it was planned"):
        plan.privatize(torch.optim.SGD(net[1].parameters(), lr=1.0), noise_multiplier=1.0)
    net.requires_grad_(True)
    optimizer = torch.optim.SGD(net.parameters(), lr=1.0)
    for _ in range(2):
        plan.privatize(optimizer, noise_multiplier=1.0)
    with pytest.raises(TrainingStateError, match="a hook was put before hooks of 0"):
        net(torch.ones(2, 9))


@pytest.mark.parametrize(
    "norms",
    [
        HutchPlusPlus(3, 4, secret=False),
        HutchPlusPlus(3, 4, power_iteration=True, secret=True),
        Hutchinson(3, secret=False, rank=8),
    ],
)
def test_what_is_done_is_what_a_value_says(norms: Norms) -> None:
    plan = plan_private(nn.Linear(9, 8), norms=norms, **COMMON)
    assert plan.record.norms == norms


def test_words_have_secret_probes_and_values_say_whether_theirs_are() -> None:
    for norms, found in {
        "hutchinson": Hutchinson(32, secret=True, rank=50),
        "hutch++": HutchPlusPlus(32, 12, power_iteration=True, secret=True),
        "exact": ExactNorms(),
        "ghost": ExactNorms(),
        ExactNorms(): ExactNorms(),
    }.items():
        assert plan_private(nn.Linear(60, 50), norms=norms, **COMMON).record.norms == found
    for wrong in ("none", 32, None, Hutchinson(4, secret=False, analysis="envelope")):
        with pytest.raises(ParameterError, match=r"^norms must be"):
            plan_private(nn.Linear(60, 50), norms=wrong, **COMMON)
