"""DP-GRAPE's private step against a literal transcription: clipping, noise, batches, resumption."""

from __future__ import annotations

import copy
from itertools import pairwise
from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model
from torch import nn

from dprmt import ParameterError
from dprmt.training.clipping import ClippedStep
from dprmt.training.optimizers import DPAdamBC, DPGrape
from dprmt.training.subspaces import Subspaces
from tests.training.grape_reference import LiteralAdam, lift, losses_of, make_data, make_net, project
from tests.training.literal import clipped_sum, gradients_of, norm_of
from tests.training.projected import projected_step

C, L = 0.8, 4.0
BOUND = (1 - 2.0**-13) * C  # with the house's margin for rounding
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
    scale = torch.linspace(0.005, 3.0, len(data[0]), dtype=torch.float64)
    for start, stop in pairwise(edges):
        part = slice(start, stop)
        scores = step.model(data[0][part]).double()
        losses = scale[part] * nn.functional.cross_entropy(scores, data[1][part], reduction="none")
        step.accumulate(losses, samples=range(start, stop), step=number)
    step.step()


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
        samples = literal(net, data)
        samples = [{name: project(step, name, g) for name, g in sample.items()} for sample in samples]
        norms_found = [norm_of(sample) for sample in samples]
        assert min(norms_found) < C < max(norms_found)
        for name in projected if number in (2, 4) else ():
            adam.m[name].zero_()
        moves = adam.step({name: g / L for name, g in clipped_sum(samples, BOUND).items()})
        for name in projected if number >= 2 else ():
            moves[name] /= (0.1 + 0.19) / 2  # the mean share that the first moment has of its length
        before = weights_of(net)
        expected = {n: w * (1 - 0.01 * 0.1) + lift(step, n, moves[n], w.shape) for n, w in before.items()}
        take_step(step, data, number)
        for name, weight in weights_of(net).items():
            torch.testing.assert_close(weight, expected[name], rtol=1e-9, atol=1e-9)


def literal(net: nn.Module, data: tuple) -> list[dict[str, torch.Tensor]]:
    """Gradients of every sample, of a copy of the net without hooks."""
    (plain := make_net()).load_state_dict(net.state_dict())
    return gradients_of(plain, losses_of(plain, data))


