"""The modules of the package, and what each imports: at the top, inside functions, and for types alone."""

from __future__ import annotations

import ast
from pathlib import Path

ROOT = Path(__file__).parents[2]


def modules(root: Path = ROOT / "dprmt") -> dict[str, Path]:
    """Every module of a package by its dotted name."""
    names = {}
    for path in sorted(root.rglob("*.py")):
        parts = path.relative_to(root.parent).with_suffix("").parts
        names[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return names


def imported_names(source: str) -> set[str]:
    """Dotted names that a module imports: ``a.b`` of ``import a.b``, ``a.b.c`` of ``from a.b import c``."""
    names = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return names
