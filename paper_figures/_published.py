"""What the papers print: ``published.toml``, read once."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

FILE = Path(__file__).with_name("published.toml")


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

    def number(self, column: str, /, **labels: Any) -> float:
        """The one number in the column of the row that has these labels."""
        found = [row for row in self.rows if all(row.get(name) == label for name, label in labels.items())]
        if len(found) != 1 or column not in found[0]:
            raise KeyError(f"{self.name}: {column!r} of {labels} is in {len(found)} rows of {FILE.name}")
        return float(found[0][column])


def published(name: str) -> Published:
    """The entry of this name."""
    return _all()[name]


def names() -> list[str]:
    """All entries, in the order of the file."""
    return list(_all())


@cache
def _all() -> dict[str, Published]:
    content = tomllib.loads(FILE.read_text(encoding="utf-8"))
    titles = {key: f"{document['title']} ({document['version']})" for key, document in content["documents"].items()}
    return {
        name: Published(
            name,
            titles[item["document"]],
            item["place"],
            item.get("note", ""),
            item.get("setting", {}),
            tuple(item.get("rows", ())),
        )
        for name, item in content["items"].items()
    }
