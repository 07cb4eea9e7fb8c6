"""Long measurements of an item in pieces that are kept one by one: whoever stops a run goes on where it was."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from dprmt._files import append_line, read_lines


def cpu_seconds() -> float:
    """Processor time of this process and of the finished ones that it started."""
    return sum(os.times()[:4])


class Pieces:
    """Values by name in ``raw/<item>-<scale>.jsonl`` beside the results; each is measured once.

    A value is what JSON holds. ``python -m paper_figures run ITEM --again`` throws the pieces away first.
    """

    def __init__(self, folder: Path, item: str, scale: str) -> None:
        self._file = raw_file(folder, item, scale)
        self._known = {line["name"]: line for line in read_lines(self._file)} if self._file.exists() else {}
        self.earlier_seconds = sum(line.get("cpu_seconds", 0.0) for line in self._known.values())
        """Processor time of the pieces that earlier calls measured, as far as it was recorded."""

    def measure(self, tasks: Mapping[str, Callable[[], Any]]) -> dict[str, Any]:
        """The value of every task, in order; those that are not known yet are measured, under a progress bar."""
        from rich.console import Console
        from rich.progress import track

        due = [name for name in tasks if name not in self._known]
        for name in track(due, self._file.stem, console=Console(stderr=True), transient=True):
            self._keep(name, tasks[name])
        return {name: self._known[name]["value"] for name in tasks}

    def _keep(self, name: str, task: Callable[[], Any]) -> None:
        before = cpu_seconds()
        value = task()
        line = {"name": name, "cpu_seconds": round(cpu_seconds() - before, 2), "value": _rounded(value)}
        self._file.parent.mkdir(parents=True, exist_ok=True)
        append_line(self._file, line)
        self._known[name] = line


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
