"""Models that ``fully_shard`` (FSDP2) spreads over the processes of a ``torchrun``, by rows of every parameter."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor

from dprmt._validation import ParameterError
from dprmt.training.recipes import Settings


def check_spread(settings: Settings, processes: int, *, goes_on: bool = False) -> None:
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
    }
    for name, (found, wanted) in absent.items():
        if found != wanted:
            allowed = f"{wanted!r} with distributed.strategy = 'fsdp': no process has a gradient"
            raise ParameterError(name, found, allowed)


def spread(model: torch.nn.Module) -> None:
    """Shard every block of a list of blocks, and the model around them, unless they are sharded."""
    if any(isinstance(module, FSDPModule) for module in model.modules()):
        return
    for module in list(model.modules()):
        if isinstance(module, torch.nn.ModuleList):
            for block in module:
                if list(block.children()):  # a layer by itself stays with what is around it
                    fully_shard(block)
    fully_shard(model)


def squared_norm(value: torch.Tensor) -> torch.Tensor:
    """Compute the squared norm of a tensor over all processes that have a part of it; call it in each of them."""
    total = (value.to_local() if isinstance(value, DTensor) else value).double().square().sum()
    if isinstance(value, DTensor):
        total = total.cpu()
        dist.all_reduce(total)
    return total


def whole_weights(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Gather the weights in the first process' memory, one tensor after the other; call it in each process."""
    options = StateDictOptions(full_state_dict=True, cpu_offload=True)
    whole: dict[str, torch.Tensor] = get_model_state_dict(model, options=options)
    return whole


def check_shared(folder: Path) -> None:
    """Raise, in all processes, unless the folder is there for each of them."""
    seen: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(seen, folder.exists())
    if not all(seen):
        raise ParameterError(
            "out", str(folder), f"a folder that all processes see; process {seen.index(False)} does not"
        )
