"""Observers of a training run, and the files that they write."""

from __future__ import annotations

import zipfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from dprmt._files import append_line
from dprmt.training.harness._prepare import Prepared
from dprmt.training.harness._released import ReleasedGradients
from dprmt.training.harness._run_folder import METRICS, SPECTRA, save_spectra
from dprmt.training.private_run._clip_only import said_of_every_step


class RunView(Protocol):
    """Part of a `Run` that observers can read."""

    @property
    def prepared(self) -> Prepared:
        """Model, task, settings and private step."""

    @property
    def released(self) -> ReleasedGradients:
        """What is seen of the noisy gradients."""

    @property
    def done(self) -> int:
        """Steps that the parameters have seen."""

    @property
    def total(self) -> int:
        """Steps of the whole run."""

    @property
    def charged(self) -> int:
        """Steps charged over all starts."""

    def epsilon_after(self, steps: int) -> float:
        """Return an upper bound of ε for a number of steps."""

    def stop(self) -> None:
        """End the run before the next step is charged."""


@dataclass(frozen=True)
class StepRecord:
    """Record of one step.

    Attributes
    ----------
    step : int
        Number of the step, from 1.
    attempt : int
        Number of the start of the run.
    epsilon : float
        Upper bound of ε after the step, for all recorded steps; NaN if the run does not compute it.
    learning_rate : float
        Learning rate of the step.
    noisy_gradient_norm : float
        Over all trainable parameters, before denoising.
    denoising : dict
        Number of replaced matrices, and of all; empty without a denoiser.
    seconds : float
        Duration, which grows with the drawn batch. **Private.**
    loss : float or None
        Mean over the batch; None if Poisson sampling drew no sample. **Private.**
    batch_size : int
        Size of the drawn batch. **Private.**
    evaluation : dict or None
        Scores after the step, if they were computed.
    private_evaluation : dict or None
        The same scores if ``evaluation.private_noise`` is given. **Private.**
    telemetry : dict
        Reading of `dprmt.training.telemetry.Telemetry.last`; empty without telemetry.
    """

    step: int
    attempt: int
    epsilon: float
    learning_rate: float
    noisy_gradient_norm: float
    denoising: dict[str, Any]
    seconds: float
    loss: float | None
    batch_size: int
    evaluation: dict[str, Any] | None = None
    private_evaluation: dict[str, Any] | None = None
    telemetry: dict[str, Any] = field(default_factory=dict)

    def entry(self) -> dict[str, Any]:
        """Return the record as a line of ``metrics.jsonl``."""
        entry: dict[str, Any] = {
            "step": self.step,
            "attempt": self.attempt,
            "epsilon": self.epsilon,
            "learning_rate": self.learning_rate,
            "noisy_gradient_norm": self.noisy_gradient_norm,
            **self.denoising,
            **({"telemetry": self.telemetry} if self.telemetry else {}),
            "private": {"loss": self.loss, "batch_size": self.batch_size, "seconds": self.seconds},
        }
        if self.private_evaluation is not None:
            entry["private"]["evaluation"] = self.private_evaluation
        return entry if self.evaluation is None else entry | {"evaluation": self.evaluation}


class Observer:
    """Base of listeners to a run, which does nothing; subclasses look, or end the run by ``run.stop()``.

    Examples
    --------
    >>> class Losses(Observer):
    ...     def __init__(self):
    ...         self.private_losses = []
    ...
    ...     def after_step(self, run, record):
    ...         self.private_losses.append(record.loss)
    """

    def start(self, run: RunView) -> None:
        """Handle the start, before the first step; ``run.done`` steps were done by earlier starts."""

    def before_step(self, run: RunView, step: int) -> None:
        """Handle the moment before a batch is drawn. Call ``run.stop()`` to end the run here."""

    def measured(self, run: RunView, step: int) -> None:
        """Handle the moment after the batch went through the model, before the step is recorded. Call ``run.stop()``
        to end the run.
        """

    def after_step(self, run: RunView, record: StepRecord) -> None:
        """Handle the moment after the optimizer has moved."""

    def before_checkpoint(self, run: RunView) -> None:
        """Handle the moment before the state is written."""

    def note(self, run: RunView, text: str) -> None:
        """Handle a sentence about the run."""

    def end(self, run: RunView) -> None:
        """Handle the end of this start, also after an error."""


def listeners(observers: Sequence[Observer], moment: str) -> list[Callable[..., None]]:
    """List the methods of observers to call at a moment of the run, by the name of `Observer`'s method."""
    methods = [getattr(observer, moment) for observer in observers]
    return [method for method in methods if getattr(method, "__func__", None) is not getattr(Observer, moment)]


class MetricsFile(Observer):
    """``metrics.jsonl``: a line per step."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / METRICS
        self._always: dict[str, Any] = {}

    def start(self, run: RunView) -> None:
        self._always = said_of_every_step(run.prepared.mechanism)

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
