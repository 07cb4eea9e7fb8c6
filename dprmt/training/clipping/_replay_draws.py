"""Random numbers of a forward pass: kept, so that a sample that is run alone gets those it had in the batch.

Dropout and whatever else a model draws would otherwise differ between a batch and a sample alone. What decides which
rows go where is seen here too.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from dprmt.training.clipping._replay_rows import Window

_FILLS = ("uniform_", "normal_", "exponential_", "geometric_", "cauchy_", "log_normal_", "random_")
_DRAWS = (*_FILLS, "rand", "randn", "randint", "rand_like", "randn_like", "randint_like")
_ROW_WRITES = ("index_add", "index_copy", "index_fill", "scatter", "scatter_add", "scatter_reduce", "index_select")
_ROW_READS = ("gather", "sort", "topk", "cumsum", "cumprod", "cummax", "cummin", "kthvalue", "median", "mode")
_WHOLE_ROWS = ("nonzero", "masked_select", "masked_scatter", "unique_consecutive", "unique_dim", "_unique", "_unique2")
_INDEXED = ("index", "index_put", "_index_put_impl", "_unsafe_index", "_unsafe_index_put")
_ATTENTION, _DROPOUT_PLACE = torch.nn.functional.scaled_dot_product_attention, 4


class Draws(TorchDispatchMode):  # type: ignore[misc]  # torch is skipped by mypy
    """What is drawn within it, in the order of the draws.

    ``kept``: of the pass of a batch; ``sample`` and ``window``: whose part of it is given instead, if anybody's.
    ``calm``: dropout passes everything on, and other draws are constants, so that all rows have the same.
    ``routes``: which operation chose rows, or their order, by what is in the ``batch``; None if nothing did. Looking
    rows up in a table that was there before is not that, nor in what is ``fixed``, the model's parameters and buffers.
    """

    def __init__(
        self,
        size: int,
        fixed: frozenset[int] = frozenset(),
        *,
        batch: Any = None,
        kept: list[torch.Tensor] | None = None,
        sample: tuple[int, Window] | None = None,
        calm: bool = False,
    ) -> None:
        super().__init__()
        self.kept: list[torch.Tensor] = [] if kept is None else kept
        self.routes: str | None = None
        self._size, self._fixed, self._sample, self._calm, self._count = size, fixed, sample, calm, 0
        self._counted: list[torch.Tensor] = []
        self._made = {_storage(value) for value in tree_leaves(batch) if isinstance(value, torch.Tensor)}
        self._generators: dict[torch.Generator, torch.Tensor] = {}

    def restore(self) -> None:
        """Set generators that the model has of its own back to where they were."""
        for generator, state in self._generators.items():
            generator.set_state(state)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = func.overloadpacket.__name__
        if torch.Tag.nondeterministic_seeded not in func.tags:
            if self._sample is None and self.routes is None and self._size > 1 and self._chooses_rows(name, args):
                self.routes = name.rstrip("_")
            found = func(*args, **kwargs)
            if name == "arange":
                self._counted.append(found)  # and so no other tensor comes to lie there
            return self._noted(found)
        for value in (*args, *kwargs.values()):
            if isinstance(value, torch.Generator) and value not in self._generators:
                self._generators[value] = value.get_state()
        return self._noted(self._drawn(name, func, args, kwargs))

    def _noted(self, found: Any) -> Any:
        self._made.update(_storage(value) for value in tree_leaves(found) if isinstance(value, torch.Tensor))
        return found

    def _drawn(self, name: str, func: Any, args: Any, kwargs: Any) -> Any:
        if name in ("native_dropout", "_fused_dropout"):
            inputs, rate = args[0], args[1]
            if name == "native_dropout" and not (args[2] if len(args) > 2 else kwargs.get("train", True)):
                return func(*args, **kwargs)
            share = 1 - rate if name == "native_dropout" else rate
            mask = self._own(func(*args, **kwargs)[1].to(torch.bool), 1.0)
            scaled = inputs.clone() if self._calm else inputs * mask / max(share, 1e-30)
            return scaled, mask
        if name == "bernoulli" and not kwargs and len(args) == 1:
            return self._coins(args[0])
        if name == "bernoulli_" and len(args) > 1 and isinstance(args[1], torch.Tensor):
            return args[0].copy_(self._coins(args[1].expand_as(args[0])))
        if name in ("bernoulli", "bernoulli_"):
            return self._filled(func, args, kwargs, 1.0, name.endswith("_"))
        if name == "normal" and isinstance(args[0], torch.Tensor):
            spread = args[1] if len(args) > 1 else kwargs.get("std", 1.0)
            return args[0] + spread * self._own(torch.randn_like(args[0]), 0.0)
        if name in _DRAWS:
            middle = {"uniform_": 0.5, "rand": 0.5, "rand_like": 0.5, "exponential_": 1.0, "geometric_": 1.0}
            return self._filled(func, args, kwargs, middle.get(name, 0.0), name in _FILLS)
        return func(*args, **kwargs)

    def _filled(self, func: Any, args: Any, kwargs: Any, calm: float, in_place: bool) -> Any:
        drawn = func(*args, **kwargs)
        own = self._own(drawn, calm)
        return args[0].copy_(own) if in_place else own

    def _coins(self, chances: torch.Tensor) -> torch.Tensor:
        coins = self._own(torch.rand_like(chances if chances.is_floating_point() else chances.float()), 0.5)
        return (coins < chances).to(chances.dtype)

    def _own(self, drawn: torch.Tensor, calm: float) -> torch.Tensor:
        """As drawn and kept; or the sample's part of what was kept."""
        if self._calm:
            return torch.full_like(drawn, calm)
        if self._sample is None:
            self.kept.append(drawn.clone())
            return drawn
        self._count += 1
        if self._count > len(self.kept):
            return drawn
        given = own_part(self.kept[self._count - 1], drawn.shape, self._size, *self._sample)
        return drawn if given is None else given.to(drawn.dtype).reshape(drawn.shape).clone()

    def _chooses_rows(self, name: str, args: Any) -> bool:
        value = args[0] if args and isinstance(args[0], torch.Tensor) else None
        if value is None or not value.ndim or not len(value) or len(value) % self._size:
            return False
        if _storage(value) not in self._made or _storage(value) in self._fixed:
            return False
        name = name.rstrip("_")
        if name in _WHOLE_ROWS:
            return True
        if name in _INDEXED:
            return args[1][0] is not None and not self._in_order(args[1][0])
        if name in _ROW_WRITES or name in _ROW_READS:
            axes = [place for place in args[1:] if isinstance(place, int) and not isinstance(place, bool)]
            if name in ("topk", "kthvalue"):
                axes = axes[1:]
            axis = (axes[0] if axes else -1) % value.ndim
            index = next((entry for entry in args[1:] if isinstance(entry, torch.Tensor)), None)
            by_index = name in _ROW_WRITES and index is not None and not index.is_floating_point()
            return axis == 0 and not (by_index and self._in_order(index))
        return False

    def _in_order(self, index: torch.Tensor) -> bool:
        """Whether an index is 0, 1, 2, … along the samples, counted out rather than found in the batch."""
        counted = {_storage(value) for value in self._counted} | self._fixed
        if index.dtype == torch.bool or _storage(index) not in counted:
            return False
        if not index.numel() or index.numel() % self._size:
            return False
        rows = index.reshape(self._size, -1)
        return bool((rows == torch.arange(self._size, device=index.device)[:, None]).all())


