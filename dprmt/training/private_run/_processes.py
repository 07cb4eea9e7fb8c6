"""The processes of a ``torchrun``: one if there is none."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

import torch
import torch.distributed as dist

from dprmt._validation import ParameterError, TrainingStateError

_Value = TypeVar("_Value")


@contextmanager
def process_group() -> Iterator[tuple[int, int]]:
    """Join the group that ``torchrun`` set up, and leave it again."""
    if dist.is_available() and dist.is_initialized():
        yield dist.get_rank(), dist.get_world_size()
        return
    if int(os.environ.get("WORLD_SIZE", "1")) == 1:
        yield 0, 1
        return
    dist.init_process_group("cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo")
    try:
        yield dist.get_rank(), dist.get_world_size()
    finally:
        dist.destroy_process_group()


def rank() -> int:
    """Return the number of this process."""
    return dist.get_rank() if dist.is_available() and dist.is_initialized() else 0


def most_in_any(count: int) -> int:
    """Return the largest of all processes' counts."""
    most = torch.tensor(count)
    dist.all_reduce(most, op=dist.ReduceOp.MAX)
    return int(most)


def sum_of_all(value: float) -> float:
    """Return the sum of all processes' numbers."""
    total = torch.tensor(value, dtype=torch.float64)
    dist.all_reduce(total)
    return float(total)


def from_first(value: _Value) -> _Value:
    """Return the first process' value, in all processes."""
    if not (dist.is_available() and dist.is_initialized()):
        return value
    box = [value]
    dist.broadcast_object_list(box, src=0)
    return box[0]


def in_first(work: Callable[[], _Value]) -> _Value | None:
    """Work in the first process, None elsewhere; an error there is raised in all processes, so that all end."""
    value, problem, state = None, None, None
    if not (dist.is_available() and dist.is_initialized()) or dist.get_rank() == 0:
        try:
            value = work()
        except ParameterError as error:
            problem = error.name, error.value, error.allowed, error.fix
        except TrainingStateError as error:
            state = str(error)
    problem, state = from_first((problem, state))
    if problem is not None:
        raise ParameterError(*problem)
    if state is not None:
        raise TrainingStateError(state)
    return value
