"""Which module of the package imports what, from the source text: at the top, inside functions, and for types alone."""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).parents[2]
Graph = dict[str, set[str]]


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


def module_graph(sources: Mapping[str, str]) -> Graph:
    """Edges between the modules given; a name belongs to the longest module name that it starts with."""

    def owner(name: str) -> str:
        while name and name not in sources:
            name = name.rpartition(".")[0]
        return name

    return {name: {owner(used) for used in imported_names(text)} - {name, ""} for name, text in sources.items()}


def circles(graph: Graph) -> list[set[str]]:
    """Sets of modules that reach each other."""
    reached = {start: _reachable(graph, start) for start in graph}
    found: list[set[str]] = []
    for start, seen in reached.items():
        circle = {other for other in seen if start in reached[other]}
        if circle and circle not in found:
            found.append(circle)
    return found


def _reachable(graph: Graph, start: str) -> set[str]:
    seen: set[str] = set()
    waiting = [start]
    while waiting:
        new = graph[waiting.pop()] - seen
        seen |= new
        waiting += new
    return seen


def is_private_to_another(importer: str, used: str) -> bool:
    """Whether a name of the same package has a private part whose folder does not hold the importer."""
    parts = used.split(".")
    private = [i for i, part in enumerate(parts) if re.match(r"_[^_]", part)]
    home = ".".join(parts[: private[0]]) if private else ""
    return bool(private) and parts[0] == importer.split(".")[0] and not f"{importer}.".startswith(f"{home}.")


def room_of(module: str) -> str:
    """``accounting.pairs`` for ``dprmt.accounting.pairs._pairs``; empty for loose modules."""
    _, *parts = module.split(".")
    parts = parts[: 2 if parts[:1] in (["accounting"], ["training"]) else 1]
    is_room = parts not in ([], ["training"]) and (ROOT / "dprmt").joinpath(*parts).is_dir()
    return ".".join(parts) if is_room else ""


def rooms_table(text: str) -> dict[str, tuple[set[str], set[str]]]:
    """Of every room in the table of ``docs/design.md``: the rooms and the packages that it may import, in order."""
    rows = re.findall(r"^\| `dprmt\.([\w.]+)` \|[^|]*\|([^|]*)\|([^|]*)\|$", text, re.MULTILINE)
    words = lambda cell: set(re.findall(r"`([\w.]+)`", cell))  # noqa: E731
    return {name: (words(rooms), words(packages)) for name, rooms, packages in rows}
