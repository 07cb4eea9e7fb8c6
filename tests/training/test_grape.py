"""DP-GRAPE's private step against a literal transcription: clipping, noise, batches, resumption."""

from __future__ import annotations

import copy
import math
from itertools import pairwise
from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model
from torch import nn

from audits.steps import Parts
from dprmt import ParameterError
from dprmt.accounting import DPSGD
from dprmt.training.clipping import ClippedStep
from tests.training.grape_reference import (
    LiteralAdam,
    clipped_sum,
    lift,
    literal_gradients,
    losses_of,
    make_data,
    make_net,
    project,
)
from tests.training.projected import projected_step

C, L = 0.8, 4.0
NORMS = ["exact", "ghost"]


def private(model: nn.Module, *, norms: str = "exact", **options: Any) -> ClippedStep:
    """A step with small ranks and no noise, unless told otherwise."""
    defaults: dict[str, Any] = {
        "rank": 3,
        "refresh_every": 2,
        "clipping_norm": C,
        "noise_multiplier": 0.0,
        "expected_batch_size": L,
        "lr": 0.01,
        "seed": 5,
        "noise_generator": torch.Generator().manual_seed(2),
        "norms": norms,
    }
    return projected_step(model, **(defaults | options))


def weights_of(model: nn.Module) -> dict[str, torch.Tensor]:
    return {name: p.detach().clone() for name, p in model.named_parameters() if p.requires_grad}


def take_step(step: ClippedStep, data: tuple, number: int, splits: tuple[int, ...] = ()) -> None:
    """One logical step, in micro-batches cut at the given places; losses are scaled as in one batch."""
    edges = [0, *splits, len(data[0])]
    scale = losses_scale(len(data[0]))
    for start, stop in pairwise(edges):
        part = slice(start, stop)
        scores = step.model(data[0][part]).double()
        losses = scale[part] * nn.functional.cross_entropy(scores, data[1][part], reduction="none")
        step.accumulate(losses, samples=range(start, stop), step=number)
    step.step()


def losses_scale(size: int) -> torch.Tensor:
    return torch.linspace(0.005, 3.0, size, dtype=torch.float64)


# Against the literal algorithm


@pytest.mark.parametrize("norms", NORMS)
@pytest.mark.parametrize("projector", ["gaussian", "stiefel"])
def test_noiseless_steps_equal_the_literal_algorithm(projector: str, norms: str) -> None:
    """Five steps over three subspaces: one flat norm with bias, LayerNorm and embedding, clipped projected."""
    net, data = make_net(), make_data()
    step = private(net, projector=projector, norms=norms, weight_decay=0.1)
    projected = {layer.name for layer in step.optimizer.original_optimizer.subspaces}
    adam = LiteralAdam(0.01, (0.9, 0.999), 1e-8)
    for number in range(5):
        samples = literal_gradients(plain(net), lambda model: losses_of(model, data))
        samples = [{name: project(step, name, g) for name, g in sample.items()} for sample in samples]
        norms_found = [math.sqrt(sum(float(v.square().sum()) for v in s.values())) for s in samples]
        assert min(norms_found) < C < max(norms_found)
        for name in projected if number in (2, 4) else ():
            adam.m[name].zero_()
        moves = adam.step({name: g / L for name, g in clipped_sum(samples, C).items()})
        for name in projected if number >= 2 else ():
            moves[name] /= (0.1 + 0.19) / 2  # the mean share that the first moment has of its length
        before = weights_of(net)
        expected = {n: w * (1 - 0.01 * 0.1) + lift(step, n, moves[n], w.shape) for n, w in before.items()}
        take_step(step, data, number)
        for name, weight in weights_of(net).items():
            torch.testing.assert_close(weight, expected[name], rtol=1e-9, atol=1e-9)


def plain(net: nn.Module) -> nn.Module:
    """A copy of the net without hooks."""
    copied = make_net()
    copied.load_state_dict(net.state_dict())
    return copied


@pytest.mark.parametrize("norms", NORMS)
def test_the_clipped_sum_is_within_the_sensitivity_and_tight(norms: str) -> None:
    """One sample alone, far too long: what is summed has norm (1 - 2⁻¹³)C over all coordinates."""
    net, (tokens, labels) = make_net(), make_data(1)
    step = private(net, norms=norms, noise_multiplier=1.0)
    step.accumulate(
        100 * nn.functional.cross_entropy(step.model(tokens), labels, reduction="none"), samples=[0], step=0
    )
    total = math.sqrt(sum(float(p.summed_grad.square().sum()) for p in net.parameters()))
    assert (1 - 2.0**-12) * C < total <= C
    assert net.up.weight.summed_grad.shape == (3, 6)


