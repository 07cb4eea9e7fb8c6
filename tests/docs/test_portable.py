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
from tests.house.import_graph import imported_names, modules

TEXT = ("read_text", "write_text", "open")
ON_POSIX_ALONE = {"fcntl", "resource", "pwd", "grp", "termios", "pty"}


def without_encoding(source: str) -> Iterator[int]:
    """Lines that read or write text in whatever encoding the machine has."""
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.Call):
            continue
        name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        words = [word.value for word in [*node.args, *(key.value for key in node.keywords)] if _is_text(word)]
        binary = any(set(word) <= set("rwab+") and "b" in word for word in words)
        called_on_os = isinstance(node.func, ast.Attribute) and getattr(node.func.value, "id", "") == "os"
        file_alone = name == "open" and not node.args and isinstance(node.func, ast.Attribute) and not node.keywords
        if name in TEXT and not (binary or called_on_os or file_alone or _names_encoding(node)):
            yield node.lineno


def _is_text(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str)


def _names_encoding(node: ast.Call) -> bool:
    return any(key.arg == "encoding" for key in node.keywords)


def test_text_has_an_encoding() -> None:
    found = {name: lines for name, path in modules().items() if (lines := [*without_encoding(path.read_text("utf-8"))])}
    assert found == {}


def test_the_check_sees_text_without_an_encoding() -> None:
    assert [*without_encoding("a.read_text()\nb.open('rb')\nopen(f)\nc.open('w')\nos.open(d, 1)")] == [1, 3, 4]
    assert [*without_encoding("a.read_text(encoding='utf-8')\nopen(f, 'w', encoding='utf-8')")] == []


def test_nothing_is_imported_that_one_system_has_alone() -> None:
    """But where there is something in its place: the lock."""
    users = {name for name, path in modules().items() if imported_names(path.read_text("utf-8")) & ON_POSIX_ALONE}
    assert users == {"dprmt._files"}
    forks = [name for name, path in modules().items() if "os.fork" in path.read_text("utf-8")]
    assert forks == []


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
