"""Runs whose model is spread over the processes of a ``torchrun`` by ``fully_shard`` (FSDP2).

Every process writes down its own rows, and reads those that it keeps when it resumes: another number of processes can.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor

from dprmt._validation import ParameterError, TrainingStateError
from dprmt.training.harness._shard_files import SavedRows
from dprmt.training.recipes import Settings


def check_spread(settings: Settings, processes: int, *, repeatable: bool = False, goes_on: bool = False) -> None:
    """Raise unless all that is asked for can be done with shards.

    ``goes_on``: a run that several processes may have begun, which one alone may continue.
    """
    if not settings.distributed.is_sharded:
        return
    if processes == 1 and not goes_on:
        allowed = "'replicated' in one process: torchrun --nproc-per-node N -m dprmt train … starts several"
        raise ParameterError("distributed.strategy", "fsdp", allowed)
    absent = {
        "denoising.method": (settings.denoising.method, "none"),
        "training.spectra_every": (settings.training.spectra_every, None),
        "repeatable": (repeatable, False),
    }
    for name, (found, wanted) in absent.items():
        if found != wanted:
            raise ParameterError(
                name, found, f"{wanted!r} with distributed.strategy = 'fsdp': no process has a gradient"
            )


def spread(model: torch.nn.Module) -> None:
    """Shard every block of a list of blocks, and the model around them, unless they are sharded."""
    if any(isinstance(module, FSDPModule) for module in model.modules()):
        return
    for module in list(model.modules()):
        if isinstance(module, torch.nn.ModuleList):
            for block in module:
                if list(block.children()):  # a single layer stays with its surroundings
                    fully_shard(block)
    fully_shard(model)


def local(value: torch.Tensor) -> torch.Tensor:
    """Return this process' part of a tensor."""
    return value.to_local() if isinstance(value, DTensor) else value


def squared_norm(value: torch.Tensor) -> torch.Tensor:
    """Compute the squared norm of a tensor over all processes that have a part of it; call it in each of them."""
    total = local(value).double().square().sum()
    if isinstance(value, DTensor):
        total = total.cpu()
        dist.all_reduce(total)
    return total


def sharded_parameters(model: torch.nn.Module) -> dict[str, torch.nn.Parameter]:
    """Map sharded parameters by name, without any that an evaluation has gathered."""
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.reshard()
    return dict(model.named_parameters())


def like(value: torch.Tensor | SavedRows, parameter: torch.Tensor) -> torch.Tensor:
    """Return this process' part of a saved tensor, if the parameter is a shard with its shape."""
    if isinstance(parameter, DTensor) and tuple(value.shape) == tuple(parameter.shape):
        first, end = own_rows(parameter)
        own = value.rows(first, end) if isinstance(value, SavedRows) else value[first:end].clone()
        own, shape = own.to(parameter.to_local().device), {"shape": parameter.shape, "stride": parameter.stride()}
        return DTensor.from_local(own, parameter.device_mesh, parameter.placements, run_check=False, **shape)
    return value.whole() if isinstance(value, SavedRows) else value


def own_rows(parameter: DTensor) -> tuple[int, int]:
    """Return the first row that this process keeps, and the one after its last: ``fully_shard`` cuts as
    ``torch.chunk``.
    """
    rows, mesh = parameter.shape[0], parameter.device_mesh
    most = -(-rows // mesh.size())
    first, end = (min(rows, place * most) for place in (mesh.get_local_rank(), mesh.get_local_rank() + 1))
    if end - first != len(parameter.to_local()):
        raise TrainingStateError(f"{len(parameter.to_local())} of {rows} rows are here: not a chunk of equal ones")
    return first, end


def optimizer_state_like(state: dict[str, Any], optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """Return a saved optimizer state whose tensors are cut as the parameters are."""
    moved = [value for group in optimizer.param_groups for value in group["params"]]
    own = {
        key: {
            name: like(value, moved[key]) if isinstance(value, torch.Tensor | SavedRows) else value
            for name, value in row.items()
        }
        for key, row in state["state"].items()
    }
    return state | {"state": own}
