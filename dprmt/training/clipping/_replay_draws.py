"""What a pass draws, and whether it chooses rows by what is in them.

A pass may be *calm*: dropout passes everything on, and other draws are constants, so that passes of other sizes can be
compared. Passes of one size draw the same from the same seed and need nothing of this.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

_ROW_WRITES = ("index_add", "index_copy", "index_fill", "scatter", "scatter_add", "scatter_reduce", "index_select")
_ROW_READS = ("gather", "sort", "topk", "cumsum", "cumprod", "cummax", "cummin", "kthvalue", "median", "mode")
_WHOLE_ROWS = ("nonzero", "masked_select", "masked_scatter", "unique_consecutive", "unique_dim", "_unique", "_unique2")
_INDEXED = ("index", "index_put", "_index_put_impl", "_unsafe_index", "_unsafe_index_put")
_DROPOUT = ("dropout_p", "dropout")  # options of fused attention and recurrent kernels
_MIDDLE = 0.5  # of what is drawn in calm passes


class Draws(TorchDispatchMode):  # type: ignore[misc]  # torch is skipped by mypy
    """Sees the operations of a pass over ``size`` samples of a ``batch``.

    ``shapes``: of all that was drawn.
    ``routes``: which operation chose rows, or their order, by what is in the batch; None if nothing did. Looking rows
    up in a table that was there before is not that, nor in what is ``fixed``, the model's parameters and buffers.
    """

    def __init__(
        self, size: int, fixed: frozenset[int] = frozenset(), *, batch: Any = None, calm: bool = False
    ) -> None:
        super().__init__()
        self.shapes: list[tuple[int, ...]] = []
        self.routes: str | None = None
        self.generators: dict[torch.Generator, torch.Tensor] = {}
        self._size, self._fixed, self._calm = size, fixed, calm
        self._counted: list[torch.Tensor] = []
        self._made = {_storage(value) for value in tree_leaves(batch) if isinstance(value, torch.Tensor)}

    def restore(self) -> None:
        """Set generators that the model has of its own back to where they were."""
        for generator, state in self.generators.items():
            generator.set_state(state)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = func.overloadpacket.__name__
        if torch.Tag.nondeterministic_seeded in func.tags:
            return self._noted(self._drawn(name, func, args, kwargs))
        if self.routes is None and self._size > 1 and self._chooses_rows(name, args):
            self.routes = name.rstrip("_")
        found = func(*args, **kwargs)
        if name == "arange":
            self._counted.append(found)  # and so no other tensor comes to lie there
        return self._noted(found)

    def _noted(self, found: Any) -> Any:
        self._made.update(_storage(value) for value in tree_leaves(found) if isinstance(value, torch.Tensor))
        return found

    def _drawn(self, name: str, func: Any, args: Any, kwargs: Any) -> Any:
        for value in (*args, *kwargs.values()):
            if isinstance(value, torch.Generator) and value not in self.generators:
                self.generators[value] = value.get_state()
        if not self._calm:
            found = func(*args, **kwargs)
            self.shapes += [tuple(value.shape) for value in tree_leaves(found) if isinstance(value, torch.Tensor)]
            return found
        if name == "native_dropout":
            return args[0].clone(), torch.ones_like(args[0], dtype=torch.bool)
        if name == "_fused_dropout":
            return args[0].clone(), torch.ones_like(args[0], dtype=torch.uint8)
        if name in ("bernoulli", "bernoulli_") and (chances := _chances(name, args)) is not None:
            return args[0].copy_(chances) if name == "bernoulli_" else chances.clone()
        if name == "normal" and isinstance(args[0], torch.Tensor):
            return args[0].clone()
        for place, option in enumerate(func._schema.arguments):
            if option.name in _DROPOUT and place < len(args):
                args = (*args[:place], 0.0, *args[place + 1 :])
            elif option.name in _DROPOUT and option.name in kwargs:
                kwargs = kwargs | {option.name: 0.0}
        found = func(*args, **kwargs)
        if name == "randperm" or not isinstance(found, torch.Tensor):
            return found
        return found.fill_(_MIDDLE if found.is_floating_point() else 0)

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
        """Return whether an index is 0, 1, 2, … along the samples, counted out rather than found in the batch."""
        counted = {_storage(value) for value in self._counted} | self._fixed
        if index.dtype == torch.bool or _storage(index) not in counted:
            return False
        if not index.numel() or index.numel() % self._size:
            return False
        rows = index.reshape(self._size, -1)
        return bool((rows == torch.arange(self._size, device=index.device)[:, None]).all())


class ScaledRows:
    """Multiplies rows of the model's output: a sample whose scores, and so whose loss, are extreme.

    Outputs that were between 0 and 1 in the first pass may be probabilities, which a loss refuses beyond: they stay.
    ``factors``: of the rows; None in the first pass.
    """

    def __init__(self, model: nn.Module) -> None:
        self.factors: torch.Tensor | None = None
        self._scales: list[bool] = []
        self._place = 0
        self._handle = model.register_forward_hook(self._scale)

    def start(self, factors: Iterable[float] | None) -> None:
        """Before a pass: its factors."""
        self._place, self.factors = 0, None if factors is None else torch.tensor(list(factors))

    def remove(self) -> None:
        """Leave the model as it was."""
        self._handle.remove()

    def _scale(self, model: nn.Module, args: Any, output: Any) -> Any:
        return _replaced(output, self._one)

    def _one(self, value: torch.Tensor) -> torch.Tensor:
        place, self._place = self._place, self._place + 1
        if place == len(self._scales):
            self._scales.append(value.is_floating_point() and bool(((value < 0) | (value > 1)).any()))
        factors = self.factors
        if factors is None or not self._scales[place] or not value.ndim or len(value) != len(factors):
            return value
        return value * factors.to(value).view(-1, *[1] * (value.ndim - 1))


def _chances(name: str, args: Any) -> torch.Tensor | None:
    """What a draw of zeros and ones is on average, which shows what it depends on."""
    if len(args) > 1:
        return args[1] if isinstance(args[1], torch.Tensor) else torch.full_like(args[0], args[1])
    return args[0] if name == "bernoulli" else torch.full_like(args[0], 0.5)


def _replaced(output: Any, function: Any) -> Any:
    if isinstance(output, torch.Tensor):
        return function(output)
    if isinstance(output, dict):  # one whose entries are attributes too keeps its type
        for name in list(output):
            if isinstance(output[name], torch.Tensor):
                output[name] = function(output[name])
        return output
    if type(output) in (tuple, list):
        return type(output)(_replaced(entry, function) for entry in output)
    return output


def _storage(value: torch.Tensor) -> int:
    return int(value.untyped_storage().data_ptr())
