"""The progress bar of a run: step, loss, ε spent, gradient norm."""

from __future__ import annotations

import math
import sys

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn


class RunProgress:
    """A bar on stderr where a terminal is attached, a line every tenth of the run where none is."""

    def __init__(self, steps: int, done: int, show: bool) -> None:
        self._steps, self._show = steps, show
        self._console = Console(stderr=True)
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[values]}"),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            console=self._console,
            disable=not (show and sys.stderr.isatty()),
        )
        self._task = self._bar.add_task("training", total=steps, completed=done, values="")

    def __enter__(self) -> RunProgress:
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def update(self, step: int, loss: float | None, epsilon: float, norm: float) -> None:
        """Show a finished step."""
        shown = "none" if loss is None else f"{loss:.4f}"
        privacy = "clip only, no privacy" if math.isinf(epsilon) else f"ε ≤ {epsilon:.4f}"
        values = f"{privacy}  noisy gradient {norm:.3g}  private: loss {shown}"
        self._bar.update(self._task, completed=step, values=values)
        if self._show and self._bar.disable and (step == self._steps or step % max(1, self._steps // 10) == 0):
            self._console.print(f"step {step}/{self._steps}  {values}", highlight=False)

    def note(self, text: str) -> None:
        """Say something above the bar."""
        if self._show:
            self._console.print(text, highlight=False)
