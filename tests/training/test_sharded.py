"""A model spread by ``fully_shard``: its clipped sums are those of one process, its noise is drawn once an entry."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Shard

from audits.steps import Parts, make_private
from dprmt import ParameterError, TrainingStateError
from dprmt.accounting import Hutchinson
from dprmt.training.clipping import Units
from dprmt.training.norms import HutchinsonEstimator, HutchPlusPlusEstimator, ProbeGenerator
from dprmt.training.optimizers import DPGrape
from dprmt.training.subspaces import Subspaces
from tests.training.sharded import TOKENS, in_processes, losses, network, whole

WAYS: dict[str, Callable[[], Any]] = {
    "exact": lambda: "exact",
    "ghost": lambda: "ghost",
    "hutchinson": lambda: HutchinsonEstimator(2, generator=ProbeGenerator(b"7" * 32)),
    "hutch++": lambda: HutchPlusPlusEstimator(2, 1, generator=ProbeGenerator(b"7" * 32)),
}
BATCHES = ([0, 1], [5, 2, 0], [0, 1, 2, 3, 4, 5], [], [4])
"""Of logical steps: one sample in each of two processes first, then two and one; in the fourth nobody has anything."""


def private(model: nn.Module, optimizer: torch.optim.Optimizer | None = None, **options: Any) -> Any:
    chosen = torch.optim.SGD(model.parameters(), lr=1.0) if optimizer is None else optimizer
    usual = {"norms": "ghost", "clipping_norm": 0.05, "noise_multiplier": 0.0, "expected_batch_size": 3.0}
    return make_private(model, chosen, **usual | {"distributed": torch.distributed.is_initialized()} | options)


def take(step: Any, rows: list[int], number: int) -> None:
    """A micro-batch, of nobody's rows where this process has none."""
    if rows:
        step.accumulate(losses(step.model, TOKENS[rows]), samples=rows, step=number)
    else:
        with step.standing_in():
            step.accumulate(losses(step.model, TOKENS[:2]), samples=[0, 1], step=number)


def trained(rank: int, size: int, way: str, optimizer: Any = torch.optim.SGD) -> dict[str, torch.Tensor]:
    """Parameters after some logical steps without noise, in a process of so many; 0 for one that holds the model."""
    model = network(sharded=size > 0)
    step = private(model, optimizer(model.parameters(), lr=0.1), norms=WAYS[way]())
    for number, batch in enumerate(BATCHES):
        share = batch[rank :: max(size, 1)]
        if batch:
            take(step, share[:2], number)
            if len(batch) > 2 * max(size, 1):
                take(step, share[2:], number)
        step.step()
        with torch.no_grad():
            model(TOKENS[:1])  # after which the model's own group stays whole
    step.close()
    return {name: whole(value) for name, value in model.named_parameters()}


def without_a_row(rank: int, size: int) -> dict[str, torch.Tensor]:
    """Parameters after a step with two rows, of which one, in the last process, has a loss that is not finite."""
    model = network(sharded=size > 0)
    step, share = private(model), [0, 1][rank :: max(size, 1)]
    step.accumulate(
        lambda rows: losses(step.model, rows) / (rows != TOKENS[1]).any(1), batch=TOKENS[share], samples=share, step=0
    )
    step.step()
    step.close()
    return {name: whole(value) for name, value in model.named_parameters()}


def all_ways(rank: int, size: int) -> dict[str, Any]:
    found = {way: trained(rank, size, way) for way in WAYS}
    found["adam"] = trained(rank, size, "ghost", torch.optim.Adam)
    if size < 3:
        found["left out"] = without_a_row(rank, size)
    return {way: {name: value.numpy() for name, value in values.items()} for way, values in found.items()}


@pytest.mark.parametrize("size", [2, pytest.param(3, marks=pytest.mark.slow)])
def test_sums_are_those_of_one_process(tmp_path: Path, size: int) -> None:
    start = {name: value.detach().numpy() for name, value in network().named_parameters()}
    alone = all_ways(0, 0)
    for found in in_processes(size, all_ways, tmp_path):
        assert isinstance(found, dict), found
        for way, values in found.items():
            for name, value in values.items():
                moved = np.linalg.norm(alone[way][name] - start[name])
                assert moved > 1e-4, (way, name)
                assert np.linalg.norm(value - alone[way][name]) < 1e-9 * moved, (way, name)


