"""Whether a stored result is older than the code that makes it, as far as the item's own code goes.

A digest is of what a file computes: lines of comments, docstrings, spaces and breaks are left out, and so are files
that only store, show and look up. Changes of the package, ``dprmt``, and of files that are read are not seen.
"""

from __future__ import annotations

import ast
import hashlib
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent
_NEUTRAL = (
    "__main__",
    "_complete",
    "_needs",
    "_page",
    "_picture",
    "_pieces",
    "_published",
    "_replay",
    "_reproduction",
    "_rows",
)
NEUTRAL = {"items/__init__.py", "_sources.py", "_states.py", *(f"{name}.py" for name in _NEUTRAL)}
"""They store, show and look up."""


def digests(module: str) -> dict[str, str]:
    """By file, of a module of this package and all of the package that it imports, wherever in its text.

    Empty of a module from elsewhere: an item may be added from outside.
    """
    found: dict[str, str] = {}
    due = [_file(module)] if _is_ours(module) and _file(module).exists() else []
    while due:
        file = due.pop()
        name = file.relative_to(ROOT).as_posix()
        if name not in NEUTRAL and name not in found:
            found[name] = _digest(file)
            due += _imported(file)
    return dict(sorted(found.items()))


def changed(stored: Mapping[str, str], module: str) -> list[str]:
    """Files that are others than when a result was stored, those that came or went among them."""
    now = digests(module)
    return sorted(name for name in stored.keys() | now.keys() if stored.get(name) != now.get(name))


def module_of(measure: Any) -> str:
    """Where an item's function is from, under the arguments that it may have got already."""
    while hasattr(measure, "func"):
        measure = measure.func
    return str(measure.__module__)


@cache
def _digest(file: Path) -> str:
    # Of the text, so that every version of Python gives the same.
    text = file.read_text(encoding="utf-8")
    said = {
        number
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
        for number in range(node.lineno, (node.end_lineno or node.lineno) + 1)
    }
    lines = [line for number, line in enumerate(text.splitlines(), 1) if number not in said]
    kept = "".join(line for line in lines if not line.lstrip().startswith("#"))
    return hashlib.blake2b("".join(kept.split()).encode(), digest_size=4).hexdigest()


def _imported(file: Path) -> Iterator[Path]:
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and _is_ours(node.module or ""):
            for name in (node.module, *(f"{node.module}.{alias.name}" for alias in node.names)):
                if (found := _file(name or "")).exists():
                    yield found


def _is_ours(module: str) -> bool:
    return module.split(".")[0] == ROOT.name


def _file(module: str) -> Path:
    base = ROOT.joinpath(*module.split(".")[1:])
    return base / "__init__.py" if base.is_dir() else base.with_suffix(".py")
