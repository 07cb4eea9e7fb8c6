"""Optional TensorBoard events of a run."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

from dprmt._validation import ParameterError
from dprmt.training.harness._observer import Observer, RunView, StepRecord


class Events(Observer):
    """Writes the numbers of ``metrics.jsonl`` as TensorBoard scalars, private ones under ``private/``."""

    def __init__(self, folder: Path) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ModuleNotFoundError as error:
            raise ParameterError("tensorboard", True, f"left out, or {error.name} installed") from None
        self._make: Callable[..., Any] = SummaryWriter
        self._folder = folder / "tensorboard"
        self._writer: Any = None  # made with the first step, because the folder may belong to no run before

    def after_step(self, run: RunView, record: StepRecord) -> None:
        """Write one step."""
        entry = record.entry()
        self._writer = self._writer or self._make(str(self._folder))
        for name, value in _scalars(entry):
            if name not in ("step", "attempt") and math.isfinite(value):
                self._writer.add_scalar(name, value, entry["step"])

    def end(self, run: RunView) -> None:
        """Write all that is left."""
        if self._writer is not None:
            self._writer.close()


def _scalars(entry: dict[str, Any], prefix: str = "") -> list[tuple[str, float]]:
    found = []
    for name, value in entry.items():
        if isinstance(value, dict):
            found += _scalars(value, f"{prefix}{name}/")
        elif isinstance(value, int | float) and not isinstance(value, bool):
            found.append((prefix + name, float(value)))
    return found
