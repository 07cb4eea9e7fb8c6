"""Whether a stored result is older than the code that computes it, as far as this package's own code goes.

A digest is of one definition (a function, a class, a constant): of its syntax tree without docstrings, annotations,
names of local variables, and texts with a blank in them, which are prose. Digests go by the definition's name, so that
a move to another file changes none. Code that draws, stores, shows and looks up is left out. Changes of the package,
``dprmt``, and of files that are read are not seen.
"""

from __future__ import annotations

import ast
import hashlib
import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent
NEUTRAL = {"__main__", "_needs", "_page", "_picture", "_pieces", "_published", "_replay", "_reproduction", "_sources"}
NEUTRAL |= {"_states", "items"}
"""Modules that store, show and look up."""
_DRAWS = re.compile(r"_?(plot|draw|picture|panel|show|print|said|sentence|words|differs|title|ITEMS?$)", re.IGNORECASE)


def digests(place: tuple[str, str]) -> dict[str, str]:
    """By name, of a definition of this package, given as module and name, and of all that it uses.

    Empty of a module from elsewhere: an item may be added from outside. Definitions of one name are one entry.
    """
    return {name: " ".join(sorted(of)) for name, of in sorted(_reach(place)[0].items())}


def changed(stored: Mapping[str, str], place: tuple[str, str]) -> list[str]:
    """Definitions that are others than when a result was stored, or came since, or went but are still used by name.

    What went and is no longer named went by a change of another definition.
    """
    now, names = _reach(place)
    before: dict[str, set[str]] = {}
    for name, digest in stored.items():  # results of an earlier form tell definitions of one name apart by their module
        before.setdefault(name.split(" of ")[0], set()).update(digest.split())
    return sorted(
        [name for name, of in now.items() if before.get(name) != of]
        + [name for name in before.keys() - now.keys() if name in names]
    )


def _reach(place: tuple[str, str]) -> tuple[dict[str, set[str]], set[str]]:
    # Digests by name, and all names that are used.
    found: dict[str, set[str]] = {}
    names: set[str] = set()
    due, seen = [place], set()
    while due:
        place = due.pop()
        home, name = place
        node = _definitions(home).get(name)
        if place in seen or _DRAWS.match(name):
            continue
        seen.add(place)
        if node is None:  # imported, from here or from elsewhere
            due += [_imports(home)[name]] if name in _imports(home) else []
            continue
        found.setdefault(name, set()).add(_digest(node))
        used = {one.id for one in ast.walk(node) if isinstance(one, ast.Name)}
        used |= {base for one in ast.walk(node) if isinstance(one, ast.ImportFrom) for base in _bound(one)}
        names |= used
        due += [(home, one) for one in used]
    return found, names


def place_of(measure: Any) -> tuple[str, str]:
    """Module and name of an item's function, under the arguments that it may have got already."""
    while hasattr(measure, "func"):
        measure = measure.func
    return str(measure.__module__), str(measure.__name__)


@cache
def _tree(module: str) -> ast.Module:
    package, *path = module.split(".")
    base = ROOT.joinpath(*path)
    file = base / "__init__.py" if base.is_dir() else base.with_suffix(".py")
    if package != ROOT.name or not file.exists() or path[:2] in ([one] for one in NEUTRAL):
        return ast.Module([], [])
    return ast.parse(file.read_text(encoding="utf-8"))


def _definitions(module: str) -> dict[str, ast.stmt]:
    found: dict[str, ast.stmt] = {}
    for node in _tree(module).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            found[node.name] = node
        elif isinstance(node, ast.Assign | ast.AnnAssign | ast.AugAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            found |= {name.id: node for one in targets for name in ast.walk(one) if isinstance(name, ast.Name)}
    return found


def _imports(module: str) -> dict[str, tuple[str, str]]:
    nodes = (node for node in ast.walk(_tree(module)) if isinstance(node, ast.ImportFrom))
    return {name: (node.module or "", alias.name) for node in nodes for name, alias in _bound(node).items()}


def _bound(node: ast.ImportFrom) -> dict[str, ast.alias]:
    return {alias.asname or alias.name: alias for alias in node.names}


def _digest(node: ast.stmt) -> str:
    # Of the text of the tree, so that every version of Python gives the same.
    text = ast.unparse(_Computed().visit(ast.parse(ast.unparse(node))))
    return hashlib.blake2b("".join(text.split()).encode(), digest_size=4).hexdigest()


class _Computed(ast.NodeTransformer):
    """Leaves what decides a number: no prose, no annotations, local names by their order."""

    def __init__(self) -> None:
        self._names: dict[str, str] = {}

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        """Without its docstring and annotations."""
        own = {one.arg for one in ast.walk(node.args) if isinstance(one, ast.arg)}
        own |= {one.id for one in ast.walk(node) if isinstance(one, ast.Name) and isinstance(one.ctx, ast.Store)}
        for one in ast.walk(node):  # in the order of the text
            name = one.arg if isinstance(one, ast.arg) else one.id if isinstance(one, ast.Name) else ""
            if name in own:
                self._names.setdefault(name, f"v{len(self._names)}")
        node.returns, node.body = None, _unsaid(node.body)
        return self.generic_visit(node)

    def visit_ClassDef(self, node: ast.ClassDef) -> ast.AST:
        """Without its docstring."""
        node.body = _unsaid(node.body)
        return self.generic_visit(node)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AST:
        """As an assignment."""
        if node.value is None:
            return self.generic_visit(node)
        return self.generic_visit(ast.Assign([node.target], node.value, lineno=0))

    def visit_arg(self, node: ast.arg) -> ast.AST:
        """A local name."""
        return ast.arg(self._names.get(node.arg, node.arg))

    def visit_Name(self, node: ast.Name) -> ast.AST:
        """A local name, or one from outside as it is."""
        return ast.Name(self._names.get(node.id, node.id), node.ctx)

    def visit_Constant(self, node: ast.Constant) -> ast.AST:
        """Nothing in the place of prose."""
        return ast.Constant("") if isinstance(node.value, str) and " " in node.value.strip() else node

    def visit_ImportFrom(self, node: ast.ImportFrom) -> ast.AST:
        """The names alone, wherever they are from."""
        return ast.ImportFrom("", node.names, 0)


def _unsaid(body: list[ast.stmt]) -> list[ast.stmt]:
    said = [one for one in body if isinstance(one, ast.Expr) and isinstance(one.value, ast.Constant)]
    return [one for one in body if one not in said] or [ast.Pass()]
