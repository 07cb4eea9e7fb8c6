"""When tensors of a step come and go: what a step takes that keeps some of them longer follows without taking it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from dprmt.training.clipping._memory import TensorMemory


@dataclass(eq=False)
class Life:
    """Of a storage: its bytes, and the operations at which it comes and before which it has gone, by their number."""

    size: int
    born: int
    died: float = math.inf


class TensorLives(TensorMemory):
    """Notes the lives of all storages that operations allocate within the context; see `TensorMemory`.

    Attributes
    ----------
    lives : list of Life
        In the order of their births.
    now : int
        The number of the last operation.
    """

    def __init__(self) -> None:
        super().__init__()
        self.lives: list[Life] = []
        self.now = 0
        self._living: dict[int, Life] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Count one more operation."""
        self.now += 1
        return super().__torch_dispatch__(func, types, args, kwargs)

    def of(self, tensor: torch.Tensor) -> Life | None:
        """The life of a tensor's storage; None if it was there before."""
        return self._living.get(id(tensor.untyped_storage()))

    def _count(self, tensor: torch.Tensor) -> None:
        key = id(tensor.untyped_storage())
        if key not in self._sizes:
            self._living[key] = Life(tensor.untyped_storage().nbytes(), self.now)
            self.lives.append(self._living[key])
        super()._count(tensor)

    def _forget(self, key: int) -> None:
        self._living.pop(key).died = self.now + 1
        super()._forget(key)


def peak(lives: Iterable[tuple[int, int, float]], end: int) -> int:
    """The most bytes at once, of (bytes, first operation, the one before which they go), up to operation ``end``."""
    change = np.zeros(end + 2, dtype=np.int64)
    for size, born, died in lives:
        if born < died:
            change[min(born, end)] += size
            change[int(min(died, end + 1))] -= size
    return int(change.cumsum().max(initial=0))


def unique(lives: Iterable[Life | None]) -> Sequence[Life]:
    """Each once."""
    return list(dict.fromkeys(one for one in lives if one is not None))
