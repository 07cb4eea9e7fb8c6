"""What a script found for one published figure or table, how it is stored, and what it amounts to."""

from __future__ import annotations

import json
import math
import platform
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any, Literal

from dprmt._files import append_line, read_lines, strict_json, write_whole
from paper_figures._pieces import cpu_seconds, raw_file
from paper_figures._published import Cell
from paper_figures._sources import changed, digests, place_of
from paper_figures._verdict import WORST, Interval, Reason, Verdict, judge

Scale = Literal["small", "long", "paper"]
"""Minutes on one core; the same with all of its steps and seeds, hours; what the paper has."""
RESULTS = Path(__file__).with_name("results")
_ANYTHING = Interval(-math.inf, math.inf)
PACKAGES = ("numpy", "scipy", "torch", "transformers", "peft", "opacus")


@dataclass(frozen=True)
class Row:
    """One number of ours, beside the published one if there is one.

    A verdict needs an ``interval`` of ours, and what it is held against: the published number give or take ``margin``,
    in the row's unit, or ``within``, the range in which a statement, ``claim``, is true. Margin and range are part of
    the item, not chosen afterwards.
    """

    label: str
    ours: float
    published: float | None = None
    unit: str = ""
    claim: str = ""
    interval: tuple[float, float] | None = None
    margin: float | None = None
    within: tuple[float, float] | None = None
    cells: tuple[str, ...] = ()
    """Keys of the printed numbers that the verdict is about."""

    def __post_init__(self) -> None:
        if isinstance(self.published, Cell):
            object.__setattr__(self, "cells", self.cells or (self.published.key,))
            object.__setattr__(self, "published", float(self.published))
        object.__setattr__(self, "cells", tuple(self.cells))
        for name in ("interval", "within"):
            ends = getattr(self, name)
            if ends is not None:  # a file has no infinite numbers
                low, high = ends
                ends = (-math.inf if low is None else float(low), math.inf if high is None else float(high))
                object.__setattr__(self, name, ends)

    @property
    def theirs(self) -> Interval | None:
        """Where ours has to lie."""
        if self.within is not None:
            return Interval(*self.within)
        if self.published is None or self.margin is None:
            return None
        return Interval(self.published - self.margin, self.published + self.margin)

    def verdict(self) -> Verdict | None:
        """None where nothing is compared.

        Raises
        ------
        ValueError
            If the comparison could not fail, or is of another number than the row shows.
        """
        if self.margin is not None and self.published is None:
            raise ValueError(f"{self.label}: a margin is around a printed number, and there is none")
        if self.theirs is None:
            return None
        if self.interval is None:
            raise ValueError(f"{self.label}: a verdict needs an interval of ours")
        ours = Interval(*self.interval)
        if not (math.isnan(self.ours) or ours.low <= self.ours <= ours.high):
            raise ValueError(f"{self.label}: {self.ours} lies outside of its own interval {self.interval}")
        if self.within is not None and not self.claim:
            raise ValueError(f"{self.label}: a range without the claim that it is of")
        if self.theirs == _ANYTHING:
            raise ValueError(f"{self.label}: nothing could lie outside of {self.theirs}")
        return judge(ours, self.theirs)


@dataclass(frozen=True)
class Found:
    """What one run of an item gives."""

    rows: Sequence[Row]
    differs: str
    """One sentence: what is not as in the paper."""
    reasons: Sequence[Reason] = ()
    """Why rows differ; needed where one does."""
    model: str = ""
    data: str = ""
    seeds: int = 1
    pictures: Sequence[str] = ()
    """File names beside the result."""
    missing: str = ""
    """What was needed and not there, if nothing could be measured."""
    earlier_seconds: float = 0.0
    """Processor time of the pieces that earlier calls had measured."""
    stopped: str = ""
    """What stopped it before all of it was measured; it is stored nevertheless, and the same command goes on."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "rows", tuple(self.rows))
        object.__setattr__(self, "pictures", tuple(self.pictures))
        object.__setattr__(self, "reasons", tuple(self.reasons))


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
    pieces_of: Item | None = None
    """The item whose pieces it reads, if they are not its own."""

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
    code: dict[str, str] = field(default_factory=dict)
    """Digests of the item's code, see `paper_figures._sources`; empty in results that are older than they."""
    replayed: str = ""
    """How many pieces later code measured again with the same numbers, if ``code`` is that code."""

    @property
    def disagrees(self) -> bool:
        """Whether a row does."""
        return any(row.verdict() == "differs" for row in self.found.rows)

    def state(self) -> str:
        """In words, from the numbers alone."""
        if self.found.missing:
            return f"not run, needs {self.found.missing}"
        found = Counter(verdict for row in self.found.rows if (verdict := row.verdict()) is not None)
        if self.form_only and not found:
            return "form only"
        agreement = "shown" if not found else f"differs in {found['differs']} of {found.total()}"
        if found and not found["differs"]:
            wide = found["compatible, wide"]
            agreement = "reproduced" if not wide else f"compatible, wide in {wide} of {found.total()}"
        where = "" if self.scale == "paper" else f" at {self.scale} scale"
        return f"{agreement}{where}" + (", other model or data" if self.form_only else "")


