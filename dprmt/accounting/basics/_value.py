"""Base of the values that describe a run: checked once, never changed, printed as one would type them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, fields
from typing import Any, ClassVar

from dprmt._validation import ParameterError, check_choice
from dprmt.accounting.basics._bounds import value_html


class Value:
    """A frozen dataclass that prints without its defaults and converts its fields to JSON values."""

    kind: ClassVar[str]
    """Name of the value in files and on the command line."""

    def __repr__(self) -> str:
        parts = []
        for field in fields(self):  # type: ignore[arg-type]  # every value is a dataclass
            value = getattr(self, field.name)
            if field.default is MISSING and not field.kw_only:
                parts.append(repr(value))
            elif field.default is MISSING or value != field.default:
                parts.append(f"{field.name}={value!r}")
        return f"{type(self).__name__}({', '.join(parts)})"

    def _repr_html_(self) -> str:
        return value_html(self)

    def as_dict(self) -> dict[str, Any]:
        """Convert the value to JSON values, defaults included.

        Returns
        -------
        dict
            A dict with ``kind`` and the value's fields by name.
        """
        parts = {field.name: getattr(self, field.name) for field in fields(self)}  # type: ignore[arg-type]
        plain = {name: part.as_dict() if isinstance(part, Value) else part for name, part in parts.items()}
        return {"kind": self.kind, **plain}

    def _keep(self, **checked: Any) -> None:
        """Store the checked values, plain Python numbers, instead of the arguments."""
        for name, value in checked.items():
            object.__setattr__(self, name, value)


def value_from_dict(what: str, kinds: tuple[Any, ...], record: Mapping[str, Any]) -> Any:
    """Return the value that :meth:`Value.as_dict` described; ``what`` names the kinds in errors."""
    if not isinstance(record, Mapping):
        raise ParameterError(what, record, "a mapping with its kind and fields")
    stated = dict(record)
    words = tuple(value.kind for value in kinds)
    chosen = kinds[words.index(check_choice(f"{what}.kind", stated.pop("kind", ""), words))]
    is_needed = {field.name: field.default is MISSING for field in fields(chosen)}
    for name in stated:
        if name not in is_needed:
            raise ParameterError(f"{what}.{name}", stated[name], f"left out if {what} is {chosen.kind!r}")
    for name, needed in is_needed.items():
        if needed and name not in stated:
            raise ParameterError(f"{what}.{name}", None, f"given if {what} is {chosen.kind!r}")
    return chosen(**stated)
