"""Subpackages and names that are imported when they are first used: ``import dprmt; dprmt.accounting``."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from importlib import import_module
from types import ModuleType
from typing import Any


def on_demand(package: str, names: Iterable[str], **homes: str) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return ``__getattr__`` and ``__dir__`` of a package that imports none of these subpackages itself.

    ``homes``: for each public name of the package, the subpackage that defines it.

    Examples
    --------
    >>> get, listed = on_demand("email", ["message"])
    >>> get("message").__name__, listed()
    ('email.message', ['message'])
    >>> get("massage")
    Traceback (most recent call last):
    ...
    AttributeError: module 'email' has no attribute 'massage'
    """
    listed = sorted({*names, *homes})

    def get(name: str) -> Any:
        if name in homes:
            return getattr(import_module(f"{package}.{homes[name]}"), name)
        if name not in listed:
            raise AttributeError(f"module {package!r} has no attribute {name!r}", name=name)
        return import_module(f"{package}.{name}")

    return get, listed.copy


def public_names(namespace: dict[str, Any]) -> list[str]:
    """List what a subpackage's ``__init__`` imports under its own name, for its ``__all__``.

    Examples
    --------
    >>> public_names({"compose": 1, "_compose": 2, "dprmt": import_module("dprmt")})
    ['compose']
    """
    return sorted(name for name, value in namespace.items() if name[0] != "_" and not isinstance(value, ModuleType))
