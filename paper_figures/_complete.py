"""What one complete run took, item by item: added up from a folder of results, and kept for the page."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dprmt._files import strict_json, write_whole
from paper_figures._reproduction import RESULTS, load
from paper_figures.items import ITEMS

FILE = RESULTS / "raw" / "complete-run.json"


@dataclass(frozen=True)
class Took:
    """One item in the complete run."""

    scale: str
    wall_seconds: float
    cpu_seconds: float


def add_up(folder: Path) -> dict[str, Took]:
    """Of the items that the folder has a measured result of."""
    stored = {name: load(name, folder) for name in ITEMS}
    return {
        name: Took(result.scale, result.wall_seconds, result.cpu_seconds)
        for name, result in stored.items()
        if result is not None and not result.found.missing
    }


def keep(took: dict[str, Took]) -> None:
    """For the page."""
    write_whole(FILE, strict_json({name: vars(item) for name, item in took.items()}, indent=1) + "\n")


def kept() -> dict[str, Took]:
    """Nothing if no complete run was added up yet."""
    content: dict[str, Any] = json.loads(FILE.read_text(encoding="utf-8")) if FILE.exists() else {}
    return {name: Took(**item) for name, item in content.items()}


def sentence(took: dict[str, Took]) -> str:
    """How many items, and how long; by the clock it is that where nothing else runs, on one thread."""
    processor = sum(item.cpu_seconds for item in took.values()) / 60
    return f"{len(took)} of {len(ITEMS)} items, {processor:.0f} minutes of processor time"
