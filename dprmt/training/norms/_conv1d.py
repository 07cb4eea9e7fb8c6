"""The one layer of Transformers that hooks follow, told by name: nobody needs to import Transformers for it."""

from __future__ import annotations

from torch import nn


def is_conv1d(module: nn.Module) -> bool:
    """True if a module is the Conv1D of Transformers: a linear layer whose weight is (in, out), and its gradient AᵀG.

    Parameters
    ----------
    module : Module
        Any.

    Returns
    -------
    bool
        By the class' name and module; subclasses are not it.

    Examples
    --------
    >>> is_conv1d(nn.Linear(2, 3))
    False
    """
    kind = type(module)
    return kind.__name__ == "Conv1D" and kind.__module__ == "transformers.pytorch_utils"
