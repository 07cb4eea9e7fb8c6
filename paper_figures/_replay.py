"""Measure a few stored pieces of an item again, with the package as it is, and hold them against what is stored.

`stale` sees an item's own code alone; this sees whatever changes a number.
"""

from __future__ import annotations

import math
import random
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dprmt._files import append_line, read_lines
from paper_figures._pieces import UsageError, raw_file
from paper_figures._reproduction import Item, Scale


@dataclass(frozen=True)
class Replayed:
    """One piece, and the largest relative difference of a number in it; infinite where its form is another."""

    name: str
    apart: float


def replay(item: Item, scale: Scale, folder: Path, count: int, seed: int = 0) -> list[Replayed]:
    """Measure ``count`` stored pieces anew, drawn by ``seed``; nothing in ``folder`` changes.

    Raises
    ------
    UsageError
        If the item has no pieces at this scale.
    """
    stored = {line["name"]: line for line in read_lines(raw_file(folder, item.name, scale)) if "value" in line}
    if not stored:
        raise UsageError(f"{item.name} has no stored pieces at {scale} scale")
    drawn = random.Random(seed).sample(sorted(stored), min(count, len(stored)))
    with tempfile.TemporaryDirectory() as place:
        copy = Path(place)
        shutil.copytree(folder / "raw", copy / "raw", ignore=shutil.ignore_patterns("runs"))
        file = raw_file(copy, item.name, scale)
        file.unlink()
        for name, line in stored.items():
            if name not in drawn:
                append_line(file, line)
        item.measure(scale, copy)
        again = {line["name"]: line["value"] for line in read_lines(file) if "value" in line}
    return [Replayed(name, max(_apart(stored[name]["value"], again.get(name)), default=0.0)) for name in drawn]


def _apart(one: Any, other: Any) -> Iterator[float]:
    if _is_number(one) and _is_number(other):
        same = one == other or (math.isnan(one) and math.isnan(other))
        yield 0.0 if same else abs(one - other) / max(abs(one), abs(other))
    elif isinstance(one, dict) and isinstance(other, dict) and one.keys() == other.keys():
        for key in one.keys() - {"seconds"}:  # readings of a clock
            yield from _apart(one[key], other[key])
    elif isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        for pair in zip(one, other, strict=True):
            yield from _apart(*pair)
    else:
        yield 0.0 if one == other else math.inf


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
