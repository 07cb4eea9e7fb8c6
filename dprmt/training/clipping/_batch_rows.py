"""A micro-batch by rows: in another order, with other contents, or one alone without the columns of its padding."""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection, Mapping, MutableMapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch

from dprmt._validation import ParameterError

_MASK, _IDS = "attention_mask", "input_ids"
_TARGET_MASK, _LABELS, _LEFT_OUT = "decoder_attention_mask", "labels", -100
_SHARED = (str, bool, type(None))


class BatchRows:
    """Tensors, arrays or lists with the samples as first axis, and mappings and tuples of them.

    ``padding``: numbers that mean padding, if the batch has no ``attention_mask``. ``translates``: whether the model
    has an encoder and a decoder, so that ``labels`` have separate columns.
    """

    def __init__(self, batch: Any, size: int, padding: Collection[int] = (), *, translates: bool = False) -> None:
        self._batch, self.size = batch, size
        entries = _entries(batch, size)
        for name, value in entries:
            if isinstance(value, _SHARED):
                continue
            if not hasattr(value, "__len__") or getattr(value, "ndim", 1) == 0 or len(value) != size:
                allowed = "one row for each sample: what all share belongs into the function"
                where = name if name == "batch" else f"batch[{name!r}]"
                raise ParameterError(where, type(value).__name__, allowed)
        named = {name: value for name, value in entries if isinstance(value, torch.Tensor) and value.ndim == 2}
        self.shapes = [getattr(value, "shape", None) for _, value in entries]
        self.words = [value for name, value in named.items() if _holds_words(value) and not _is_target(name)]
        # Columns that are no padding, of texts that are written (True) or read.
        self._kept: dict[bool, torch.Tensor] = {}
        if (read := _read_columns(named, padding)) is not None:
            self._kept[False] = read
        if (written := _written_columns(named, padding, read, translates=translates)) is not None:
            self._kept[True] = written

    def picked(self, order: Sequence[int]) -> Any:
        """Return some rows, in this order."""
        return _mapped(self._batch, self.size, lambda _, value: _picked(value, order))

    def opposite(self, order: Sequence[int], kept: Collection[int]) -> Any:
        """Return some rows, of which those at other places than ``kept`` have contents of opposite sign and twice the
        size, or half the length.

        Integers become zero in the second half of their columns, or half as large: never what no table has. Masks stay.
        """
        others = torch.tensor([place for place in range(len(order)) if place not in kept], dtype=torch.long)
        return _mapped(self._batch, self.size, lambda _, value: _opposite(_picked(value, order), others))

    def alone(self, row: int, *, cut: bool = True) -> Any:
        """Return one of them; ``cut``: without columns before the first and after the last one that is not padding."""
        return _mapped(self._batch, self.size, partial(self._one, row, cut))

    @property
    def most_padded(self) -> int:
        """The row with the fewest columns that are no padding."""
        return int(sum(kept.sum(1) for kept in self._kept.values()).argmin()) if self._kept else 0

    def widths_cut(self, row: int) -> tuple[int, ...]:
        """Return the widths of the batch's columns that :meth:`alone` cuts."""
        return tuple(width for _, _, width in self._windows(row).values())

    @property
    def tells_padding(self) -> bool:
        """Whether columns are known that may be padding."""
        return bool(self._kept)

    def _windows(self, row: int) -> dict[bool, tuple[int, int, int]]:
        """Start, length and the batch's width, of texts that are written (True) or read."""
        return {written: _from_first_to_last(kept[row]) for written, kept in self._kept.items()}

    def _one(self, row: int, cut: bool, name: str, value: Any) -> Any:
        value, windows = _picked(value, [row]), self._windows(row)
        window = windows.get(_is_target(name) and True in windows)
        if not cut or window is None or not isinstance(value, torch.Tensor):
            return value
        start, length, width = window
        over_positions = value.ndim == 4 and value.shape[2:] == (width, width)  # masks lose rows and columns
        for axis in (2, 3) if over_positions else (1,):
            if value.ndim > axis and value.shape[axis] == width:
                value = value.narrow(axis, start, length)
        return value


def padding_number(words: Sequence[torch.Tensor]) -> tuple[int | None, int | None]:
    """Find the number that pads the shorter of some texts, and their width; None if there is none.

    It ends at least two rows, one of them more than once, not all rows, and in different lengths.
    """
    text = next((value for value in words if value.shape[1] > 1), None)
    if text is None:
        return None, None
    for number in text[:, -1].unique().tolist():
        tails = (text == number).flip(1).long().cumprod(1).sum(1)
        lengths = tails[tails > 0].tolist()
        if 1 < len(lengths) < len(text) and max(lengths) > 1 and len(set(lengths)) > 1:
            return int(number), text.shape[1]
    return None, text.shape[1]


def two_rows(one: Any, other: Any) -> Any:
    """Combine two batches of one sample each; the first one twice if the other's structure differs."""
    others = iter(_entries(other, 1))

    def joined(name: str, value: Any) -> Any:
        its_name, its = next(others)
        if its_name != name or type(its) is not type(value) or getattr(its, "dtype", 0) != getattr(value, "dtype", 0):
            raise ValueError
        if isinstance(value, torch.Tensor):
            return torch.cat([value, its])
        if isinstance(value, np.ndarray):
            return np.concatenate([value, its])
        if isinstance(value, _SHARED) and value != its:
            raise ValueError
        return value if isinstance(value, _SHARED) else [value[0], its[0]]

    try:
        return _mapped(one, 1, joined)
    except (ValueError, RuntimeError, StopIteration):
        return two_rows(one, one)


def _opposite(value: Any, others: torch.Tensor) -> Any:
    if not isinstance(value, torch.Tensor) or value.dtype == torch.bool or not len(others):
        return value
    value, others = value.clone(), others.to(value.device)
    rows = value[others]
    if value.is_floating_point():
        value[others] = -2 * rows
    elif not value.numel() or int(value.max()) > 1:
        half = (value.shape[1] + 1) // 2 if value.ndim > 1 else 0
        value[others] = torch.cat([rows[:, :half], 0 * rows[:, half:]], 1) if half else (rows + 1) // 2
    return value


def _from_first_to_last(kept: torch.Tensor) -> tuple[int, int, int]:
    places, width = kept.nonzero(), len(kept)
    if not len(places):
        return 0, width, width
    first, last = int(places.min()), int(places.max())
    return first, last - first + 1, width


def _read_columns(named: Mapping[str, torch.Tensor], padding: Collection[int]) -> torch.Tensor | None:
    if _MASK in named:
        return named[_MASK] != 0
    ids = {name: value for name, value in named.items() if _holds_words(value) and not _is_target(name)}
    if not ids or not padding:
        return None
    return _are_none(ids.get(_IDS, next(iter(ids.values()))), padding)


def _written_columns(
    named: Mapping[str, torch.Tensor], padding: Collection[int], kept: torch.Tensor | None, *, translates: bool
) -> torch.Tensor | None:
    """Return the columns of target texts; None if they are the input texts."""
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


def _entries(batch: Any, size: int) -> list[tuple[str, Any]]:
    found: list[tuple[str, Any]] = []
    _mapped(batch, size, lambda name, value: found.append((name, value)))
    return found


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
