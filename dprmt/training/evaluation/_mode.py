"""Evaluation mode, and back."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def evaluating(model: torch.nn.Module) -> Iterator[None]:
    """No gradients and evaluation mode inside; every module's mode as before afterwards."""
    modes = {module: module.training for module in model.modules()}
    model.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        for module, mode in modes.items():
            module.training = mode


def device_of(model: torch.nn.Module) -> torch.device:
    """Where the model's first parameter is."""
    return next(model.parameters()).device
