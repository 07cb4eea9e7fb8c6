"""Progress of a run: step, loss, spent ε, gradient norm."""

from __future__ import annotations

import sys

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from dprmt.statements import round_up
from dprmt.training.harness._observer import Observer, RunView, StepRecord
from dprmt.training.private_run._clip_only import named_relation


class ProgressBar(Observer):
    """A bar on stderr where a terminal is attached, a line every tenth of the run where none is."""

    def __init__(self) -> None:
        self._console = Console(stderr=True)
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[values]}"),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            console=self._console,
            disable=not sys.stderr.isatty(),
        )
        self._advised = ""

    def start(self, run: RunView) -> None:
        self._task = self._bar.add_task("training", total=run.total, completed=run.done, values="")
        self._bar.start()
        self.note(run, "Loss and times on this terminal are private: ε does not cover them.")

    def after_step(self, run: RunView, record: StepRecord) -> None:
        shown = "none" if record.loss is None else f"{record.loss:.4f}"
        relation = named_relation(run.prepared.mechanism)
        privacy = "clip only, no privacy" if relation is None else f"ε ≤ {round_up(record.epsilon)} ({relation})"
        values = f"{privacy}  noisy gradient {record.noisy_gradient_norm:.3g}  private: loss {shown}"
        self._bar.update(self._task, completed=record.step, values=values)
        if self._bar.disable and (record.step == run.total or record.step % max(1, run.total // 10) == 0):
            self._console.print(f"step {record.step}/{run.total}  {values}", highlight=False)

        advice = record.telemetry.get("advice")
        if advice is not None and advice["rate"] != self._advised:
            self._advised = advice["rate"]
            self._console.print(f"step {record.step}: {advice['says']}", highlight=False, soft_wrap=True)

    def note(self, run: RunView, text: str) -> None:
        self._console.print(text, highlight=False)

    def end(self, run: RunView) -> None:
        self._bar.stop()
