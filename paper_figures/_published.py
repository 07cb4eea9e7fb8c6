"""What the papers print: ``published.toml``, read once, and every numeric cell of it by a key of its own."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

FILE = Path(__file__).with_name("published.toml")
LABELS = frozenset({"step", "epsilon", "kappa", "shape", "rank", "probes"})
"""Columns of numbers that say of what a row is, and are no results."""


class Cell(float):
    """A printed number that knows where it stands: its ``key`` is ``item.row.column``, or ``item.setting.name``."""

    key: str

    def __new__(cls, value: float, key: str) -> Cell:
        """A float with a key; what is computed with it has none."""
        cell = super().__new__(cls, value)
        cell.key = key
        return cell

    def __reduce__(self) -> tuple[Any, ...]:
        """Copies keep the key."""
        return Cell, (float(self), self.key)


@dataclass(frozen=True)
class Published:
    """One figure or table: where it stands, in which setting, and its numbers."""

    name: str
    document: str
    """Title and version."""
    place: str
    note: str = ""
    setting: Mapping[str, Any] = field(default_factory=dict)
    rows: tuple[Mapping[str, Any], ...] = ()
    absent: Mapping[str, str] = field(default_factory=dict)
    """Why numbers that nothing is compared with cannot be computed here: by column, ``all`` for the others."""
    short: str = ""
    """The document's key."""

    def number(self, column: str, /, **labels: Any) -> Cell:
        """The one number in the column of the row that has these labels."""
        found = [
            at for at, row in enumerate(self.rows) if all(row.get(name) == label for name, label in labels.items())
        ]
        if len(found) != 1 or column not in self.rows[found[0]]:
            raise KeyError(f"{self.name}: {column!r} of {labels} is in {len(found)} rows of {FILE.name}")
        return Cell(self.rows[found[0]][column], f"{self.name}.{found[0]}.{column}")

    def settings(self) -> Iterator[Cell]:
        """Numbers of the setting, and labels of rows: a shape is two."""
        for name, value in self.setting.items():
            yield from _numbers(value, f"{self.name}.setting.{name}")
        for at, row in enumerate(self.rows):
            for name in LABELS & row.keys():
                yield from _numbers(row[name], f"{self.name}.{at}.{name}")

    def results(self) -> Iterator[Cell]:
        """All other numbers."""
        for at, row in enumerate(self.rows):
            for name in row.keys() - LABELS:
                yield from _numbers(row[name], f"{self.name}.{at}.{name}")

    def why_absent(self, key: str) -> str:
        """The reason that the file gives, "" where it gives none."""
        return self.absent.get(key.rsplit(".", 1)[1], self.absent.get("all", ""))


def _numbers(value: Any, key: str) -> Iterator[Cell]:
    if isinstance(value, list):
        for at, entry in enumerate(value):
            yield from _numbers(entry, f"{key}[{at}]")
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield Cell(value, key)


def published(name: str) -> Published:
    """The entry of this name."""
    return _all()[name]


def names() -> list[str]:
    """All entries, in the order of the file."""
    return list(_all())


def documents() -> dict[str, str]:
    """Titles and versions by key."""
    return {key: f"{document['title']} ({document['version']})" for key, document in _content()["documents"].items()}


@cache
def _content() -> dict[str, Any]:
    return tomllib.loads(FILE.read_text(encoding="utf-8"))


@cache
def _all() -> dict[str, Published]:
    titles = documents()
    return {
        name: Published(
            name,
            titles[item["document"]],
            item["place"],
            item.get("note", ""),
            item.get("setting", {}),
            tuple(item.get("rows", ())),
            item.get("absent", {}),
            item["document"],
        )
        for name, item in _content()["items"].items()
    }
