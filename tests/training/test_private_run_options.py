"""One entrance for everything: optimizers that know their noise, subspaces, denoising, telemetry, several processes."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

from audits.processes import in_processes
from dprmt import ParameterError
from dprmt.training.denoising import Denoising
from dprmt.training.optimizers import DPAdamBC, DPGrape
from dprmt.training.private_run import make_private
from dprmt.training.subspaces import Subspaces
from tests.training.literal import clipped_sum, gradients_of
from tests.training.sharded import TOKENS, losses, network
from tests.training.test_private_run import N, new
from tests.training.test_private_run import losses as losses_of

ROWS = TensorDataset(torch.randn(N, 24, generator=torch.Generator().manual_seed(2)), torch.arange(N) % 2)


def wide() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(24, 32, bias=False), nn.Tanh(), nn.Linear(32, 2))


def trained(model: nn.Module, optimizer: Any, **options: Any) -> Any:
    private = new(ROWS, model, optimizer, steps=4, **options)
    for batch in private:
        private.step(losses_of(private), batch)
    assert private.steps_taken == 4
    return private


def test_adambc_is_given_its_noise() -> None:
    model = wide()
    optimizer = DPAdamBC(model.parameters(), lr=0.01, floor=1e-6)
    private = trained(model, optimizer, noise_multiplier=None, target_epsilon=3.0)
    [group] = optimizer.param_groups
    assert group["noise_variance"] == pytest.approx((private.noise_multiplier * 0.3 / 12) ** 2)
    alone = DPAdamBC(wide().parameters(), lr=0.01, floor=1e-6)
    for value in alone.param_groups[0]["params"]:
        value.grad = torch.zeros_like(value)
    with pytest.raises(ParameterError, match="noise_variance must be given, or left to make_private"):
        alone.step()


def test_grape_trains_in_subspaces_and_goes_on_exactly() -> None:
    def made() -> Any:
        model = wide()
        return model, DPGrape(model.parameters(), lr=0.01, subspaces=Subspaces(model, rank=4, seed=3, refresh_every=2))

    private = new(ROWS, *made(), steps=4)
    for batch in private:
        private.step(losses_of(private), batch)
        if private.steps_taken == 2:
            break
    other = new(ROWS, *made(), steps=4)
    other.load_state_dict(private.state_dict())
    for run in (private, other):
        for batch in run:
            run.step(losses_of(run), batch)
    assert torch.equal(private.model[0].weight, other.model[0].weight)  # type: ignore[index]
    assert private.optimizer.state[private.model[0].weight]["exp_avg"].shape == (4, 24)  # type: ignore[index]


def test_released_gradients_are_denoised_and_read() -> None:
    model = wide()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    private = trained(model, optimizer, denoising=Denoising("paper"), telemetry=True, secure=False)
    assert private.denoising.last_report.layers.keys() >= {"0.weight", "2.weight"}
    assert "signal" in private.telemetry.last


def of_model(model: nn.Module, rows: Any) -> torch.Tensor:
    return losses(model, rows[0])


def in_a_group(rank: int, size: int) -> list[Any]:
    """One step on all rows, replicated and sharded: the distance to the literal release; then whether a load works."""
    answers: list[Any] = []
    for sharded in (False, True):
        model = network(sharded=sharded)
        literal = network()
        optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
        options: dict[str, Any] = {"norms": "ghost", "clipping_norm": 0.1, "noise_multiplier": 1e-3}
        sizes: dict[str, Any] = {"batch_size": 6, "steps": 2, "delta": 1e-5, "micro_batch_size": 2}
        private = make_private(model, optimizer, TensorDataset(TOKENS), **options, **sizes)
        mine = [place for part in private._source.parts(range(6)[rank::size], 0) for place in part.positions]
        step, of_rows = iter(private), partial(of_model, model)
        private.step(of_rows, next(step))
        furthest = 0.0
        sums = clipped_sum(gradients_of(literal, (losses(literal, row[None]) for row in TOKENS)), 0.1)
        for (name, before), after in zip(literal.named_parameters(), model.parameters(), strict=True):
            value = after.full_tensor() if sharded else after  # type: ignore[operator]
            furthest = max(furthest, float((before - sums[name] / 6 - value).detach().abs().max()))
        state = private.state_dict()
        private.step(of_rows, next(step))
        private.load_state_dict(state)
        answers.append((len(mine), furthest, private.steps_taken, private.steps_charged))
    return answers


def test_two_processes_share_each_batch(tmp_path: Path) -> None:
    """Three rows each, in two micro-batches; noise of 2e-5 by one process, or by each for its rows."""
    for answers in in_processes(2, in_a_group, tmp_path):
        assert isinstance(answers, list), answers
        for rows, furthest, taken, charged in answers:
            assert rows == 3
            assert furthest < 1.2e-4  # 6 standard deviations
            assert (taken, charged) == (1, 2)
