"""Runs that leave nothing behind but the parameters they moved."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch

from dprmt.training.harness._loop import Run
from dprmt.training.harness._observer import Observer
from dprmt.training.harness._prepare import prepare
from dprmt.training.harness._task import Task
from dprmt.training.private_run._randomness import Randomness, fresh_randomness
from dprmt.training.recipes import Settings


@contextmanager
def run_in_memory(
    model: torch.nn.Module,
    task: Task,
    settings: Settings,
    *,
    noise_seed: int | None = None,
    randomness: Randomness | None = None,
    tokens: int | None = None,
    observers: Sequence[Observer] = (),
) -> Iterator[Run]:
    """Run the loop without a folder: steps are recorded in memory, and the run cannot be resumed.

    Parameters
    ----------
    model, task, settings, noise_seed, tokens, observers
        As for `train_task`.
    randomness : Randomness, optional
        Used instead of ``noise_seed``.

    Yields
    ------
    Run
        Iterate over its :meth:`Run.steps` to run the steps. At the end the model has no hooks.

    Raises
    ------
    ParameterError
        If the settings do not fit the model or the task.

    Formal guarantees
    -----------------
    As for `Run`: ``epsilon()`` covers the parameters while this process lives. If parameters outlive a killed process,
    there is no record of their steps.

    Examples
    --------
    >>> from dprmt.training.harness import ItemTask
    >>> def losses(model, labels):
    ...     return torch.nn.functional.cross_entropy(model(torch.eye(4)[labels]), labels, reduction="none")
    >>> settings = Settings(
    ...     privacy={"noise_multiplier": 1.0, "delta": 1e-5},
    ...     optimizer={"name": "adam", "learning_rate": 0.1},
    ...     training={"batch_size": 10, "steps": 2},
    ... )
    >>> task = ItemTask([0, 1, 2] * 10, torch.tensor, losses)
    >>> with run_in_memory(torch.nn.Linear(4, 3), task, settings) as run:
    ...     steps = [record.step for record in run.steps()]
    >>> steps, round(run.epsilon(), 1)
    ([1, 2], 3.9)
    """
    drawn = fresh_randomness(noise_seed, 1, settings.privacy.secure) if randomness is None else randomness
    prepared = prepare(model, task, settings, drawn, tokens=tokens)
    try:
        run = Run(prepared, drawn)
        run.observers = list(observers)
        yield run
    finally:
        prepared.close()
