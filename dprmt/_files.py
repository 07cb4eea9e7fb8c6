"""Atomic file replacement, strict JSON, and JSON lines that survive a crash.

Files are readable by their owner alone unless they are public, and no link is followed to write them.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import secrets
import stat
import tomllib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import IO, Any

LEFTOVERS = ".*.part*"
"""Pattern of file names that a killed process left behind."""


@contextlib.contextmanager
def replacing(path: Path, *, public: bool = False) -> Iterator[Path]:
    """Yield a file name with the suffix of ``path``; on leaving, its content replaces ``path``.

    A reader finds the old or the new content, and the new one is on the disk when this returns. If the body raises an
    error, the old content stays. Only the owner may read the new one, unless it is ``public``.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     with replacing(Path(folder, "a.txt")) as fresh:
    ...         _ = fresh.write_text("whole")
    ...     [(file.name, file.read_text()) for file in Path(folder).iterdir()]
    [('a.txt', 'whole')]
    """
    fresh = path.with_name(f".{path.stem}.{secrets.token_hex(8)}.part{path.suffix}")
    try:
        if not public:
            os.close(open_in_place(fresh, os.O_WRONLY | os.O_EXCL))
        yield fresh
        sync(fresh)
        fresh.replace(path)
    finally:
        fresh.unlink(missing_ok=True)
    sync(path.parent)


def open_in_place(path: Path, flags: int) -> int:
    """Open a file, made for its owner alone if it is not there, but neither through a link nor any other kind of file.

    Raises
    ------
    OSError
        If it cannot be opened, or is a link, a pipe or a device.
    """
    kept_open = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
    handle = os.open(path, flags | os.O_CREAT | kept_open, 0o600)
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise OSError(errno.EINVAL, "not a file", str(path))
    return handle


def write_whole(path: Path, content: str | bytes, *, public: bool = False) -> None:
    """Write a file as `replacing` does: text as UTF-8, with unchanged line ends."""
    with replacing(path, public=public) as fresh:
        fresh.write_bytes(content.encode() if isinstance(content, str) else content)


def sync(path: Path) -> None:
    """Have the disk keep what was written to a file, or which files a folder has (on POSIX; nothing elsewhere)."""
    if os.name != "posix":
        return
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def lock(handle: IO[Any]) -> None:
    """Hold an open file alone until it is closed or the process ends, however it does; OSError if another has it."""
    try:
        import fcntl
    except ModuleNotFoundError:  # Windows
        import msvcrt

        msvcrt.locking(handle.fileno(), msvcrt.LK_NBLCK, 1)  # type: ignore[attr-defined,unused-ignore]
    else:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)


def strict_json(value: Any, *, indent: int | None = None, default: Callable[[Any], Any] | None = None) -> str:
    """Format strict JSON: numbers that are not finite become ``null``.

    Examples
    --------
    >>> strict_json({"loss": float("nan"), "scores": (1.0, float("inf"))})
    '{"loss": null, "scores": [1.0, null]}'
    """
    finite = json.loads(json.dumps(value, default=default), parse_constant=lambda word: None)
    return json.dumps(finite, indent=indent)


def parse_json(content: str | bytes) -> Any:
    """Parse a JSON text; raise a ValueError also if it is nested too deeply."""
    try:
        return json.loads(content)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def parse_toml(content: str | bytes) -> dict[str, Any]:
    """Parse a TOML text in UTF-8; raise a ValueError also if it is nested too deeply."""
    try:
        return tomllib.loads(content if isinstance(content, str) else content.decode())
    except RecursionError:
        raise ValueError("nested too deeply") from None


def append_line(path: Path, row: Mapping[str, Any], *, durably: bool = False) -> None:
    """Add one line of `strict_json` to a file, after ending one that a crash cut short.

    With ``durably``, the line is on the disk when this returns.
    """
    with os.fdopen(open_in_place(path, os.O_RDWR | os.O_APPEND), "ab+") as file:
        torn = file.tell() and file.seek(-1, os.SEEK_END) is not None and file.read(1) != b"\n"
        file.write((b"\n" if torn else b"") + strict_json(row).encode() + b"\n")
    if durably:
        sync(path)
        sync(path.parent)


def read_lines(path: Path) -> list[dict[str, Any]]:
    r"""Return the JSON objects in a file of `append_line`, in order; lines that were cut short are left out.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     file = Path(folder, "lines.jsonl")
    ...     _ = file.write_text('{"step": 1}\n{"step": 2, "lo')
    ...     append_line(file, {"step": 2, "loss": 0.5})
    ...     read_lines(file)
    [{'step': 1}, {'step': 2, 'loss': 0.5}]
    """
    rows = []
    for line in path.read_bytes().split(b"\n") if path.exists() else ():
        try:
            row = parse_json(line)
        except ValueError:
            continue
        if isinstance(row, dict):
            rows.append(row)
    return rows
