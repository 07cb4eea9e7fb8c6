"""Where a run is charged and kept: a folder, or memory."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Protocol

import torch

from dprmt._validation import ParameterError
from dprmt.training.harness._checkpoint import load_checkpoint, save_checkpoint
from dprmt.training.harness._ledger import PrivacyLedger
from dprmt.training.harness._processes import in_first


class Place(Protocol):
    """Charges and checkpoints of a run."""

    states_epsilon: bool
    """Whether every charge is told ε, which takes the accountant's time."""
    charged: int
    """Steps charged so far, over all starts."""

    def charge(self, attempt: int, step: int, epsilon: float, charged: int) -> None:
        """Record one more step, the ``charged``-th; what is recorded is as durable as the place when this returns."""

    def save(self, state: dict[str, Any]) -> None:
        """Keep the state of the run."""

    def load(self) -> dict[str, Any] | None:
        """The state that was kept last, if any."""


class FolderPlace:
    """A run folder: ``privacy.jsonl`` and ``checkpoint/``. Other processes than the first read nothing there."""

    states_epsilon = True

    def __init__(self, path: Path, mechanism: str) -> None:
        self._path, self._ledger = path, in_first(lambda: PrivacyLedger(path, mechanism))
        self.charged = 0 if self._ledger is None else self._ledger.charged

    def __str__(self) -> str:
        return str(self._path)

    def charge(self, attempt: int, step: int, epsilon: float, charged: int) -> None:
        assert self._ledger is not None  # only the first process charges
        self._ledger.charge(attempt, step, epsilon, charged)
        self.charged = self._ledger.charged

    def save(self, state: dict[str, Any]) -> None:
        if self._ledger is not None:
            save_checkpoint(self._path, state)

    def load(self) -> dict[str, Any] | None:
        return load_checkpoint(self._path)


class Memory:
    """Counts what is charged, and forgets it with the process: for runs on public data whose parameters go nowhere."""

    states_epsilon = False

    def __init__(self) -> None:
        self.charged = 0

    def __str__(self) -> str:
        return "memory"

    def charge(self, attempt: int, step: int, epsilon: float, charged: int) -> None:
        self.charged = charged

    def save(self, state: dict[str, Any]) -> None:
        pass

    def load(self) -> dict[str, Any] | None:
        return None


def load_parameters(run: str | os.PathLike[str]) -> dict[str, torch.Tensor]:
    """The trained parameters in the last checkpoint of a run.

    Parameters
    ----------
    run : path
        A run folder, finished or not.

    Returns
    -------
    dict of Tensor
        By name, on the CPU.

    Raises
    ------
    ParameterError
        If there is no checkpoint.

    Formal guarantees
    -----------------
    Private to what ``privacy.jsonl`` says at its end, as `dprmt.training.harness.train` guarantees.

    Examples
    --------
    >>> load_parameters("nowhere")
    Traceback (most recent call last):
    ...
    dprmt._validation.ParameterError: run must be the folder of a run with a checkpoint, got 'nowhere'
    """
    state = load_checkpoint(Path(run))
    if state is None:
        raise ParameterError("run", str(run), "the folder of a run with a checkpoint")
    parameters: dict[str, torch.Tensor] = state["parameters"]
    return parameters
