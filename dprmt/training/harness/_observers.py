"""The observers of a run in a folder: metrics, spectra, moved parameters, signals."""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import torch

from dprmt._files import append_line
from dprmt.training.harness._clip_only import no_privacy
from dprmt.training.harness._guard import check_parameters_moved, snapshot
from dprmt.training.harness._interrupts import Interrupts
from dprmt.training.harness._observer import Observer, RunView, StepRecord
from dprmt.training.harness._run_folder import METRICS, SPECTRA, save_spectra

_MOVED_AFTER = 10  # steps after which a parameter that has not moved stops the run


class MetricsFile(Observer):
    """``metrics.jsonl``: a line per step."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / METRICS
        self._always: dict[str, Any] = {}

    def start(self, run: RunView) -> None:
        self._always = no_privacy(run.prepared.mechanism)

    def after_step(self, run: RunView, record: StepRecord) -> None:
        append_line(self._path, record.entry() | self._always)


class SpectraFile(Observer):
    """``spectra.npz``: what :class:`ReleasedGradients` keeps, as old as the checkpoint."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / SPECTRA

    def start(self, run: RunView) -> None:
        if not self._path.exists():
            return
        try:
            with self._path.open("rb") as file, np.load(file) as spectra:
                kept = dict(spectra)
        except (OSError, ValueError, EOFError, zipfile.BadZipFile):
            # Pictures of earlier steps are no reason not to go on.
            self._path.replace(self._path.with_stem(f"{self._path.stem}.damaged"))
            return
        run.released.restore(kept, run.done)

    def before_checkpoint(self, run: RunView) -> None:
        if run.released.changed:
            save_spectra(self._path, run.released.spectra())
            run.released.changed = False


class MovedParameters(Observer):
    """Raises if a trainable parameter is after ten steps where it was before the run's first start."""

    def __init__(self, model: torch.nn.Module) -> None:
        self._before = snapshot(model)  # before a checkpoint is restored

    def check(self, run: RunView) -> None:
        """Raise unless every parameter has moved."""
        check_parameters_moved(run.prepared.model, self._before)

    def after_step(self, run: RunView, record: StepRecord) -> None:
        if record.step == min(_MOVED_AFTER, run.total):
            self.check(run)


class StopOnSignal(Observer):
    """The first SIGINT or SIGTERM ends the run between two steps."""

    def __init__(self) -> None:
        self._interrupts = Interrupts()

    def start(self, run: RunView) -> None:
        self._interrupts.__enter__()

    def before_step(self, run: RunView, step: int) -> None:
        if self._interrupts.asked:
            run.stop()

    def end(self, run: RunView) -> None:
        self._interrupts.__exit__()
