"""What a script found for one published figure or table, how it is stored, and what it amounts to."""

from __future__ import annotations

import json
import math
import platform
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any, Literal

from dprmt._files import strict_json, write_whole
from paper_figures._pieces import cpu_seconds

Scale = Literal["small", "long", "paper"]
"""Minutes on one core; the same with all of its steps and seeds, hours; what the paper has."""
RESULTS = Path(__file__).with_name("results")
PACKAGES = ("numpy", "scipy", "torch", "transformers", "peft", "opacus")


@dataclass(frozen=True)
class Row:
    """One number of ours, beside the published one if there is one.

    ``tolerance`` is how far apart the two may be, in the row's unit, for them to agree; it is part of the item, not
    chosen afterwards. A row that tests a statement instead of a number has ``claim`` and ``holds``.
    """

    label: str
    ours: float
    published: float | None = None
    tolerance: float | None = None
    unit: str = ""
    claim: str = ""
    holds: bool | None = None

    def agrees(self) -> bool | None:
        """None where nothing is compared."""
        if self.claim:
            return self.holds
        if self.published is None or self.tolerance is None:
            return None
        return math.isfinite(self.ours) and abs(self.ours - self.published) <= self.tolerance


@dataclass(frozen=True)
class Found:
    """What one run of an item gives."""

    rows: Sequence[Row]
    differs: str
    """One sentence: what is not as in the paper."""
    why: str = ""
    """One sentence: why a row does not agree; needed where one does not."""
    model: str = ""
    data: str = ""
    seeds: int = 1
    pictures: Sequence[str] = ()
    """File names beside the result."""
    missing: str = ""
    """What was needed and not there, if nothing could be measured."""
    earlier_seconds: float = 0.0
    """Processor time of the pieces that earlier calls had measured."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "rows", tuple(self.rows))
        object.__setattr__(self, "pictures", tuple(self.pictures))


@dataclass(frozen=True)
class Item:
    """A published figure or table that this repository can make again."""

    name: str
    """Its entry in ``published.toml``, or a name of its own for what only this package has."""
    title: str
    measure: Callable[[Scale, Path], Found]
    """Gets the scale and the folder for pictures."""
    scales: tuple[Scale, ...] = ("small",)
    form_only: bool = False
    """Whether model and data are others than the paper's, so that its numbers are no yardstick."""

    @property
    def default_scale(self) -> Scale:
        """Paper scale only where that is all there is: others need weights, data or days."""
        return "small" if "small" in self.scales else "paper"


@dataclass(frozen=True)
class Stored:
    """A result as it lies on disk."""

    item: str
    scale: Scale
    form_only: bool
    found: Found
    command: str
    wall_seconds: float
    cpu_seconds: float
    versions: dict[str, str] = field(default_factory=dict)

    @property
    def disagrees(self) -> bool:
        """Whether a row does."""
        return any(row.agrees() is False for row in self.found.rows)

    def state(self) -> str:
        """In words, from the numbers alone."""
        if self.found.missing:
            return f"not run, needs {self.found.missing}"
        verdicts = [verdict for verdict in (row.agrees() for row in self.found.rows) if verdict is not None]
        if self.form_only and not verdicts:
            return "form only"
        agreement = "reproduced" if all(verdicts) else f"differs in {verdicts.count(False)} of {len(verdicts)}"
        if not verdicts:
            agreement = "shown"
        where = "" if self.scale == "paper" else " at small scale"
        return f"{agreement}{where}" + (", other model or data" if self.form_only else "")


def run(item: Item, scale: Scale, folder: Path = RESULTS) -> Stored:
    """Measure and store; an interrupted run leaves the earlier result as it was."""
    folder.mkdir(parents=True, exist_ok=True)
    wall, cpu = time.perf_counter(), cpu_seconds()
    found = item.measure(scale, folder)
    stored = Stored(
        item.name,
        scale,
        item.form_only,
        found,
        f"python -m paper_figures run {item.name} --scale {scale}",
        round(time.perf_counter() - wall, 1),
        round(cpu_seconds() - cpu + found.earlier_seconds, 1),
        _versions(),
    )
    save(stored, folder)
    return stored


def save(stored: Stored, folder: Path = RESULTS) -> None:
    write_whole(folder / f"{stored.item}.json", strict_json(asdict(stored), indent=1) + "\n")


def load(name: str, folder: Path = RESULTS) -> Stored | None:
    """The stored result, or None if there is none of this kind."""
    path = folder / f"{name}.json"
    if not path.exists():
        return None
    content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    if "found" not in content:  # the raw runs of a study have files of their own form
        return None
    found = content.pop("found")
    rows = [Row(**row | {"ours": math.nan if row["ours"] is None else row["ours"]}) for row in found.pop("rows")]
    return Stored(found=Found(rows, **found), **content)


def _versions() -> dict[str, str]:
    found = {"python": platform.python_version()}
    for package in ("dprmt", *PACKAGES):
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return found
