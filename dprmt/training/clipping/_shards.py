"""Private steps of models sharded by torch's ``fully_shard`` (FSDP2).

A layer's parameters are whole while it computes, so a process computes norms from its activations and output
gradients. Between uses each process keeps a shard of rows of the parameter, and of its sum over samples.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor, Partial, Shard

from dprmt._validation import TrainingStateError
from dprmt.training.clipping._capture import Capture
from dprmt.training.clipping._optimizer import CleanSum, NoisySumOptimizer
from dprmt.training.clipping._step import ClippedStep, Identities, Losses, products_by_row


class ShardedStep(ClippedStep):
    """A private step whose model's parameters are shards; made by :meth:`ClippingPlan.privatize`.

    All processes must call :meth:`accumulate` equally often in a logical step, because the forward and backward passes
    are collective. A process without a sample left sets ``stands_in`` and calls it with any row. If one process raises
    an error, the others wait until their launcher ends them, as usual with ``fully_shard``.

    Parameters
    ----------
    optimizer : NoisySumOptimizer
        It noises the sums.
    capture : Capture
        The hooks on the model.

    Formal guarantees
    -----------------
    As for ``ClippedStep`` in several processes, except that no sample runs alone: losses given as a function of
    the batch are called once. Both gradient checks of the first micro-batch run in all processes.

    Examples
    --------
    See *Several GPUs* in the documentation: it takes a process group.

    >>> issubclass(ShardedStep, ClippedStep)
    True
    """

    is_spread = True

    def __init__(self, optimizer: NoisySumOptimizer, capture: Capture) -> None:
        super().__init__(optimizer, capture, replay=0.0)
        modules = [layer.module for layer in capture.layers]
        self._planned = {module: dict(module.named_parameters(recurse=False)) for module in modules}
        self._whole: dict[DTensor, nn.Parameter] = {}  # of shards, while their layers computed
        self._handles = [module.register_forward_hook(self._note) for module in modules]
        self._calls = 0

    def accumulate(self, losses: Losses, *, samples: Identities, **options: Any) -> torch.Tensor:
        """See ``ClippedStep``.

        Returns
        -------
        Tensor, shape (B,)
            As there.
        """
        self._calls += 1
        if self.stands_in:
            who = f"nobody in process {torch.distributed.get_rank()}, call {self._calls}"
            samples = [f"{who}, row {row}" for row in range(len(samples))]
        with products_by_row():  # always: all processes do the same
            return super().accumulate(losses, samples=samples, **options)

    def step(self) -> None:
        """See ``ClippedStep``.

        Raises
        ------
        ParameterError
            As there.
        """
        self._gather_again()  # else the next forward pass would be with what an evaluation gathered before
        super().step()

    def discard(self) -> None:
        """See ``ClippedStep``; free sums that were not moved."""
        for whole in self._whole.values():
            whole.summed_grad = None
        super().discard()

    def close(self) -> torch.nn.Module:
        """See ``ClippedStep``.

        Returns
        -------
        torch.nn.Module
            The model as it was given, with its trained weights, sharded.
        """
        while self._handles:
            self._handles.pop().remove()
        self._gather_again()
        return super().close()

    def _gather_again(self) -> None:
        """Let every block gather its parameters anew before it computes next: shards have changed, or will."""
        for module in self.model.modules():
            if isinstance(module, FSDPModule):
                module.reshard()

    def _note(self, module: nn.Module, args: Any, output: Any) -> None:
        for name, shard in self._planned[module].items():
            whole: Any = module._parameters[name]
            if shard.requires_grad and whole is not shard:
                self._whole[shard] = whole

    def _check_same(self) -> None:
        """Raise unless all processes have come to the same place."""
        seen: list[Any] = [None] * torch.distributed.get_world_size()
        mine = (len(self._capture.contributions), len(self._whole), self._number)
        torch.distributed.all_gather_object(seen, mine)
        if len(set(seen)) > 1:
            raise TrainingStateError("processes reach other layers, or are at other steps: sums would be wrong")

    def _in_all(self, value: bool) -> bool:
        said = torch.tensor(float(value))
        torch.distributed.all_reduce(said, op=torch.distributed.ReduceOp.MIN)
        return bool(said)

    def _summed(self) -> None:
        """Add sums of whole parameters to the shards' sums, in all processes in the same order."""
        for shard, whole in self._whole.items():
            total = getattr(whole, "summed_grad", None)
            if total is None:
                continue
            whole.summed_grad = None
            # Of a shard in float64 whose layer computes in float32, margins would be those of float64.
            if shard.dtype == torch.float64 and total.dtype != torch.float64:
                raise TrainingStateError("float64 parameters compute in another dtype: leave mp_policy out")
            plain, mesh = total.as_subclass(torch.Tensor), shard.device_mesh
            own = DTensor.from_local(plain, mesh, [Partial()], run_check=False).redistribute(placements=[Shard(0)])
            own, before = own.to_local(), getattr(shard, "summed_grad", None)
            shard.summed_grad = own.as_subclass(CleanSum) if before is None else before.add_(own)
