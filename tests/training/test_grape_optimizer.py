"""The optimizer DPGrape by itself: refresh of the moments, rules, options, state."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from dprmt import ParameterError
from dprmt.training.optimizers import DPAdamBC, DPGrape
from dprmt.training.subspaces import Subspaces
from tests.training.grape_reference import LiteralAdam

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


@pytest.mark.parametrize("refresh_every", [1, 4, 10, 1000])
def test_changes_of_subspace_do_not_shorten_the_way(refresh_every: int) -> None:
    """A small constant gradient under noise moves the weights by ηG/s per step, for s of the projected noise."""
    m, n, r, s, steps = 40, 30, 8, 1.0, 400
    torch.manual_seed(0)
    ways = []
    for seed in range(6):
        layer = nn.Linear(n, m, bias=False, dtype=torch.float64)
        clean, start = 0.1 * torch.randn(m, n, dtype=torch.float64), layer.weight.detach().clone()
        subspaces = Subspaces(layer, rank=r, refresh_every=refresh_every, seed=seed)
        optimizer = DPGrape(layer.parameters(), lr=1e-3, subspaces=subspaces)
        for _ in range(steps):
            layer.weight.grad = clean + s * torch.randn(m, n, dtype=torch.float64)
            optimizer.step()
        unit = 1e-3 / (s * (m / r) ** 0.5) * steps * clean.square().sum()
        ways.append(float(((start - layer.weight.detach()) * clean).sum() / unit))
    assert sum(ways) / len(ways) == pytest.approx(1.0, abs=0.15)  # uncorrected: 0.1, 0.23 and 0.41 for the first three


def test_unprojected_parameters_are_those_of_torch_adamw() -> None:
    layer, other = wide(), wide()
    optimizer = grape(layer, weight_decay=0.2)
    adamw = torch.optim.AdamW([other.bias], lr=0.1, weight_decay=0.2)
    for step in range(5):
        set_gradients(layer, step)
        other.bias.grad = layer.bias.grad.clone()
        optimizer.step()
        adamw.step()
    torch.testing.assert_close(layer.bias, other.bias)


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


def test_groups_and_schedules_reach_the_step() -> None:
    layer = wide()
    subspaces = Subspaces(layer, rank=R, seed=0)
    groups = [{"params": [layer.weight]}, {"params": [layer.bias], "lr": 0.0}]
    optimizer = DPGrape(groups, lr=0.1, subspaces=subspaces, rule="sgd")
    bias, weight = layer.bias.detach().clone(), layer.weight.detach().clone()
    for lr in (0.1, 0.05):
        optimizer.param_groups[0]["lr"] = lr
        set_gradients(layer, 0)
        optimizer.step()
    p = subspaces.projector(layer.weight).double()
    torch.testing.assert_close(layer.weight.detach(), weight - 0.15 * layer.weight.grad @ p @ p.T)
    assert torch.equal(layer.bias, bias)


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
