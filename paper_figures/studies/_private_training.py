"""Private training by the harness, with metrics by frequency group."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from dprmt._files import append_line, read_lines
from dprmt._validation import ParameterError, check_count
from dprmt.training.harness import Observer, StepRecord, train_task
from dprmt.training.recipes import Settings
from paper_figures.studies._groups import group_means
from paper_figures.studies._task import GroupRecord, GroupTask

RECORDS = "records.jsonl"
OnStep = Callable[[int, float], object]


def train_privately(
    model: torch.nn.Module,
    task: GroupTask,
    settings: Settings,
    steps: int,
    folder: str | Path,
    *,
    record_every: int = 1,
    hopeless: float = math.inf,
    on_step: OnStep | None = None,
    progress: bool = True,
) -> list[GroupRecord]:
    """Train in place until ``steps`` steps are done in all, from where an earlier call in the folder ended.

    Parameters
    ----------
    model : Module
        What to train; parameters that require no gradient are left alone. Layers that are trained are put into
        training mode, others (dropout, say) stay in theirs.
    task : GroupTask
        The samples. The sums of a `ClosedFormTask` are taken from it, others from hooks.
    settings : Settings
        How, as from `private_settings`. They belong to the folder: another call with others is refused.
    steps : int
        Where to stop.
    folder : str or Path
        A run folder of the harness (`dprmt.training.harness.train_task`), with ``records.jsonl`` beside the rest.
    record_every : int
        Steps between records, which are of the samples drawn in the step that follows; after the last step, of
        all samples.
    hopeless : float
        A mean loss from which a run does not come back: it ends there, as with one that is not finite, if this is.
    on_step : callable, optional
        Told the step and the mean loss, after each step.
    progress : bool
        Whether to show a bar on a terminal.

    Returns
    -------
    list of GroupRecord
        Of the whole run.

    Raises
    ------
    ParameterError
        If a count is out of range, the folder holds a run with other settings, or a layer is one that
        `dprmt.make_private` refuses.
    KeyboardInterrupt
        If a signal ended the run between two steps: what it has lies in the folder.

    Formal guarantees
    -----------------
    That of `dprmt.training.harness.train_task`, but that the noise has a known seed: after T steps the trained
    parameters are as private as ``DPSGD(σ, q)`` says after T steps towards whoever does not know it, q being the rate
    of the coins that are thrown. A run that was killed repeats the same releases since its last checkpoint, with the
    same noise; nothing new is released. The records are not private, except for ε.

    Examples
    --------
    >>> import tempfile
    >>> from paper_figures.barcode import barcode_data, barcode_network, digits_images
    >>> from paper_figures.studies import private_settings
    >>> data = barcode_data(*digits_images(), plan=[(10, 2), (20, 1)])
    >>> settings = private_settings("adam", 1e-3, size=data.size, noise_multiplier=1.0)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     records = train_privately(barcode_network(30), data, settings, 1, folder, progress=False)
    >>> [round(record.epsilon, 2) for record in records], len(records[0].group_loss)
    ([0.0, 4.38], 2)
    """
    last, every = check_count("steps", steps, low=0), check_count("record_every", record_every)
    for module in model.modules():  # per-sample gradients are taken from modules in training mode only
        if any(p.requires_grad for p in module.parameters(recurse=False)):
            module.training = True
    folder = Path(folder)
    _refuse_older_run(folder)
    begun = (folder / "config.toml").exists()
    with _bar(last, progress) as shown:
        trained = train_task(
            model,
            task,
            settings,
            folder,
            resume=begun,
            noise_seed=settings.training.seed,
            observers=[GroupRecords(folder / RECORDS, task, last, every, hopeless, on_step or shown)],
        )
    if trained.steps < last and not _is_hopeless(folder):
        raise KeyboardInterrupt(f"the run was stopped after {trained.steps} of {last} steps; the same call goes on")
    return read_records(folder)


def read_records(folder: str | Path) -> list[GroupRecord]:
    """The records of a run; a step that was repeated after a crash counts once.

    Parameters
    ----------
    folder : str or Path
        As in `train_privately`.

    Returns
    -------
    list of GroupRecord
        By step; empty if the folder holds no run. A run that was ended as hopeless has none from there on.

    Formal guarantees
    -----------------
    None except for ε, which is that of `train_privately`: losses and accuracies are those of the training samples.

    Examples
    --------
    >>> import tempfile
    >>> from paper_figures.barcode import barcode_data, barcode_network, digits_images
    >>> from paper_figures.studies import private_settings
    >>> data = barcode_data(*digits_images(), plan=[(10, 2), (20, 1)])
    >>> settings = private_settings("gd", 0.1, size=data.size, noise_multiplier=1.0)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     records = train_privately(barcode_network(30), data, settings, 1, folder, progress=False)
    ...     read_records(folder) == records
    True
    """
    rows = {row["step"]: row for row in read_lines(Path(folder) / RECORDS)}
    return [_record(rows[step]) for step in sorted(rows) if not rows[step].get("diverged")]


def _is_hopeless(folder: Path) -> bool:
    return any(row.get("diverged") for row in read_lines(folder / RECORDS))


class GroupRecords(Observer):
    """Writes a record every so often, and ends the run where it was told to, or where it is hopeless.

    Parameters
    ----------
    file : Path
        ``records.jsonl``.
    task : GroupTask
        Of the run.
    last, every : int
        Where to stop; steps between records.
    hopeless : float
        The mean loss at which to give up.
    on_step : callable
        Told step and mean loss.
    """

    def __init__(self, file: Path, task: GroupTask, last: int, every: int, hopeless: float, on_step: OnStep) -> None:
        self._file, self._task, self._last, self._every = file, task, last, every
        self._hopeless, self._on_step = hopeless, on_step

    def before_step(self, run: Any, step: int) -> None:
        self._task.seen.clear()
        if step > self._last:
            self._see_all(run)
            self._record(run)
            run.stop()

    def measured(self, run: Any, step: int) -> None:
        if run.done % self._every == 0:
            self._record(run)

    def after_step(self, run: Any, record: StepRecord) -> None:
        self._on_step(record.step, math.nan if record.loss is None else record.loss)

    def _see_all(self, run: Any) -> None:
        size, device = run.prepared.settings.training.micro_batch_size, next(run.prepared.model.parameters()).device
        with torch.no_grad():
            for indices in torch.arange(self._task.size, device=device).split(size):
                self._task.seen.append(list(self._task.measure(run.prepared.model, indices)[1:]))

    def _record(self, run: Any) -> None:
        empty = [torch.zeros(0), torch.zeros(0), torch.zeros(0, dtype=torch.int64)]
        columns = zip(*(self._task.seen or [empty]), strict=True)
        losses, correct, groups = (torch.cat(column).cpu() for column in columns)
        loss, count = float(losses.double().mean()), len(self._task.group_names)
        if math.isfinite(self._hopeless) and len(losses) and not loss < self._hopeless:
            append_line(self._file, {"step": run.done, "diverged": True})
            run.stop()
            return
        row = {
            "step": run.done,
            "epsilon": run.epsilon_after(run.done),
            "loss": loss,
            "accuracy": float(correct.double().mean()),
            "group_loss": group_means(losses, groups, count),
            "group_accuracy": group_means(correct, groups, count),
        }
        append_line(self._file, row)


def _refuse_older_run(folder: Path) -> None:
    if (folder / "state.safetensors").exists():
        raise ParameterError("folder", str(folder), "one without a run of an earlier version, which cannot go on")


@contextmanager
def _bar(last: int, show: bool) -> Iterator[OnStep]:
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True, disable=not show) as bar:
        task = bar.add_task("steps", total=last)
        yield lambda step, loss: bar.update(task, completed=step)


def _record(row: dict[str, Any]) -> GroupRecord:
    def number(value: float | None) -> float:
        return math.nan if value is None else value

    return GroupRecord(
        step=row["step"],
        epsilon=row["epsilon"],
        loss=number(row["loss"]),
        accuracy=number(row["accuracy"]),
        group_loss=tuple(number(value) for value in row["group_loss"]),
        group_accuracy=tuple(number(value) for value in row["group_accuracy"]),
    )
