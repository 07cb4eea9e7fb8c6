"""Many trials, one after the other."""

from __future__ import annotations

import math
from collections.abc import Iterable
from pathlib import Path

from dprmt._validation import check_count
from paper_figures.heavy_tail._data import heavy_tail_data
from paper_figures.heavy_tail._run import run_trial
from paper_figures.heavy_tail._trial import Curve, Trial


def run_trials(trials: Iterable[Trial], folder: str | Path, steps: int, *, record_every: int = 25) -> list[Curve]:
    """Run one trial after the other, with a progress bar; what is done already is not repeated.

    Parameters
    ----------
    trials : iterable of Trial
        The inputs are drawn anew only when the instance or the seed changes.
    folder : str or Path
        As in `run_trial`.
    steps : int
        For every trial.
    record_every : int
        As in `run_trial`.

    Returns
    -------
    list of Curve
        One per trial.

    Raises
    ------
    ParameterError
        As in `run_trial`.

    Formal guarantees
    -----------------
    Those of `run_trial` for each of them. Trials of one seed and instance share their samples: all together cost up to
    the sum of their ε, at the sum of their δ. The curves are not private.

    Examples
    --------
    >>> import tempfile
    >>> trials = [Trial("gd", rate, groups=3, samples=8) for rate in (1.0, 5.0, 10.0)]
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     curves = run_trials(trials, folder, steps=20)
    >>> [curve.steps[-1] for curve in curves]
    [20, 20, 20]
    """
    from rich.console import Console
    from rich.progress import Progress, TextColumn, TimeRemainingColumn

    steps = check_count("steps", steps, low=0)
    pending, curves = list(trials), []
    instance, data = None, None
    columns = (*Progress.get_default_columns()[:-1], TextColumn("loss {task.fields[loss]:.3f}"), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        for trial in pending:
            if instance != (trial.groups, trial.samples, trial.seed):
                instance = trial.groups, trial.samples, trial.seed
                data = heavy_tail_data(trial.groups, trial.samples, seed=trial.seed)
            task = bar.add_task(trial.name, total=steps, loss=math.nan)

            def show(step: int, loss: float, task: int = int(task)) -> None:
                bar.update(task, completed=step, loss=loss)  # type: ignore[arg-type]

            curves.append(run_trial(trial, folder, steps, record_every=record_every, data=data, on_step=show))
    return curves