class Undropped(TorchFunctionMode):  # type: ignore[misc]  # torch is skipped by mypy
    """Attention drops nothing: its kernels do not say what they drew."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if func is _ATTENTION and len(args) > _DROPOUT_PLACE:
            args = (*args[:_DROPOUT_PLACE], 0.0, *args[_DROPOUT_PLACE + 1 :])
        elif func is _ATTENTION:
            kwargs["dropout_p"] = 0.0
        return func(*args, **kwargs)


def own_part(
    value: torch.Tensor, shape: Sequence[int], size: int, place: int, window: Window, axis: int = 0
) -> torch.Tensor | None:
    """A sample's part, of a shape, of what a batch has; None if it has no such part.

    ``axis``: looked at first as the one of the samples, which may also hold several rows of each, such as heads.
    """
    if value.ndim != len(shape):
        return None
    places = [axis, *(other for other in range(value.ndim) if other != axis)]
    every = range(value.ndim)
    for rows in (1, None):
        for along in places:
            each = shape[along] if along < value.ndim and rows is None else 1
            if along >= value.ndim or not each or value.shape[along] != size * each or shape[along] != each:
                continue
            part = window.narrowed(value.narrow(along, place * each, each), shape, [a for a in every if a != along])
            if part is not None:
                return part
    for along in places:  # samples and tokens in one axis
        own = window.flattened(value.shape[along], size, place, shape[along]) if along < value.ndim else None
        if own is not None and (part := value.narrow(along, *own)).shape == tuple(shape):
            return part
    return window.narrowed(value, shape, every)


def _storage(value: torch.Tensor) -> int:
    return int(value.untyped_storage().data_ptr())


@contextmanager
def same_draws(devices: Sequence[torch.device]) -> Iterator[None]:
    """All global generators are afterwards as they were."""
    python, numpy = random.getstate(), np.random.get_state()  # noqa: NPY002  (a model may draw from it)
    try:
        with torch.random.fork_rng(devices=list(devices)):
            yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)  # noqa: NPY002


def devices_of(model: nn.Module) -> list[torch.device]:
    """Those with generators of their own."""
    return sorted({value.device for value in model.parameters() if value.device.type == "cuda"}, key=str)