def test_privatize_then_project_is_the_naive_order() -> None:
    """Whole gradients are clipped, then projected: other clip factors than in the projected space."""
    net, data = make_net(), make_data()
    step = private(net, order="privatize-then-project", rule="sgd", lr=0.1)
    samples = literal(net, data)
    before, total = weights_of(net), clipped_sum(samples, BOUND)
    moves = {n: lift(step, n, project(step, n, -0.1 * g / L), g.shape) for n, g in total.items()}
    take_step(step, data, 0)
    for name, weight in weights_of(net).items():
        torch.testing.assert_close(weight - before[name], moves[name], rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("order", ["project-then-privatize", "privatize-then-project"])
def test_svd_steps_stay_in_the_leading_subspace_of_a_released_gradient(order: str) -> None:
    net, data = make_net(), make_data()
    step = private(net, projector="svd", order=order, rule="sgd", lr=0.1, refresh_every=3)
    before = net.up.weight.detach().clone()
    total = clipped_sum(literal(net, data), BOUND)["up.weight"] / L
    u = torch.linalg.svd(total, full_matrices=False)[0][:, :3]
    for number in range(3):
        take_step(step, data, number)
        moved = net.up.weight.detach() - before
        torch.testing.assert_close(u @ (u.T @ moved), moved, rtol=1e-6, atol=1e-9)
    take_step(step, data, 3)  # another subspace
    moved = net.up.weight.detach() - before
    assert (u @ (u.T @ moved) - moved).abs().max() > 1e-6


# The rest of the interface


@pytest.mark.parametrize("projector", ["gaussian", "svd"])
@pytest.mark.parametrize("cut", [1, 2, 3])
def test_resuming_is_bit_exact(projector: str, cut: int) -> None:
    """Weights, moments, period and seed come back, in the middle of a period and at its start."""
    options = {"projector": projector, "noise_multiplier": 0.7}
    data, noise, saved = make_data(), torch.Generator().manual_seed(9), None
    net = make_net()
    whole = private(net, **options, noise_generator=noise)
    for number in range(5):
        if number == cut:
            saved = copy.deepcopy((whole.optimizer.state_dict(), net.state_dict(), noise.get_state()))
        take_step(whole, data, number)
    again, noise = make_net(seed=3), torch.Generator()
    resumed = private(again, **options, seed=77, noise_generator=noise)
    resumed.optimizer.load_state_dict(saved[0])
    again.load_state_dict(saved[1])
    noise.set_state(saved[2])
    for number in range(cut, 5):
        take_step(resumed, data, number)
    assert all(torch.equal(w, weights_of(net)[name]) for name, w in weights_of(again).items())


def test_lora_layers_are_projected_and_the_base_stays_frozen() -> None:
    net = nn.Sequential(nn.Linear(20, 30), nn.Tanh(), nn.Linear(30, 3))
    lora = get_peft_model(net, LoraConfig(r=4, target_modules=["0", "2"], init_lora_weights=False))
    frozen, before = {n: p.clone() for n, p in lora.named_parameters() if not p.requires_grad}, weights_of(lora)
    step = private(lora, norms="ghost")
    sizes = [(layer.m, layer.n) for layer in step.optimizer.original_optimizer.subspaces]
    assert sizes == [(20, 4), (30, 4), (30, 4), (4, 3)]
    step.accumulate(step.model(torch.randn(5, 20)).square().sum(1), samples=range(5), step=0)
    step.step()
    assert all((w != before[n]).any() for n, w in weights_of(lora).items())
    assert all(torch.equal(p, frozen[n]) for n, p in lora.named_parameters() if not p.requires_grad)


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


M, N, R = 10, 4, 3


def wide() -> nn.Linear:
    """A layer whose inputs are the longer side: 4 x 10."""
    torch.manual_seed(0)
    return nn.Linear(M, N, dtype=torch.float64)


def grape(layer: nn.Module, projector: str = "gaussian", refresh_every: int = 3, **options: Any) -> DPGrape:
    rank = options.pop("rank", R)
    subspaces = Subspaces(layer, rank=rank, refresh_every=refresh_every, projector=projector, seed=4)
    return DPGrape(layer.parameters(), **({"lr": 0.1, "subspaces": subspaces} | options))


def set_gradients(layer: nn.Linear, seed: int) -> None:
    rng = torch.Generator().manual_seed(seed)
    for p in layer.parameters():
        p.grad = torch.randn(p.shape, generator=rng, dtype=p.dtype)


def test_moments_at_a_change_of_subspace() -> None:
    """Seven steps with F = 3 against Adam on the projected gradient, whose first moment begins anew."""
    layer = wide()
    optimizer = grape(layer)
    adam = LiteralAdam(0.1, (0.9, 0.999), 1e-8)
    for step in range(7):
        if step in (3, 6):
            adam.m["weight"].zero_()
            adam.lr = 0.1 / ((0.1 + 0.19 + 0.271) / 3)  # the mean share that the first moment has of its length
        set_gradients(layer, step)
        p = optimizer.subspaces.projector(layer.weight).double()
        move = adam.step({"weight": p.T @ layer.weight.grad.T})["weight"]
        expected = layer.weight.detach() + (p @ move).T
        optimizer.step()
        torch.testing.assert_close(layer.weight.detach(), expected)
    assert optimizer.state[layer.weight]["exp_avg"].shape == (R, N)


def test_the_adambc_rule_is_dp_adambc_in_the_projected_space() -> None:
    layer, core = nn.Linear(N, M, bias=False, dtype=torch.float64), nn.Parameter(torch.zeros(R, N, dtype=torch.float64))
    optimizer = grape(layer, refresh_every=100, rule="adambc", noise_variance=0.3, floor=1e-3)
    reference = DPAdamBC([core], lr=0.1, noise_variance=0.3, floor=1e-3)
    before, p = layer.weight.detach().clone(), optimizer.subspaces.projector(layer.weight).double()
    for step in range(6):
        rng = torch.Generator().manual_seed(step)
        core.grad = torch.randn(R, N, generator=rng, dtype=torch.float64)
        layer.weight.projected_grad = core.grad.clone()
        optimizer.step()
        reference.step()
    torch.testing.assert_close(layer.weight.detach(), before + p @ core.detach())


def test_adambc_counts_the_noise_that_a_late_projection_amplifies() -> None:
    """Whole noisy gradients, projected: the noise's mean variance per entry is Φ m/r, and that is subtracted."""
    layer = wide()
    optimizer = grape(layer, rule="adambc", noise_variance=0.3)
    set_gradients(layer, 0)
    optimizer.step()
    assert optimizer.state[layer.weight]["noise_average"] == pytest.approx(0.001 * 0.3 * M / R)
    assert optimizer.state[layer.bias]["noise_average"] == pytest.approx(0.001 * 0.3)


def test_bad_states_change_nothing() -> None:
    layer = wide()
    optimizer = grape(layer)
    set_gradients(layer, 0)
    optimizer.step()
    good = optimizer.state_dict()
    moment = good["state"][0]["exp_avg"].clone()
    bad: list[dict] = [{k: v for k, v in good.items() if k != "subspaces"}]
    for key, value in [("refresh_every", 4), ("kind", "stiefel"), ("layers", {"weight": [10, 4, 2]}), ("seed", -1)]:
        bad.append({**good, "subspaces": {**good["subspaces"], key: value}})
    bad.append({**good, "param_groups": [{**good["param_groups"][0], "lr": -1.0}]})
    bad.append({**good, "param_groups": [{**good["param_groups"][0], "params": [0]}]})
    fresh = wide()
    other = grape(fresh)
    for state in bad:
        with pytest.raises(ParameterError):
            other.load_state_dict(state)
        assert not other.state
        assert other.subspaces.step == 0
    other.load_state_dict(good)
    assert torch.equal(other.state[fresh.weight]["exp_avg"], moment)


def test_bad_options_later_and_missing_parameters() -> None:
    layer = wide()
    optimizer = grape(layer)
    before = layer.weight.detach().clone()
    set_gradients(layer, 0)
    for bad in ({"lr": -1.0}, {"lr": 0.1, "noise_variance": None}):
        optimizer.param_groups[0].update(bad)
        with pytest.raises(ParameterError, match=list(bad)[-1]):
            optimizer.step()
        assert torch.equal(layer.weight, before)
        assert not any(optimizer.state.values())
    with pytest.raises(ParameterError):
        DPGrape([layer.bias], lr=0.1, subspaces=Subspaces(layer, rank=R))
    with pytest.raises(ParameterError):
        optimizer.set_noise_variance({nn.Parameter(torch.zeros(1)): 0.0})
    with pytest.raises(ParameterError):
        optimizer.set_noise_variance({layer.weight: -1.0})