def test_privatize_then_project_is_the_naive_order() -> None:
    """Whole gradients are clipped, then projected: other clip factors than in the projected space."""
    net, data = make_net(), make_data()
    step = private(net, order="privatize-then-project", rule="sgd", lr=0.1)
    samples = literal_gradients(plain(net), lambda model: losses_of(model, data))
    before, total = weights_of(net), clipped_sum(samples, C)
    moves = {n: lift(step, n, project(step, n, -0.1 * g / L), g.shape) for n, g in total.items()}
    take_step(step, data, 0)
    for name, weight in weights_of(net).items():
        torch.testing.assert_close(weight - before[name], moves[name], rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("order", ["project-then-privatize", "privatize-then-project"])
def test_svd_steps_stay_in_the_leading_subspace_of_a_released_gradient(order: str) -> None:
    net, data = make_net(), make_data()
    step = private(net, projector="svd", order=order, rule="sgd", lr=0.1, refresh_every=3)
    before = net.up.weight.detach().clone()
    total = clipped_sum(literal_gradients(plain(net), lambda model: losses_of(model, data)), C)["up.weight"] / L
    u = torch.linalg.svd(total, full_matrices=False)[0][:, :3]
    for number in range(3):
        take_step(step, data, number)
        moved = net.up.weight.detach() - before
        torch.testing.assert_close(u @ (u.T @ moved), moved, rtol=1e-6, atol=1e-9)
    take_step(step, data, 3)  # another subspace
    moved = net.up.weight.detach() - before
    assert (u @ (u.T @ moved) - moved).abs().max() > 1e-6


# The rest of the interface


def test_the_accountant_is_told_plain_dpsgd() -> None:
    net = make_net()
    step = private(net)
    assert step.record.mechanism(1.1, 0.01) == DPSGD(1.1, 0.01)
    assert [layer.layer for layer in step.record.layers] == [
        "embedding",
        "up",
        "up.bias",
        "conv",
        "conv.bias",
        "norm",
        "head",
    ]


@pytest.mark.parametrize("projector", ["gaussian", "svd"])
@pytest.mark.parametrize("cut", [1, 2, 3])
def test_resuming_is_bit_exact(projector: str, cut: int) -> None:
    """Weights, moments, period and seed come back, in the middle of a period and at its start."""
    options = {"projector": projector, "noise_multiplier": 0.7, "refresh_every": 2}
    data, noise = make_data(), torch.Generator().manual_seed(9)
    net = make_net(dtype=torch.float32)
    whole = private(net, **options, noise_generator=noise)
    for number in range(cut):
        take_step(whole, data, number)
    saved = copy.deepcopy((whole.optimizer.state_dict(), net.state_dict(), noise.get_state()))
    for number in range(cut, 5):
        take_step(whole, data, number)

    again, noise = make_net(seed=3, dtype=torch.float32), torch.Generator()
    resumed = private(again, **options, seed=77, noise_generator=noise)
    again.load_state_dict(saved[1])
    resumed.optimizer.load_state_dict(saved[0])
    noise.set_state(saved[2])
    for number in range(cut, 5):
        take_step(resumed, data, number)
    assert all(torch.equal(w, weights_of(net)[name]) for name, w in weights_of(again).items())


def test_lora_layers_are_projected_and_the_base_stays_frozen() -> None:
    net = nn.Sequential(nn.Linear(20, 30), nn.Tanh(), nn.Linear(30, 3))
    lora = get_peft_model(net, LoraConfig(r=4, target_modules=["0", "2"], init_lora_weights=False))
    frozen = {name: p.clone() for name, p in lora.named_parameters() if not p.requires_grad}
    step = private(lora, rank=3, norms="ghost")
    assert [(layer.m, layer.n) for layer in step.optimizer.original_optimizer.subspaces] == [
        (20, 4),
        (30, 4),
        (30, 4),
        (4, 3),
    ]
    before = weights_of(lora)
    x = torch.randn(5, 20)
    step.accumulate(step.model(x).square().sum(1), samples=range(5), step=0)
    step.step()
    assert all((w != before[n]).any() for n, w in weights_of(lora).items())
    assert all(torch.equal(p, frozen[n]) for n, p in lora.named_parameters() if not p.requires_grad)


@pytest.mark.parametrize("norms", NORMS)
def test_an_embedding_table_with_padding_that_is_used_twice(norms: str) -> None:
    def pairs() -> nn.Module:
        return Parts(
            lambda model, tokens: model.head(model.table(tokens)).mean(1) * model.table(tokens[:, :2].flip(1)).sum(1),
            table=nn.Embedding(9, 8, padding_idx=1),
            head=nn.Linear(8, 8),
        )

    torch.manual_seed(0)
    net, tokens = pairs().double(), torch.tensor([[3, 3, 1, 1], [8, 0, 3, 1], [1, 1, 5, 5]])
    samples = literal_gradients(net, lambda model: model(tokens).square().sum(1))
    assert samples[2]["table.weight"][1].abs().max() == 0 < net.table.weight.abs().max()
    step = private(net, norms=norms, noise_multiplier=1.0)
    step.accumulate(step.model(tokens).square().sum(1), samples=range(3), step=0)
    expected = clipped_sum([{n: project(step, n, g) for n, g in s.items()} for s in samples], C)
    for name, p in net.named_parameters():
        torch.testing.assert_close(p.summed_grad, expected[name], rtol=1e-9, atol=1e-12)


# Bad input


def tied() -> nn.Module:
    net = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    net[1].weight = net[0].weight
    return net


@pytest.mark.parametrize(
    ("model", "options", "argument"),
    [
        (make_net, {"rank": {"up.weight": 15}}, "rank of up.weight"),
        (make_net, {"refresh_every": 0}, "refresh_every"),
        (make_net, {"lr": -1.0}, "lr"),
        (make_net, {"betas": (0.9, 1.0)}, "betas"),
        (make_net, {"rule": "lion"}, "rule"),
        (make_net, {"projector": "pca"}, "projector"),
        (tied, {}, "model"),
        (lambda: nn.MultiheadAttention(8, 2), {}, "rank"),
        (lambda: nn.Linear(4, 4).requires_grad_(False), {}, "rank"),
        (lambda: nn.utils.parametrizations.weight_norm(nn.Linear(4, 4)), {}, "rank"),
        (lambda: nn.LayerNorm(4), {}, "rank"),
    ],
)
def test_bad_input_before_the_first_step(model: Any, options: dict, argument: str) -> None:
    net = model()
    with pytest.raises(ParameterError) as error:
        private(net, **options)
    assert error.value.name == argument
    assert not hasattr(net, "autograd_grad_sample_hooks")
