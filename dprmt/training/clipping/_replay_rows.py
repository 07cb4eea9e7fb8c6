"""A micro-batch by samples: in another order, or one alone without the columns that only padding fills."""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection, Iterator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from dprmt._validation import ParameterError

_MASK, _IDS = "attention_mask", "input_ids"
_TARGET_MASK, _LABELS, _LEFT_OUT = "decoder_attention_mask", "labels", -100
_SHARED = (str, bool, type(None))


@dataclass(frozen=True)
class Window:
    """Columns of a batch, ``width`` wide, in which one sample has something else than padding.

    ``target``: that of the text which an encoder's text becomes, whose columns are others.
    """

    start: int
    length: int
    width: int | None
    target: Window | None = None

    @property
    def widths(self) -> tuple[int | None, ...]:
        """Of the batch's columns that are not all kept; none of a sample that is run with its padding."""
        return tuple(window.width for window in self._windows())

    @property
    def columns(self) -> int:
        """How many are kept."""
        return sum(window.length for window in self._windows())

    def cut(self, name: str, value: torch.Tensor) -> torch.Tensor:
        """Return a batch's tensor without the other columns; masks over two positions lose both."""
        window = self.target if self.target is not None and _is_target(name) else self
        if window.width is None:
            return value
        axes = (2, 3) if value.ndim == 4 and value.shape[2:] == (window.width, window.width) else (1,)
        for axis in axes:
            if value.ndim > axis and value.shape[axis] == window.width:
                value = value.narrow(axis, window.start, window.length)
        return value

    def narrowed(self, value: torch.Tensor, shape: Sequence[int], axes: Collection[int]) -> torch.Tensor | None:
        """What of a value of the batch a sample alone has, whose shape it is; None if no part of it has that shape.

        ``axes``: those that may be shorter.
        """
        if value.ndim != len(shape):
            return None
        for axis in range(value.ndim):
            if value.shape[axis] == shape[axis]:
                continue
            if axis not in axes or shape[axis] > value.shape[axis]:
                return None
            window = self._told(value.shape[axis], shape[axis])
            value = value.narrow(axis, 0 if window is None else window.start, shape[axis])
        return value

    def flattened(self, rows: int, size: int, place: int, length: int) -> tuple[int, int] | None:
        """Start and length of a sample's part in an axis of samples times columns; None if it is no such axis."""
        window = self._told(rows // size, length) if rows % size == 0 else None
        return None if window is None else (place * (rows // size) + window.start, length)

    def _windows(self) -> Iterator[Window]:
        if self.width is not None:
            yield self
        if self.target is not None:
            yield self.target

    def _told(self, width: int, length: int) -> Window | None:
        return next((window for window in self._windows() if (window.width, window.length) == (width, length)), None)


class BatchRows:
    """Tensors, arrays or lists, of which every one has the samples as its first axis; mappings and tuples of them.

    ``padding``: numbers that stand for padding, where the batch has no ``attention_mask``.
    ``translates``: whether the model has an encoder and a decoder, so that ``labels`` have columns of their own.
    """

    def __init__(self, batch: Any, size: int, padding: Collection[int] = (), *, translates: bool = False) -> None:
        self._batch, self._size = batch, size
        entries = list(_entries(batch, size, "batch"))
        for name, value in entries:
            if isinstance(value, _SHARED):
                continue
            if not hasattr(value, "__len__") or getattr(value, "ndim", 1) == 0 or len(value) != size:
                allowed = f"one row for each of the {size} samples: what all share belongs into the function"
                where = name if name == "batch" else f"batch[{name!r}]"
                raise ParameterError(where, type(value).__name__, allowed)
        named = {name: value for name, value in entries if isinstance(value, torch.Tensor) and value.ndim == 2}
        self.words = [value for name, value in named.items() if _holds_words(value) and not _is_target(name)]
        self._kept = _kept_columns(named, padding)
        self._target = _target_columns(named, padding, self._kept, translates=translates)

    def reordered(self, order: Sequence[int]) -> Any:
        """Return the samples in another order."""
        return _mapped(self._batch, self._size, lambda _, value: _picked(value, order))

    def alone(self, sample: int, window: Window) -> Any:
        """Return one of them."""

        def pick(name: str, value: Any) -> Any:
            value = _picked(value, [sample])
            return window.cut(name, value) if isinstance(value, torch.Tensor) else value

        return _mapped(self._batch, self._size, pick)

    def window(self, sample: int) -> Window:
        """Return the columns from the first to the last one that is not padding."""
        target = None if self._target is None else Window(*_from_first_to_last(self._target[sample]))
        if self._kept is None:
            return Window(0, 0, None, target)
        return Window(*_from_first_to_last(self._kept[sample]), target)

    @property
    def tells_padding(self) -> bool:
        """Whether columns are known that may be padding."""
        return self._kept is not None or self._target is not None


def padding_number(words: Sequence[torch.Tensor]) -> tuple[int | None, int | None]:
    """Return the number that fills up the shorter of some texts, and their width; None where nothing looks like it.

    It ends at least two rows, one of them more than once, not all rows, and in different lengths.
    """
    text = next((value for value in words if value.shape[1] > 1), None)
    if text is None:
        return None, None
    ends = text[:, -1]
    for number in ends.unique().tolist():
        tails = (text == number).flip(1).long().cumprod(1).sum(1)
        lengths = tails[tails > 0].tolist()
        if 1 < len(lengths) < len(text) and max(lengths) > 1 and len(set(lengths)) > 1:
            return int(number), text.shape[1]
    return None, text.shape[1]


def two_rows(one: Any, other: Any) -> Any:
    """Return a batch of one sample and another batch of one, one after the other; None if they are not alike."""
    if isinstance(one, Mapping):
        if not isinstance(other, Mapping) or one.keys() != other.keys():
            return None
        joined = {key: two_rows(one[key], other[key]) for key in one}
        if any(joined[key] is None and one[key] is not None for key in one):
            return None
        if isinstance(one, MutableMapping) and type(one) is not dict:
            both = copy.copy(one)
            both.update(joined)
            return both
        return joined
    if isinstance(one, tuple) or _columns(one, 1):
        if type(one) is not type(other) or len(one) != len(other):
            return None
        entries = [two_rows(mine, others) for mine, others in zip(one, other, strict=True)]
        if any(entry is None and mine is not None for entry, mine in zip(entries, one, strict=True)):
            return None
        if isinstance(one, tuple):
            return type(one)(*entries) if hasattr(one, "_fields") else tuple(entries)
        return entries
    if isinstance(one, torch.Tensor):
        alike = isinstance(other, torch.Tensor) and one.shape == other.shape and one.dtype == other.dtype
        return torch.cat([one, other]) if alike else None
    if isinstance(one, np.ndarray):
        return np.concatenate([one, other]) if isinstance(other, np.ndarray) and one.shape == other.shape else None
    if isinstance(one, _SHARED):
        return one if one == other else None
    return [one[0], other[0]]


def _from_first_to_last(kept: torch.Tensor) -> tuple[int, int, int]:
    places, width = kept.nonzero(), len(kept)
    if not len(places):
        return 0, width, width
    first, last = int(places.min()), int(places.max())
    return first, last - first + 1, width


def _kept_columns(named: Mapping[str, torch.Tensor], padding: Collection[int]) -> torch.Tensor | None:
    if _MASK in named:
        return named[_MASK] != 0
    ids = {name: value for name, value in named.items() if _holds_words(value) and not _is_target(name)}
    if not ids or not padding:
        return None
    first = ids.get(_IDS, next(iter(ids.values())))
    return _are_none(first, padding)


def _target_columns(
    named: Mapping[str, torch.Tensor], padding: Collection[int], kept: torch.Tensor | None, *, translates: bool
) -> torch.Tensor | None:
    """Of texts to be written; None where they are the texts that are read."""
    target = {name: value for name, value in named.items() if _is_target(name)}
    if _TARGET_MASK in target:
        return target[_TARGET_MASK] != 0
    words = target.get(_LABELS)
    if words is None or not _holds_words(words):
        return None
    if len(target) == 1 and not translates and (kept is None or kept.shape == words.shape):
        return None
    left_out = words == _LEFT_OUT
    own = ~left_out if bool(left_out.any()) else _are_none(words, padding)
    return own.flip(1).cumsum(1).flip(1) > 0  # what is left out before the end is no padding


def _holds_words(value: torch.Tensor) -> bool:
    return not value.is_floating_point() and value.dtype != torch.bool


def _are_none(words: torch.Tensor, numbers: Collection[int]) -> torch.Tensor:
    found = torch.ones_like(words, dtype=torch.bool)
    for number in numbers:
        found &= words != number
    return found


def _is_target(name: str) -> bool:
    return name == _LABELS or name.startswith("decoder_")


def _columns(value: Any, size: int) -> bool:
    """Return whether a list is what a loader makes of tuples of tensors, rather than one of samples."""
    return (
        isinstance(value, list)
        and len(value) > 0
        and all(isinstance(entry, torch.Tensor) and entry.ndim > 0 and len(entry) == size for entry in value)
    )


def _entries(value: Any, size: int, name: str) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping):
        for key, entry in value.items():
            yield from _entries(entry, size, str(key))
    elif isinstance(value, tuple) or _columns(value, size):
        for place, entry in enumerate(value):
            yield from _entries(entry, size, f"entry {place}")
    else:
        yield name, value


def _mapped(value: Any, size: int, function: Callable[[str, Any], Any], name: str = "batch") -> Any:
    if isinstance(value, Mapping):
        mapped = {key: _mapped(entry, size, function, str(key)) for key, entry in value.items()}
        if isinstance(value, MutableMapping) and type(value) is not dict:  # one whose entries are attributes too
            other = copy.copy(value)
            other.update(mapped)
            return other
        return mapped
    if isinstance(value, tuple) or _columns(value, size):
        entries = [_mapped(entry, size, function, f"entry {place}") for place, entry in enumerate(value)]
        if isinstance(value, tuple):
            return type(value)(*entries) if hasattr(value, "_fields") else tuple(entries)
        return entries
    return function(name, value)


def _picked(value: Any, rows: Sequence[int]) -> Any:
    if isinstance(value, (torch.Tensor, np.ndarray)):
        return value[list(rows)]
    return value if isinstance(value, _SHARED) else [value[row] for row in rows]
