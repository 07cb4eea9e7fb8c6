"""Shared steps of every measurement: choose samples, batch them in evaluation mode, and restore the mode."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, SupportsIndex

import torch

from dprmt._validation import ParameterError, check_choice, check_count
from dprmt.training.data import TaskData

Item = dict[str, Any]


@contextmanager
def evaluating(model: torch.nn.Module) -> Iterator[None]:
    """Switch to evaluation mode without gradients, and restore every module's mode afterwards."""
    modes = {module: module.training for module in model.modules()}
    model.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        for module, mode in modes.items():
            module.training = mode


def device_of(model: torch.nn.Module) -> torch.device:
    """Return the device of the model's first parameter."""
    return next(model.parameters()).device


def first_samples(data: TaskData, task: str, split: str, limit: SupportsIndex | None) -> list[Item]:
    """Return the first samples of a split, all without a limit; refused if there is none, or the data are of another
    task.
    """
    check_choice("split", split, ("validation", "test"))
    if data.task != task:
        raise ParameterError("data.task", data.task, repr(task))
    samples = getattr(data, split)
    number = len(samples) if limit is None else min(check_count("limit", limit), len(samples))
    if number == 0:
        raise ParameterError("split", split, "a split with samples")
    return [samples[position] for position in range(number)]


def batches(
    model: torch.nn.Module, data: TaskData, samples: Sequence[Item], batch_size: SupportsIndex
) -> Iterator[tuple[list[int], dict[str, torch.Tensor]]]:
    """Group samples of similar length, and yield their positions and their batch on the model's device."""
    at_once, device = check_count("batch_size", batch_size), device_of(model)
    order = sorted(range(len(samples)), key=lambda position: len(samples[position]["input_ids"]))
    for start in range(0, len(order), at_once):
        chosen = order[start : start + at_once]
        yield chosen, {key: value.to(device) for key, value in data.collate([samples[i] for i in chosen]).items()}
