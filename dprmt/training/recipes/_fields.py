"""Typed, range-checked fields of the recipe sections."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, field
from typing import Any

from dprmt._validation import ParameterError, check_choice, check_count, check_real, did_you_mean

Check = Callable[[str, Any], Any]


def checked(check: Check, default: Any = MISSING, **options: Any) -> Any:
    """Return a dataclass field whose value passes through ``check(name, value)``."""
    return field(default=default, metadata={"check": check}, **options)


class Section:
    """A table of a recipe: a frozen dataclass that checks its fields and names them ``section.key`` in errors."""

    section = ""

    def __post_init__(self) -> None:
        for entry in dataclasses.fields(self):  # type: ignore[arg-type]  # subclasses are dataclasses
            name = f"{self.section}.{entry.name}" if self.section else entry.name
            object.__setattr__(self, entry.name, entry.metadata["check"](name, getattr(self, entry.name)))
        self.check_together()

    def check_together(self) -> None:
        """Check what concerns several fields."""


def count(low: int = 1, high: int | None = None) -> Check:
    """Return an integer in ``[low, high]``, and in 32 bits, which torch and the accountants take."""

    def check(name: str, value: Any) -> int:
        number = check_count(name, value, low=low, high=high)
        if number >= 2**32:
            raise ParameterError(name, value, f"an integer in [{low}, {2**32 - 1}]")
        return number

    return check


def real(low: float, high: float, *, low_open: bool = False, high_open: bool = False) -> Check:
    """Return a finite number in the interval."""
    return lambda name, value: check_real(name, value, low=low, high=high, low_open=low_open, high_open=high_open)


def choice(*choices: str) -> Check:
    """Return one of the given words."""

    def check(name: str, value: Any) -> str:
        if not isinstance(value, str):
            raise ParameterError(name, value, "a string")
        return check_choice(name, value, choices)

    return check


def one_of(table: Mapping[str, object]) -> Check:
    """Check for a registered name of a table, when it is used; the table raises an error if it cannot be loaded."""

    def check(name: str, value: Any) -> str:
        if not isinstance(value, str):
            raise ParameterError(name, value, "a string")
        table[check_choice(name, value, table)]
        return value

    return check


def optional(check: Check) -> Check:
    """Allow the values of ``check``, or none."""
    return lambda name, value: None if value is None else check(name, value)


def flag(name: str, value: object) -> bool:
    """True or false."""
    if not isinstance(value, bool):
        raise ParameterError(name, value, "true or false")
    return value


def text(name: str, value: object) -> str:
    """Return a string that is not empty."""
    if not isinstance(value, str) or not value:
        raise ParameterError(name, value, "a non-empty string")
    return value


def folder_name(name: str, value: object) -> str:
    """Return a string that can name a folder, and no other than one inside the folder where it is made."""
    given = text(name, value)
    if not given.isprintable() or given in (".", "..") or any(sign in given for sign in r"\/:") or len(given) > 200:
        raise ParameterError(name, value, "a name without path: runs/NAME is where the run goes by default")
    return given


def texts(name: str, value: object) -> tuple[str, ...]:
    """Return a list of non-empty strings, all different."""
    if isinstance(value, Sequence) and not isinstance(value, str):
        strings = tuple(value)
        if all(isinstance(entry, str) and entry for entry in strings) and len(set(strings)) == len(strings):
            return strings
    raise ParameterError(name, value, "a list of different non-empty strings")


def reals(number: int, low: float, high: float) -> Check:
    """Return a list of ``number`` numbers in ``[low, high)``."""

    def check(name: str, value: object) -> tuple[float, ...]:
        if isinstance(value, str) or not isinstance(value, Sequence) or len(value) != number:
            raise ParameterError(name, value, f"a list of {number} numbers")
        return tuple(check_real(f"{name}[{i}]", v, low=low, high=high, high_open=True) for i, v in enumerate(value))

    return check


def table(name: str, value: object) -> dict[str, bool | int | float | str]:
    """Return a flat table of numbers, flags and strings."""
    allowed = "a table of numbers, flags and strings"
    if not isinstance(value, Mapping):
        raise ParameterError(name, value, allowed)
    for key, entry in value.items():
        if not isinstance(key, str) or not isinstance(entry, (bool, int, float, str)):
            raise ParameterError(f"{name}.{key}", entry, "a number, flag or string")
    return dict(value)


def subsection(kind: type[Any], short: str | None = None) -> Check:
    """Check a table that becomes a ``kind``, or a ``kind``, or the entry ``short`` alone if that is allowed."""

    def check(name: str, value: object) -> Any:
        if isinstance(value, kind):
            return value
        if short is not None and isinstance(value, str):
            return read_section(kind, {short: value})
        if not isinstance(value, Mapping):
            raise ParameterError(name, value, "a table")
        return read_section(kind, value)

    return check


def read_section(kind: type[Any], values: Mapping[str, Any]) -> Any:
    """Build a section from a table."""
    prefix = f"{kind.section}." if kind.section else ""
    entries = {entry.name: entry for entry in dataclasses.fields(kind)}
    for key in values:
        if key not in entries:
            known = f"The keys are {', '.join(entries)}{did_you_mean(key, entries)}"
            raise ParameterError(f"{prefix}{key}", values[key], f"left out: no such key. {known}")
    for key, entry in entries.items():
        if key not in values and entry.default is MISSING and entry.default_factory is MISSING:
            raise ParameterError(f"{prefix}{key}", None, "given: it has no default")
    return kind(**values)
