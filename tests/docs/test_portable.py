"""The package does on other systems what it does here: encodings, locks, paths."""

from __future__ import annotations

import ast
import subprocess
import sys
import types
from collections.abc import Iterator
from pathlib import Path

import pytest

from dprmt import _files
from tests.house.import_graph import modules


def test_a_locked_file_is_refused_to_others_until_it_is_closed(tmp_path: Path) -> None:
    with (tmp_path / "lock").open("w", encoding="utf-8") as first:
        _files.lock(first)
        code = f"from dprmt._files import lock; lock(open({str(tmp_path / 'lock')!r}, 'w', encoding='utf-8'))"
        command = [sys.executable, "-c", code]
        assert b"OSError" in (done := subprocess.run(command, capture_output=True, check=False)).stderr or (
            b"BlockingIOError" in done.stderr
        )
    assert subprocess.run(command, capture_output=True, check=False).returncode == 0


def test_windows_locks_with_its_own_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[int, int, int]] = []
    windows = types.SimpleNamespace(LK_NBLCK=2, locking=lambda *words: asked.append(words))
    monkeypatch.setitem(sys.modules, "fcntl", None)
    monkeypatch.setitem(sys.modules, "msvcrt", windows)
    with (tmp_path / "lock").open("w", encoding="utf-8") as file:
        _files.lock(file)
        assert asked == [(file.fileno(), 2, 1)]


def whole_numbers_of_the_machine(source: str) -> Iterator[int]:
    """Lines with an ``np.arange`` of integers as wide as the machine's: 32 bits in the browser, which wrap around."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "np.arange":
            spaced = any("spacing" in ast.unparse(argument) for argument in node.args)  # of floats
            if not spaced and not any(word.arg == "dtype" for word in node.keywords):
                yield node.lineno


def test_numbers_of_grid_points_have_64_bits_on_any_machine() -> None:
    accounting = {name: path for name, path in modules().items() if name.startswith("dprmt.accounting")}
    found = {name: [*whole_numbers_of_the_machine(path.read_text("utf-8"))] for name, path in accounting.items()}
    assert {name: lines for name, lines in found.items() if lines} == {}
    assert [*whole_numbers_of_the_machine("np.arange(3)\nnp.arange(3, dtype=np.int64)")] == [1]