def run(item: Item, scale: Scale, folder: Path = RESULTS) -> Stored:
    """Measure and store; an interrupted run leaves the earlier result as it was, unless a part of the item is whole.

    Raises
    ------
    KeyboardInterrupt
        After such a part was stored.
    """
    folder.mkdir(parents=True, exist_ok=True)
    wall, cpu = time.perf_counter(), cpu_seconds()
    code, pieces = _code(item, scale, folder), raw_file(folder, item.name, scale)
    begins = not pieces.exists()
    try:
        found = item.measure(scale, folder)
    finally:
        if begins and pieces.exists():
            append_line(pieces, {"name": "code", "code": code})
    stored = Stored(
        item.name,
        scale,
        item.form_only,
        found,
        f"python -m paper_figures run {item.name} --scale {scale}",
        round(time.perf_counter() - wall, 1),
        round(cpu_seconds() - cpu + found.earlier_seconds, 1),
        _versions(),
        code,
    )
    save(stored, folder)
    if found.stopped:
        raise KeyboardInterrupt(f"{found.stopped}; what is whole is stored")
    return stored


def _code(item: Item, scale: Scale, folder: Path) -> dict[str, str]:
    """The code that measured the pieces, as far as it is recorded; the present one where there are none."""
    before, owner, pieces = load(item.name, folder), item.pieces_of, raw_file(folder, item.name, scale)
    present = digests(place_of(item.measure))
    if owner is None and pieces.exists():
        recorded = [line["code"] for line in read_lines(pieces) if "code" in line]
        return recorded[-1] if recorded else before.code if before else present
    source = load(owner.name, folder) if owner else None
    is_old = owner is not None and source is not None and changed(source.code, place_of(owner.measure))
    return before.code if before and is_old else present


def save(stored: Stored, folder: Path = RESULTS) -> None:
    content = asdict(stored)
    content["found"]["rows"] = [said(row) for row in stored.found.rows]
    write_whole(folder / f"{stored.item}.json", strict_json(content, indent=1) + "\n")


def said(row: Row) -> dict[str, Any]:
    """The fields of a row that say something."""
    empty = Row("", math.nan)
    return {name: value for name, value in asdict(row).items() if value != getattr(empty, name)}


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
    reasons = [Reason(**reason) for reason in found.pop("reasons", ())]
    return Stored(found=Found(rows, reasons=reasons, **found), **content)


def table_of(rows: Sequence[Row]) -> list[str]:
    """One line a row: ours with its interval, theirs with its margin, and the verdict."""
    lines = ["| quantity | ours | interval | published | margin | verdict |", "|---|---|---|---|---|---|"]
    for row in rows:
        verdict = row.verdict()
        unit = f" {row.unit}" if row.unit else ""
        ours = "none" if math.isnan(row.ours) else f"{row.ours:.4g}{unit}"
        printed = row.claim or ("–" if row.published is None else f"{row.published:.6g}")
        cells = (
            row.label.replace("|", "∣"),
            ours,
            _interval(row),
            printed,
            "–" if row.margin is None else f"{row.margin:.3g}",
            "–" if verdict is None else "**differs**" if verdict == "differs" else verdict,
        )
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def _interval(row: Row) -> str:
    if row.interval is None:
        return "–"
    low, high = row.interval
    if low == high:
        return "exact"
    return f"{_end(low)} … {_end(high)}"


def _end(value: float) -> str:
    return f"{value:.4g}" if math.isfinite(value) else ("-∞" if value < 0 else "∞")


def verdict_counts(rows: Sequence[Row]) -> str:
    """In words, best first."""
    counted = Counter(row.verdict() for row in rows)
    found = [f"{counted[verdict]} {verdict}" for verdict in reversed(WORST) if counted[verdict]]
    return "; ".join(found) or "shown"


def _versions() -> dict[str, str]:
    found = {"python": platform.python_version()}
    for package in ("dprmt", *PACKAGES):
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return found
