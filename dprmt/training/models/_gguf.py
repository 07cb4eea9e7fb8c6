"""GGUF files are slow to parse: once is enough."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

_LAST: dict[tuple[str, int, int], Any] = {}


@contextmanager
def parsed_once(*, last: bool = False) -> Iterator[None]:
    """Parse a GGUF file once for tokenizer and configuration while the context is open.

    Otherwise Transformers parses the file anew for each of tokenizer, configuration and weights.

    ``last``: free the parsed file at the end, because it takes memory.
    """
    try:
        import gguf
    except ModuleNotFoundError:  # code that needs it raises the error
        yield
        return
    before = {"GGUFReader": gguf.GGUFReader, "get_tensor_name_map": gguf.get_tensor_name_map}
    once = functools.partial(_reader, gguf.GGUFReader), functools.cache(gguf.get_tensor_name_map)
    for name, value in zip(before, once, strict=True):
        setattr(gguf, name, value)
    try:
        yield
    finally:
        for name, value in before.items():
            setattr(gguf, name, value)
        if last:
            _LAST.clear()


def _reader(kind: Any, path: str | Path) -> Any:
    status = Path(path).stat()
    key = str(path), status.st_mtime_ns, status.st_size
    if key not in _LAST:
        reader = kind(path)
        _LAST.clear()
        _LAST[key] = reader
    return _LAST[key]
