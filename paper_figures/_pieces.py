"""Long measurements of an item in pieces that are kept one by one: a run that is stopped goes on where it was."""

from __future__ import annotations

import math
import os
import re
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from dprmt._files import append_line, read_lines


def cpu_seconds() -> float:
    """Processor time of this process and of the finished ones that it started."""
    return sum(os.times()[:4])


class UsageError(ValueError):
    """A command that names what is not there."""


class Pieces:
    """Values by name in ``raw/<item>-<scale>.jsonl`` beside the results; each is measured once.

    A value is what JSON holds. ``python -m paper_figures run ITEM --again`` throws the pieces away first. A piece that
    takes an hour keeps what it has in :meth:`folder`, which is gone once the value is known.
    """

    def __init__(self, folder: Path, item: str, scale: str) -> None:
        self._file, self._folders = raw_file(folder, item, scale), _folders(folder, item, scale)
        lines = read_lines(self._file) if self._file.exists() else []
        self._known = {line["name"]: line for line in lines if "value" in line}
        self.earlier_seconds = sum(line.get("cpu_seconds", 0.0) for line in lines)
        """Processor time of the pieces that earlier calls measured, as far as it was recorded."""

    def folder(self, name: str) -> Path:
        """Where a piece that is measured step by step may keep what it has; made by its user."""
        return self._folders / re.sub(r"[^a-z0-9.]+", "-", name.lower())

    def seconds(self, beginning: str) -> float:
        """Processor time of the pieces whose names begin so, of earlier calls and of this one."""
        lines = read_lines(self._file) if self._file.exists() else []
        return sum(line.get("cpu_seconds", 0.0) for line in lines if line["name"].startswith(beginning))

    def known(self) -> dict[str, Any]:
        """The values that were measured, by name."""
        return {name: line["value"] for name, line in self._known.items()}

    def measure(self, tasks: Mapping[str, Callable[[], Any]]) -> dict[str, Any]:
        """The value of every task, in order; those that are not known yet are measured, under a progress bar."""
        from rich.console import Console
        from rich.progress import track

        due = [name for name in tasks if name not in self._known]
        for name in track(due, self._file.stem, console=Console(stderr=True), transient=True):
            self._keep(name, tasks[name])
        return {name: self._known[name]["value"] for name in tasks}

    def _keep(self, name: str, task: Callable[[], Any]) -> None:
        before, value = cpu_seconds(), {}
        try:
            value = {"value": _rounded(task())}
        finally:  # the time of what was begun, and goes on another time, counts
            if value or self.folder(name).exists():
                self._file.parent.mkdir(parents=True, exist_ok=True)
                line = {"name": name, "cpu_seconds": round(cpu_seconds() - before, 2)} | value
                append_line(self._file, line)
        self._known[name] = line
        shutil.rmtree(self.folder(name), ignore_errors=True)


def _rounded(value: Any) -> Any:
    # Seven digits are more than any row shows.
    if isinstance(value, float) and math.isfinite(value):
        return float(f"{value:.7g}")
    if isinstance(value, dict):
        return {name: _rounded(entry) for name, entry in value.items()}
    return [_rounded(entry) for entry in value] if isinstance(value, list | tuple) else value


def raw_file(folder: Path, item: str, scale: str) -> Path:
    """Where the pieces lie."""
    return folder / "raw" / f"{item}-{scale}.jsonl"


def _folders(folder: Path, item: str, scale: str) -> Path:
    return folder / "raw" / "runs" / f"{item}-{scale}"


def forget(folder: Path, item: str, scale: str) -> None:
    """Throw the pieces away, and what was begun."""
    raw_file(folder, item, scale).unlink(missing_ok=True)
    shutil.rmtree(_folders(folder, item, scale), ignore_errors=True)
