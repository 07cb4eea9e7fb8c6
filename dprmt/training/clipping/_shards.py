"""Models sharded by torch's ``fully_shard`` (FSDP2): which are supported, and where clipped sums are stored.

A layer's parameters are whole while it computes, so a process computes norms from its activations and output
gradients. Between uses each process keeps a shard of rows of the parameter, and of its sum over samples.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor, Partial, Shard

from dprmt._validation import ParameterError, TrainingStateError
from dprmt.training.clipping._optimizer import CleanSum
from dprmt.training.clipping._trainable_modules import is_followed, trainable_modules

_ONE_GROUP = (
    "sharded along rows by torch's fully_shard over all processes, and by nothing else: tensor, pipeline and hybrid "
    "parallelism are not covered"
)
_AROUND = "sharded as part of a block: call fully_shard on a module around it, or on the model"
_FOLLOWED = "of layers that hooks can follow, where parameters are sharded: this one has no gradients of samples"


def is_sharded(model: nn.Module) -> bool:
    """Return whether some parameter is a shard."""
    return any(isinstance(value, DTensor) for value in model.parameters())


def check_shards(model: nn.Module) -> None:
    """Raise unless every shard is of rows, in a group of all processes, and every trainable layer is in a block."""
    processes = torch.distributed.get_world_size() if torch.distributed.is_initialized() else 1
    for name, value in model.named_parameters():
        if not isinstance(value, DTensor):
            if value.requires_grad:
                raise ParameterError(
                    "model", f"{name}: {type(value).__name__}", f"{_ONE_GROUP}; freeze it, or shard it"
                )
        elif value.placements != (Shard(0),) or value.device_mesh.size() != processes:
            raise ParameterError("model", f"{name}: {value.placements}", _ONE_GROUP)
    if not any(isinstance(module, FSDPModule) for module in model.modules()):
        raise ParameterError("model", type(model).__name__, _ONE_GROUP)
    for name, module in trainable_modules(model).items():
        if isinstance(module, FSDPModule) and not list(module.children()):
            raise ParameterError("model", f"{name}: {type(module).__name__}", _AROUND)
        if not is_followed(module):
            raise ParameterError("model", f"{name}: {type(module).__name__}", _FOLLOWED)


class Shards:
    """Moves sums over a process' own samples from parameters that were whole to the shards of all processes.

    ``modules``: the trainable layers, while they are sharded.
    """

    def __init__(self, modules: Sequence[nn.Module]) -> None:
        self._planned = {module: dict(module.named_parameters(recurse=False)) for module in modules}
        self._whole: dict[DTensor, nn.Parameter] = {}
        self._handles = [module.register_forward_hook(self._note) for module in modules]

    def move(self) -> None:
        """Add sums of whole parameters to the shards' sums, in all processes in the same order."""
        for shard, whole in self._whole.items():
            total = getattr(whole, "summed_grad", None)
            if total is not None:
                whole.summed_grad = None
                # Of a shard in float64 whose layer computes in float32, margins would be those of float64.
                if shard.dtype == torch.float64 and total.dtype != torch.float64:
                    raise TrainingStateError("float64 parameters compute in another dtype: leave mp_policy out")
                partial = DTensor.from_local(
                    total.as_subclass(torch.Tensor), shard.device_mesh, [Partial()], run_check=False
                )
                own = partial.redistribute(placements=[Shard(0)]).to_local()
                before = getattr(shard, "summed_grad", None)
                shard.summed_grad = own.as_subclass(CleanSum) if before is None else before.add_(own)

    def forget(self) -> None:
        """Free sums that were not moved."""
        for whole in self._whole.values():
            whole.summed_grad = None

    def used(self) -> int:
        """Count the parameters that were whole so far."""
        return len(self._whole)

    def remove(self) -> None:
        """Take the hooks away."""
        self.forget()
        while self._handles:
            self._handles.pop().remove()

    def _note(self, module: nn.Module, args: Any, output: Any) -> None:
        for name, shard in self._planned[module].items():
            whole: Any = module._parameters[name]
            if shard.requires_grad and whole is not shard:
                self._whole[shard] = whole


def like_shard(parameter: DTensor, local: torch.Tensor) -> DTensor:
    """Return a process' rows as a tensor that is sharded as the parameter is."""
    shape, stride = parameter.shape, parameter.stride()
    return DTensor.from_local(
        local, parameter.device_mesh, parameter.placements, run_check=False, shape=shape, stride=stride
    )


def gathered_again(model: nn.Module) -> None:
    """Let every block gather its parameters anew before it computes next: shards have changed, or will."""
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.reshard()


def in_all(value: bool) -> bool:
    """Return whether it holds in every process."""
    said = torch.tensor(float(value))
    torch.distributed.all_reduce(said, op=torch.distributed.ReduceOp.MIN)
    return bool(said)


def in_any(value: bool) -> bool:
    """Return whether it holds in some process."""
    return not in_all(not value)
