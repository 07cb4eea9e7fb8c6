"""The package does on other systems what it does here: encodings, locks, paths."""

from __future__ import annotations

import subprocess
import sys
import types
from pathlib import Path

import pytest

from dprmt import _files


def test_a_locked_file_is_refused_to_others_until_it_is_closed(tmp_path: Path) -> None:
    with (tmp_path / "lock").open("w", encoding="utf-8") as first:
        _files.lock(first)
        code = f"from dprmt._files import lock; lock(open({str(tmp_path / 'lock')!r}, 'w', encoding='utf-8'))"
        command = [sys.executable, "-c", code]
        assert b"Error" in subprocess.run(command, capture_output=True, check=False).stderr
    assert subprocess.run(command, capture_output=True, check=False).returncode == 0


def test_windows_locks_with_its_own_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[int, int, int]] = []
    windows = types.SimpleNamespace(LK_NBLCK=2, locking=lambda *words: asked.append(words))
    monkeypatch.setitem(sys.modules, "fcntl", None)
    monkeypatch.setitem(sys.modules, "msvcrt", windows)
    with (tmp_path / "lock").open("w", encoding="utf-8") as file:
        _files.lock(file)
        assert asked == [(file.fileno(), 2, 1)]
