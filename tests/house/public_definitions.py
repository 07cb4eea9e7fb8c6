"""The functions, classes and methods that a room's ``__all__`` reaches, wherever in the package they are defined."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import Any

from tests.house.import_graph import ROOT, modules


def rooms() -> list[str]:
    """Every importable name of a module with an ``__all__``, except for the folders that are accounting's own."""
    own = tuple(
        f"dprmt.accounting.{path.parent.name}" for path in (ROOT / "dprmt" / "accounting").glob("*/__init__.py")
    )
    named = [name for name, path in modules().items() if "\n__all__ = [" in path.read_text(encoding="utf-8")]
    return [name for name in named if name not in own or name == "dprmt.accounting.opacus"]


def public_definitions() -> dict[tuple[Path, str], Any]:
    """By file and qualified name; members of private base classes of this package are public too."""
    found = {}
    for room in rooms():
        module = importlib.import_module(room)
        for name in module.__all__:
            for definition in _reached(getattr(module, name)):
                found[_place(definition)] = definition
    return found


def _reached(value: Any) -> Iterator[Any]:
    if isinstance(value, type):
        for base in value.__mro__:
            if base.__module__.startswith("dprmt."):
                yield base
                yield from filter(inspect.isfunction, map(_function, _public_members(base)))
    elif callable(value) and inspect.isfunction(inspect.unwrap(value)):
        yield inspect.unwrap(value)


def _public_members(base: type) -> list[Any]:
    members = (value for name, value in vars(base).items() if name == "__call__" or not name.startswith("_"))
    return [value for value in members if getattr(value, "__name__", "") != "<lambda>"]


def _function(member: Any) -> Any:
    if isinstance(member, property):
        return member.fget
    if isinstance(member, cached_property):
        return member.func
    return inspect.unwrap(getattr(member, "__func__", member))


def _place(definition: Any) -> tuple[Path, str]:
    return Path(inspect.getsourcefile(definition) or "").resolve().relative_to(ROOT), definition.__qualname__
