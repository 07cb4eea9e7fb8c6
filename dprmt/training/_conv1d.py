"""The one layer of Transformers that hooks follow, told by name: nobody needs to import Transformers for it."""

from __future__ import annotations

from torch import nn


def is_conv1d(module: nn.Module) -> bool:
    """Whether the module is the Conv1D of Transformers, whose weight is (in, out)."""
    kind = type(module)
    return kind.__name__ == "Conv1D" and kind.__module__ == "transformers.pytorch_utils"
