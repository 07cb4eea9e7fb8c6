"""Parameters and what belongs to them as vectors: small ones on the CPU as NumPy's, whose operations are fast to call.

A small private step has a few milliseconds; forty calls of torch, each of a few microseconds, are a tenth of it.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray

Vector: TypeAlias = Any
"""One axis; an array of NumPy if small and on the CPU, else a tensor. Operators and in-place operators work on both."""

_SMALL = 2**14  # entries; beyond, passes over them take longer than calls
_PLAIN = (torch.float32, torch.float64)


class Pack:
    """Parameters of one group that are one vector: small ones together, others each alone."""

    def __init__(self, named: Mapping[str, torch.Tensor], group: Callable[[], Mapping[str, Any]]) -> None:
        self.names, self.parameters, self.group = tuple(named), tuple(named.values()), group
        self.sizes = [p.numel() for p in self.parameters]
        ends = list(itertools.accumulate(self.sizes))
        self._spans = [slice(end - size, end) for end, size in zip(ends, self.sizes, strict=True)]

    def split(self, whole: Vector) -> dict[str, Vector]:
        """Split a vector into views by the names of the parameters."""
        if len(self.names) == 1:
            return {self.names[0]: whole}
        return {name: whole[span] for name, span in zip(self.names, self._spans, strict=True)}


def packs(groups: Mapping[str, tuple[torch.Tensor, Callable[[], Mapping[str, Any]]]]) -> list[Pack]:
    """Group named parameters into packs, each with a function that returns its group."""
    found: dict[Any, dict[str, torch.Tensor]] = {}
    for name, (p, group) in groups.items():
        found.setdefault((id(group()), p.dtype) if _is_small(p) else name, {})[name] = p
    return [Pack(named, groups[next(iter(named))][1]) for named in found.values()]


def vector(values: torch.Tensor) -> Vector:
    """Return a view of a tensor, or a copy if its entries do not lie in a row."""
    values = values.detach()
    return values.numpy().ravel() if _is_small(values) else values.reshape(-1)


def joined(vectors: Sequence[Vector]) -> Vector:
    """Return one vector of several; of a single one, itself."""
    if len(vectors) == 1:
        return vectors[0]
    return np.concatenate(vectors) if isinstance(vectors[0], np.ndarray) else torch.cat(tuple(vectors))


def dot(first: Vector, second: Vector) -> Any:
    """Return inner product, in single precision or better."""
    if isinstance(first, np.ndarray):
        return float(first @ second)
    if first.dtype.itemsize < 4 or first.dtype != second.dtype:
        first, second = first.float(), second.float()
    return torch.dot(first, second)


def total(values: Vector) -> Any:
    """Sum of the entries."""
    return float(values @ _ones(len(values), values.dtype.char)) if isinstance(values, np.ndarray) else values.sum()


@lru_cache
def _ones(size: int, kind: str) -> NDArray[Any]:
    # BLAS adds up faster than NumPy.
    return np.ones(size, kind)


def largest(values: Vector) -> Any:
    """Return the largest entry in size."""
    if isinstance(values, np.ndarray):
        return max(float(values.max()), -float(values.min()))
    low, high = values.aminmax()
    return torch.maximum(high, -low)


def numbers(values: Sequence[Any]) -> NDArray[np.float64]:
    """Convert to numbers, reading tensors from their device together."""
    tensors = [value for value in values if isinstance(value, torch.Tensor)]
    if not tensors:
        return np.array(values, dtype=np.float64)
    read = iter(torch.stack(tensors).to(device="cpu", dtype=torch.float64).tolist())
    return np.array([next(read) if isinstance(value, torch.Tensor) else value for value in values], dtype=np.float64)


def _is_small(values: torch.Tensor) -> bool:
    return values.numel() <= _SMALL and values.dtype in _PLAIN and values.device.type == "cpu"
