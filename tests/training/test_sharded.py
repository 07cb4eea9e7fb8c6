"""A model spread by ``fully_shard``: its clipped sums are those of one process, or it is refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Shard, distribute_module, distribute_tensor, init_device_mesh

from audits.steps import Parts, make_private
from dprmt import ParameterError, TrainingStateError
from dprmt.accounting import Hutchinson
from dprmt.training.clipping import Units
from dprmt.training.optimizers import DPGrape
from dprmt.training.subspaces import Subspaces
from tests.training.clipping_table import CLIPPINGS
from tests.training.norms_by_word import by_word
from tests.training.sharded import TOKENS, in_processes, losses, network, whole

BATCHES = ([0, 1], [5, 2, 0], [0, 1, 2, 3, 4, 5], [], [4])
"""Of logical steps: one sample in each of two processes first, then two and one; in the fourth nobody has anything."""


def private(model: nn.Module, optimizer: torch.optim.Optimizer | None = None, **options: Any) -> Any:
    chosen = torch.optim.SGD(model.parameters(), lr=1.0) if optimizer is None else optimizer
    usual = {"norms": "ghost", "clipping_norm": 0.05, "noise_multiplier": 0.0, "expected_batch_size": 3.0}
    return make_private(model, chosen, **usual | options)


def take(step: Any, rows: list[int], number: int) -> None:
    """A micro-batch, of nobody's rows where this process has none."""
    step.stands_in, rows = not rows, rows or [0, 1]
    step.accumulate(losses(step.model, TOKENS[rows]), samples=rows, step=number)


def trained(rank: int, size: int, way: str, optimizer: Any = torch.optim.SGD) -> dict[str, torch.Tensor]:
    """Parameters after some logical steps without noise, in a process of so many; 0 for one that holds the model."""
    model = network(sharded=size > 0)
    model.table.padding_idx = 1
    step = private(model, optimizer(model.parameters(), lr=0.1), norms=by_word(way, 2, 1, seed=7))
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
    found = {way: trained(rank, size, way) for way in CLIPPINGS}
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
    model.table.padding_idx = 1
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    step, before = private(model, optimizer, noise_multiplier=1.0), whole(model.table.weight)
    take(step, [rank], 0)
    sums = sum(value.summed_grad.untyped_storage().nbytes() for value in model.parameters())
    step.step()
    assert (whole(model.table.weight) == before).all(1).nonzero().tolist() == [[1]]
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


def a_step(model: nn.Module, rows: Any = None, optimizer: Any = None, **options: Any) -> None:
    rank = torch.distributed.get_rank()
    own = [2 * rank, 2 * rank + 1] if rows is None else rows
    step = private(model, optimizer and optimizer(model), **options)
    step.accumulate(losses(step.model, TOKENS[own]), samples=own, step=0)
    step.step()


def spread(model: nn.Module, *parts: str, **options: Any) -> nn.Module:
    """With these parts sharded, in order."""
    for part in parts:
        fully_shard(model.get_submodule(part), **options)
    return model


def used(call: Callable[[Any, torch.Tensor], torch.Tensor], **parts: nn.Parameter) -> nn.Module:
    return spread(Parts(call, inner=network(), **parts), "")


def columns(value: torch.Tensor) -> Shard | None:
    return Shard(1) if value.ndim == 2 else None


def grape(model: nn.Module) -> DPGrape:
    return DPGrape(model.parameters(), lr=1e-3, subspaces=Subspaces(model, rank=2))


def sharded() -> nn.Module:
    return network(sharded=True)


def by_hand() -> nn.Module:
    """Along rows, but not by ``fully_shard``."""

    def split(_: str, module: nn.Module, mesh: Any) -> None:
        for name, value in list(module.named_parameters(recurse=False)):
            module.register_parameter(name, nn.Parameter(distribute_tensor(value.detach(), mesh, [Shard(0)])))

    return distribute_module(network(), init_device_mesh("cpu", (2,)), split)


LEFT_OUT = "left out where parameters are sharded"
REFUSED: dict[str, tuple[Callable[[], nn.Module], dict[str, Any], str]] = {
    "a weight used elsewhere": (
        lambda: used(lambda model, tokens: model.inner(tokens) * model.inner.head.weight.sum()),
        {},
        "used through its own layer only",
    ),
    "samples that mix": (
        lambda: used(lambda model, tokens: (found := model.inner(tokens)) + found.mean(0)),
        {},
        "no sample in another's loss",
    ),
    "a parameter of no layer": (
        lambda: used(lambda model, tokens: model.inner(tokens) * model.scale, scale=nn.Parameter(torch.ones(5))),
        {},
        "of layers that hooks can follow",
    ),
    "a layer sharded by itself": (lambda: spread(network(), "head", ""), {}, "sharded as part of a block"),
    "columns": (lambda: spread(network(8), "", shard_placement_fn=columns), {}, "sharded along rows"),
    "by hand": (by_hand, {}, "sharded along rows"),
    "some of it": (lambda: spread(network(), "blocks.0"), {}, "freeze it, or shard it"),
    "units": (sharded, {"units": Units(2)}, LEFT_OUT),
    "whole": (sharded, {"whole": ["head"]}, LEFT_OUT),
    "subspaces": (sharded, {"optimizer": grape}, LEFT_OUT),
    "a rank": (sharded, {"norms": Hutchinson(4, secret=False, rank=40)}, "without a rank"),
    "one generator": (sharded, {"noise_generator": torch.Generator().manual_seed(1)}, "the same noise generator"),
    "the same rows": (sharded, {"rows": [0, 1]}, "in one process only"),
}


def refusals(rank: int, size: int) -> dict[str, str]:
    said = {}
    for name, (make, options, _) in REFUSED.items():
        try:
            a_step(make(), **options)
            said[name] = "taken"
        except (ParameterError, TrainingStateError) as error:
            said[name] = str(error)
    return said


def test_what_is_not_covered_is_refused_in_all_processes(tmp_path: Path) -> None:
    for found in in_processes(2, refusals, tmp_path):
        assert isinstance(found, dict), found
        for name, (*_, words) in REFUSED.items():
            assert words in found[name], (name, found[name])
