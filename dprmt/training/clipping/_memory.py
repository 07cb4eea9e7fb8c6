"""Bytes of live tensors, counted at every operation: the same on every machine."""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class TensorMemory(TorchDispatchMode):  # type: ignore[misc]  # torch is skipped by mypy
    """Count of the bytes of all tensor storages that operations allocate within the context, backward passes included.

    Storages count from the operation that returns them until nothing refers to them; views add nothing. Memory that
    kernels allocate and free inside one operation is not counted, and neither is earlier memory unless it is in
    ``known``.

    Parameters
    ----------
    known : iterable of Tensor
        Tensors to count from the start, such as the parameters.

    Attributes
    ----------
    live, peak : int
        Bytes now, and the most so far.
    largest : int
        Bytes of the largest storage allocated in the context.

    Examples
    --------
    >>> with TensorMemory() as memory:
    ...     x = torch.zeros(1000)
    ...     y = (x + 1)[:10]
    ...     del x
    >>> memory.peak, memory.live
    (8000, 4000)
    """

    def __init__(self, known: Iterable[torch.Tensor] = ()) -> None:
        super().__init__()
        self.live = self.peak = self.largest = 0
        self._sizes: dict[int, int] = {}
        for tensor in known:
            self._count(tensor)
        self.largest = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run the operation and count what it returns."""
        inputs = {id(leaf.untyped_storage()) for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)}
        out = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(out):
            if isinstance(leaf, torch.Tensor) and id(leaf.untyped_storage()) not in inputs:
                self._count(leaf)
        return out

    def reset_peak(self) -> None:
        """Start the peak again from what is live."""
        self.peak, self.largest = self.live, 0

    def _count(self, tensor: torch.Tensor) -> None:
        storage = tensor.untyped_storage()
        key = id(storage)
        if key in self._sizes:
            return
        size = storage.nbytes()
        self._sizes[key] = size
        self.live += size
        self.peak, self.largest = max(self.peak, self.live), max(self.largest, size)
        weakref.finalize(storage, self._forget, key).atexit = False

    def _forget(self, key: int) -> None:
        self.live -= self._sizes.pop(key, 0)