def memory(rank: int, size: int) -> list[int]:
    """Bytes that stay in this process between steps: parameters, sums before they are noised, and Adam's moments."""
    model = network(64, sharded=True)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    step = private(model, optimizer)
    take(step, [rank], 0)
    sums = sum(value.summed_grad.untyped_storage().nbytes() for value in model.parameters())
    step.step()
    local = [value.to_local().numel() * 8 for value in model.parameters()]
    moments = [row[key].to_local().numel() * 8 for row in optimizer.state.values() for key in ("exp_avg", "exp_avg_sq")]
    return [sum(local), sums, sum(moments)]


@pytest.mark.parametrize("size", [2, pytest.param(3, marks=pytest.mark.slow)])
def test_memory_falls_with_the_number_of_processes(tmp_path: Path, size: int) -> None:
    every = 8 * sum(value.numel() for value in network(64).parameters())
    for found in in_processes(size, memory, tmp_path):
        for stored, copies in zip(found, (1, 1, 2), strict=True):
            assert stored <= 1.03 * copies * every / size, found  # five rows over two processes are three and two
            assert stored >= 0.9 * copies * every / size, found


def elsewhere() -> nn.Module:
    """Uses a weight beside its layer."""
    return Parts(lambda model, tokens: model.inner(tokens) * model.inner.head.weight.sum(), inner=network())


def mixing(model: Any, tokens: torch.Tensor) -> torch.Tensor:
    """Adds what the samples have in common."""
    found = model.inner(tokens)
    return found + found.mean(0)


def token() -> nn.Module:
    """A parameter that is of no layer."""
    scale = nn.Parameter(torch.ones(5, dtype=torch.float64))
    return Parts(lambda model, tokens: model.inner(tokens) * model.scale, inner=network(), scale=scale)


def a_step(model: nn.Module, **options: Any) -> None:
    rank = torch.distributed.get_rank()
    rows = [2 * rank, 2 * rank + 1]
    step = private(model, **options)
    step.accumulate(losses(step.model, TOKENS[rows]), samples=rows, step=0)
    step.step()


def spread(model: nn.Module) -> nn.Module:
    fully_shard(model)
    return model


def _leaf() -> nn.Module:
    model = network()
    fully_shard(model.head)
    return spread(model)


def _by_columns() -> nn.Module:
    model = network(8)
    fully_shard(model, shard_placement_fn=lambda value: Shard(1) if value.ndim == 2 else None)
    return model


def _with_grape(model: nn.Module) -> None:
    a_step(model, optimizer=DPGrape(model.parameters(), lr=1e-3, subspaces=Subspaces(model, rank=2)))


def _one_generator() -> None:
    private(network(sharded=True), noise_generator=torch.Generator().manual_seed(1))


def _same_rows() -> None:
    step = private(network(sharded=True))
    take(step, [0, 1], 0)
    step.step()


REFUSED: dict[str, tuple[Callable[[], Any], str]] = {
    "a weight used elsewhere": (lambda: a_step(spread(elsewhere())), "used through its own layer only"),
    "samples that mix": (lambda: a_step(spread(Parts(mixing, inner=network()))), "no sample in another's loss"),
    "a parameter of no layer": (lambda: a_step(spread(token())), "of layers that hooks can follow"),
    "a layer sharded by itself": (lambda: a_step(_leaf()), "sharded as part of a block"),
    "columns": (lambda: a_step(_by_columns()), "sharded along rows"),
    "some of it": (lambda: a_step(_partly()), "freeze it, or shard it"),
    "units": (lambda: a_step(network(sharded=True), units=Units(2)), "left out where parameters are sharded"),
    "whole": (lambda: a_step(network(sharded=True), whole=["head"]), "left out where parameters are sharded"),
    "subspaces": (lambda: _with_grape(network(sharded=True)), "left out where parameters are sharded"),
    "a rank": (lambda: a_step(network(sharded=True), norms=Hutchinson(4, secret=False, rank=40)), "without a rank"),
    "not said": (lambda: a_step(network(sharded=True), distributed=False), "distributed must be True"),
    "one generator": (_one_generator, "the same noise generator"),
    "the same rows": (_same_rows, "in one process only"),
}


def _partly() -> nn.Module:
    model = network()
    fully_shard(model.blocks[0])
    return model


def refusals(rank: int, size: int) -> dict[str, str]:
    said = {}
    for name, (work, _) in REFUSED.items():
        try:
            work()
            said[name] = "taken"
        except (ParameterError, TrainingStateError) as error:
            said[name] = str(error)
    return said


def test_what_is_not_covered_is_refused_in_all_processes(tmp_path: Path) -> None:
    for found in in_processes(2, refusals, tmp_path):
        assert isinstance(found, dict), found
        for name, (_, words) in REFUSED.items():
            assert words in found[name], (name, found[name])
