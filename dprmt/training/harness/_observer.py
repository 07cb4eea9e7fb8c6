"""Observers of a training run, and the files that they write."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch.utils._pytree import tree_leaves_with_path

from dprmt._files import append_line
from dprmt._validation import ParameterError
from dprmt.training.harness._run_folder import METRICS
from dprmt.training.private_run._ledger import said_of_every_step

if TYPE_CHECKING:
    from dprmt.training.harness._loop import Run


_RELEASED = ("step", "attempt", "epsilon", "learning_rate", "noisy_gradient_norm")


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
        entry = {name: getattr(self, name) for name in _RELEASED} | self.denoising
        private = {name: getattr(self, name) for name in ("loss", "batch_size", "seconds")}
        if self.telemetry:
            entry["telemetry"] = self.telemetry
        if self.private_evaluation is not None:
            private["evaluation"] = self.private_evaluation
        if self.evaluation is not None:
            entry["evaluation"] = self.evaluation
        return entry | {"private": private}


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

    def start(self, run: Run) -> None:
        """Handle the start, before the first step; ``run.done`` steps were done by earlier starts."""

    def before_step(self, run: Run, step: int) -> None:
        """Handle the moment before a batch is drawn. Call ``run.stop()`` to end the run here."""

    def measured(self, run: Run, step: int) -> None:
        """Handle the moment after the batch went through the model, before the step is recorded. Call ``run.stop()``
        to end the run.
        """

    def after_step(self, run: Run, record: StepRecord) -> None:
        """Handle the moment after the optimizer has moved."""

    def end(self, run: Run) -> None:
        """Handle the end of this start, also after an error."""


class MetricsFile(Observer):
    """``metrics.jsonl``: a line per step."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / METRICS
        self._always: dict[str, Any] = {}

    def start(self, run: Run) -> None:
        self._always = said_of_every_step(run.prepared.mechanism)

    def after_step(self, run: Run, record: StepRecord) -> None:
        append_line(self._path, record.entry() | self._always)


class Events(Observer):
    """Writes the numbers of ``metrics.jsonl`` as TensorBoard scalars, private ones under ``private/``."""

    def __init__(self, folder: Path) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ModuleNotFoundError as error:
            raise ParameterError("tensorboard", True, f"left out, or {error.name} installed") from None
        self._make = partial(SummaryWriter, str(folder / "tensorboard"))

    def start(self, run: Run) -> None:
        self._writer = self._make()

    def after_step(self, run: Run, record: StepRecord) -> None:
        for path, value in tree_leaves_with_path(record.entry()):
            if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
                self._writer.add_scalar("/".join(part.key for part in path), value, record.step)

    def end(self, run: Run) -> None:
        self._writer.close()
