"""Sections of recipes: frozen dataclasses whose fields are checked by their annotations."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import MISSING
from functools import cache, partial
from types import NoneType
from typing import Annotated, Any, ClassVar, Literal, TypeAlias, get_args, get_origin, get_type_hints

from dprmt._validation import ParameterError, check_choice, check_count, check_real, did_you_mean


class Section:
    """A table of a recipe: a frozen dataclass that checks its fields and names them ``section.key`` in errors.

    ``short``: the key that a string in place of the table gives.
    """

    section: ClassVar[str] = ""
    short: ClassVar[str] = ""

    def __post_init__(self) -> None:
        kind: Any = type(self)
        for key, hint in _hints(kind).items():
            object.__setattr__(self, key, _read(self.named(key), getattr(self, key), hint))
        self.check_together()

    @classmethod
    def named(cls, key: str) -> str:
        """Return the name of a field in errors."""
        return f"{cls.section}.{key}" if cls.section else key

    def check_together(self) -> None:
        """Check what concerns several fields."""

    def refuse(self, key: str, allowed: str, fix: str = "") -> None:
        """Raise an error about a field."""
        raise ParameterError(self.named(key), getattr(self, key), allowed, fix)

    def leave_out(self, *keys: str, where: str) -> None:
        """Raise an error about a field that has another value than its default, where it would have no effect."""
        for key in keys:
            if getattr(self, key) != getattr(type(self), key, {}):
                self.refuse(key, f"left out {where}", f"remove {self.named(key)}")


@cache
def _hints(kind: type[Any]) -> dict[str, Any]:
    hints = get_type_hints(kind, include_extras=True)
    return {entry.name: hints[entry.name] for entry in dataclasses.fields(kind)}


def _read(name: str, value: Any, hint: Any) -> Any:
    options = get_args(hint)
    if get_origin(hint) is Annotated:
        return options[1](name, value)
    if get_origin(hint) is Literal:
        return _chosen(name, value, among=options)
    if NoneType in options:
        return None if value is None else _read(name, value, options[0])
    if hint is bool:
        if not isinstance(value, bool):
            raise ParameterError(name, value, "true or false")
        return value
    if type(value) is hint:
        return value
    if hint.short and isinstance(value, str):
        value = {hint.short: value}
    if not isinstance(value, Mapping):
        raise ParameterError(name, value, "a table")
    return read_section(hint, value)


def read_section(kind: type[Any], values: Mapping[str, Any]) -> Any:
    """Build a section from a table."""
    entries = {entry.name: entry for entry in dataclasses.fields(kind)}
    for key in values:
        if key not in entries:
            known = f"The keys are {', '.join(entries)}{did_you_mean(key, entries)}"
            raise ParameterError(kind.named(key), values[key], f"left out: no such key. {known}")
    for key, entry in entries.items():
        if key not in values and entry.default is MISSING and entry.default_factory is MISSING:
            raise ParameterError(kind.named(key), None, "given: it has no default")
    return kind(**values)


def _chosen(name: str, value: Any, *, among: Iterable[str]) -> str:
    return check_choice(name, _text(name, value), tuple(among))


def _text(name: str, value: object) -> str:
    if not isinstance(value, str) or not value:
        raise ParameterError(name, value, "a non-empty string")
    return value


def _folder_name(name: str, value: object) -> str:
    # No other folder than one inside of that where it is made.
    given = _text(name, value)
    if not given.isprintable() or given in (".", "..") or any(sign in given for sign in r"\/:") or len(given) > 200:
        raise ParameterError(name, value, "a name without path: runs/NAME is where the run goes by default")
    return given


def _texts(name: str, value: object) -> tuple[str, ...]:
    if isinstance(value, Sequence) and not isinstance(value, str):
        strings = tuple(value)
        if all(isinstance(entry, str) and entry for entry in strings) and len(set(strings)) == len(strings):
            return strings
    raise ParameterError(name, value, "a list of different non-empty strings")


def _betas(name: str, value: object) -> tuple[float, ...]:
    if isinstance(value, str) or not isinstance(value, Sequence) or len(value) != 2:
        raise ParameterError(name, value, "a list of 2 numbers")
    return tuple(check_real(f"{name}[{i}]", β, low=0.0, high=1.0, high_open=True) for i, β in enumerate(value))


def _table(name: str, value: object) -> dict[str, bool | int | float | str]:
    if not isinstance(value, Mapping):
        raise ParameterError(name, value, "a table of numbers, flags and strings")
    for key, entry in value.items():
        if not isinstance(key, str) or not isinstance(entry, (bool, int, float, str)):
            raise ParameterError(f"{name}.{key}", entry, "a number, flag or string")
    return dict(value)


def within(low: float, high: float, *, low_open: bool = False, high_open: bool = False) -> partial[float]:
    """Return the check of a number in an interval."""
    return partial(check_real, low=low, high=high, low_open=low_open, high_open=high_open)


def at_least(low: int) -> partial[int]:
    """Return the check of an integer."""
    return partial(check_count, low=low, high=2**32 - 1)  # what torch and the accountants take


def one_of(table: Iterable[str]) -> partial[str]:
    """Return the check of a name in a table that may grow."""
    return partial(_chosen, among=table)


Count: TypeAlias = Annotated[int, at_least(1)]
Positive: TypeAlias = Annotated[float, partial(check_real, low=0.0, low_open=True)]
NotNegative: TypeAlias = Annotated[float, partial(check_real, low=0.0)]
Text: TypeAlias = Annotated[str, _text]
FolderName: TypeAlias = Annotated[str, _folder_name]
Texts: TypeAlias = Annotated[tuple[str, ...], _texts]
Betas: TypeAlias = Annotated[tuple[float, float], _betas]
Table: TypeAlias = Annotated[dict[str, bool | int | float | str], _table]
