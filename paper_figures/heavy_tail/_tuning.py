"""Learning rates of half a power of ten, and the choice of the trial with the lowest loss."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from pathlib import Path

from dprmt._validation import ParameterError, check_count, check_real
from heavy_tail._data import heavy_tail_data
from heavy_tail._run import run_trial
from heavy_tail._trial import Curve, Trial


def half_power_grid(low: float, high: float) -> list[float]:
    """The numbers 1·10^k and 5·10^k in [low, high]: the paper's grid of learning rates.

    Parameters
    ----------
    low, high : float
        0 < low <= high.

    Returns
    -------
    list of float
        Increasing.

    Raises
    ------
    ParameterError
        If the range is empty.

    References
    ----------
    Section 3 of the heavy-tail class imbalance paper on DP-AdamBC ("1e2, 5e2, 1e3, …").

    Examples
    --------
    >>> half_power_grid(0.1, 10)
    [0.1, 0.5, 1.0, 5.0, 10.0]
    """
    low = check_real("low", low, low=0.0, low_open=True)
    high = check_real("high", high, low=low)
    powers = range(math.floor(math.log10(low)) - 1, math.ceil(math.log10(high)) + 1)
    grid = [float(f"{digit}e{power}") for power in powers for digit in (1, 5)]
    chosen = [rate for rate in grid if low <= rate <= high]
    if not chosen:
        raise ParameterError("high", high, f"such that 1eK or 5eK lies between it and {low:g}")
    return chosen


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
    >>> trials = [Trial("gd", rate, groups=3, samples=8) for rate in half_power_grid(1, 10)]
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     curves = run_trials(trials, folder, steps=20)
    >>> best = lowest_loss(curves)
    >>> best.loss[-1] == min(curve.loss[-1] for curve in curves)
    True
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


def lowest_loss(curves: Sequence[Curve]) -> Curve:
    """The curve that ends with the lowest loss over all training samples, as the paper chooses.

    Parameters
    ----------
    curves : sequence of Curve
        Diverged ones and those without entries are passed over.

    Returns
    -------
    Curve
        One of them.

    Raises
    ------
    ParameterError
        If none remains.

    Formal guarantees
    -----------------
    None: the choice reads private losses, and no accountant has counted it, here or in the paper.

    Examples
    --------
    >>> def ends_at(loss):
    ...     return Curve(Trial("gd", loss), (1,), (0,), (loss,), (0.0,), ((loss,),), ((0.0,),))
    >>> lowest_loss([ends_at(2.0), ends_at(1.0)]).loss
    (1.0,)
    """
    finished = [curve for curve in curves if curve.steps and not curve.diverged]
    if not finished:
        raise ParameterError("curves", len(curves), "at least one that did not diverge; their number")
    return min(finished, key=lambda curve: curve.loss[-1])
