"""Private training of any model in micro-batches, with metrics by frequency group; resumable at any point.

Clipping is that of `dprmt.training.clipping`, with exact norms: a linear layer's per-sample gradients are never
formed. Tasks with a closed form bring their sums of clipped gradients along; noise is added in the same way.
"""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch

from dprmt._files import append_line, read_lines
from dprmt._validation import ParameterError, check_count, check_real
from dprmt.accounting import DPSGD
from dprmt.training.optimizers import make_optimizer
from studies._checkpoint import load_checkpoint, optimizer_tensors, restore_optimizer, save_checkpoint
from studies._clipping import clipping_of
from studies._groups import group_means
from studies._task import GroupRecord, PrivateSettings, Task


def train_privately(
    model: torch.nn.Module,
    task: Task,
    settings: PrivateSettings,
    steps: int,
    folder: str | Path,
    *,
    delta: float = 1e-5,
    record_every: int = 1,
    checkpoint_seconds: float = 60.0,
    progress: bool = True,
) -> list[GroupRecord]:
    """Train in place until ``steps`` steps are done in all, from where an earlier call in the folder ended.

    Parameters
    ----------
    model : Module
        What to train; parameters that require no gradient are left alone. Its layers must be those of `make_private`.
        Layers that are trained are put into training mode, others (dropout, say) stay in theirs.
    task : Task
        The samples. If it has ``clipped_gradients`` (a `ClosedFormTask`), that is used instead of hooks.
    settings : PrivateSettings
        How. They belong to the folder: another call with others is refused.
    steps : int
        Where to stop.
    folder : str or Path
        For ``records.jsonl`` and ``state.safetensors``.
    delta : float
        δ in (0, 1), for the records.
    record_every : int
        Steps between records, which are of the samples drawn in the step that follows; after the last step, of
        all samples.
    checkpoint_seconds : float
        Time between checkpoints.
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
        `dprmt.training.clipping.make_private` refuses.

    Formal guarantees
    -----------------
    After T steps the trained parameters are as private as ``DPSGD(σ, q)`` says after T steps, add or remove one
    sample, with the limits that `dprmt.training.clipping.make_private` names and with noise from a seeded generator
    of torch. The clipped sum is divided by qn, not by the number of samples drawn. The records are not private,
    but for ε.

    Examples
    --------
    >>> import tempfile
    >>> from barcode import barcode_data, barcode_network, digits_images
    >>> data = barcode_data(*digits_images(), plan=[(10, 2), (20, 1)])
    >>> settings = PrivateSettings("adam", 1e-3, noise_multiplier=1.0)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     records = train_privately(barcode_network(30), data, settings, 1, folder, progress=False)
    >>> [round(record.epsilon, 2) for record in records], len(records[0].group_loss)
    ([0.0, 4.38], 2)
    """
    steps, record_every = check_count("steps", steps, low=0), check_count("record_every", record_every)
    check_real("delta", delta, low=0.0, high=1.0, low_open=True, high_open=True)
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    run = _Run(model, task, settings, folder, delta)
    try:
        saved_at = time.monotonic()
        for step in _shown(run.step, steps, progress):
            record = step % record_every == 0 or step == steps
            if record or step < steps:
                run.forward(record=record, backward=step < steps)
            if step < steps:
                run.advance()
            if time.monotonic() - saved_at > checkpoint_seconds:
                run.save()
                saved_at = time.monotonic()
        run.save()
    finally:
        run.clipping.close()
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
        By step; empty if the folder holds no run.

    Formal guarantees
    -----------------
    None but for ε, which is that of `train_privately`: losses and accuracies are those of the training samples.

    Examples
    --------
    >>> import tempfile
    >>> from barcode import barcode_data, barcode_network, digits_images
    >>> data = barcode_data(*digits_images(), plan=[(10, 2), (20, 1)])
    >>> settings = PrivateSettings("gd", 0.1, noise_multiplier=1.0)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     records = train_privately(barcode_network(30), data, settings, 1, folder, progress=False)
    ...     read_records(folder) == records
    True
    """
    rows = {row["step"]: row for row in read_lines(Path(folder) / "records.jsonl")}
    return [_record(rows[step]) for step in sorted(rows)]


class _Run:
    # The model with its hooks, the optimizer, the noise, and where all of it is kept.

    def __init__(
        self, model: torch.nn.Module, task: Task, settings: PrivateSettings, folder: Path, delta: float
    ) -> None:
        self.task, self.settings, self.delta, self.step = task, settings, delta, 0
        self.lines, self.state = folder / "records.jsonl", folder / "state.safetensors"
        self.trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
        self.device = next(iter(self.trained.values())).device
        deviation = settings.noise_multiplier * settings.clipping_norm / (settings.sample_rate * task.size)
        inner = make_optimizer(
            settings.optimizer,
            list(self.trained.values()),
            lr=settings.learning_rate,
            eps=settings.stability * deviation,
            noise_variance=deviation**2,
            floor=settings.stability * deviation**2,
        )
        self.noise = torch.Generator(self.device).manual_seed(2 * settings.seed)
        self.draws = torch.Generator().manual_seed(2 * settings.seed + 1)
        self.inner = inner
        if self.state.exists():
            self.load()
        for module in model.modules():  # per-sample gradients are taken from modules in training mode only
            if any(p.requires_grad for p in module.parameters(recurse=False)):
                module.training = True
        self.model = model
        self.clipping = clipping_of(model, inner, task, settings, self.noise)

    def forward(self, *, record: bool, backward: bool) -> None:
        # All micro-batches of one logical step: clipped sums, metrics, or both. The end is measured on all samples.
        drawn = torch.arange(self.task.size)
        if self.settings.sample_rate < 1 and backward:
            drawn = drawn[torch.rand(self.task.size, generator=self.draws) < self.settings.sample_rate]
        measured = []
        for indices in drawn.split(self.settings.micro_batch) if len(drawn) else ():
            where = indices.to(self.device)
            if not backward:
                with torch.no_grad():
                    now = self.task.measure(self.model, where)
            else:
                now = self.clipping.accumulate(where, self.step)
            measured.append([column.detach() for column in now[1:]])
        if record:
            self.record(measured)

    def advance(self) -> None:
        self.clipping.step()
        self.step += 1

    def record(self, measured: list[list[torch.Tensor]]) -> None:
        count = len(self.task.group_names)
        empty = [torch.zeros(0), torch.zeros(0), torch.zeros(0, dtype=torch.int64)]
        losses, correct, groups = (torch.cat(column).cpu() for column in zip(*(measured or [empty]), strict=True))
        mechanism = DPSGD(self.settings.noise_multiplier, self.settings.sample_rate)
        row = {
            "step": self.step,
            "epsilon": mechanism.epsilon(self.step, self.delta).upper if self.step else 0.0,
            "loss": float(losses.double().mean()),
            "accuracy": float(correct.double().mean()),
            "group_loss": group_means(losses, groups, count),
            "group_accuracy": group_means(correct, groups, count),
        }
        append_line(self.lines, row)

    def save(self) -> None:
        tensors, facts = optimizer_tensors(self.inner)
        tensors |= {f"model/{name}": p for name, p in self.trained.items()}
        tensors |= {"noise": self.noise.get_state(), "draws": self.draws.get_state()}
        facts |= {"step": self.step, "settings": dataclasses.asdict(self.settings)}
        save_checkpoint(self.state, tensors, facts)

    def load(self) -> None:
        tensors, facts = load_checkpoint(self.state)
        if facts["settings"] != dataclasses.asdict(self.settings):
            raise ParameterError("settings", self.settings, f"those of the run in {self.state.parent}")
        restore_optimizer(self.inner, tensors, facts)
        with torch.no_grad():
            for name, p in self.trained.items():
                p.copy_(tensors[f"model/{name}"])
        self.noise.set_state(tensors["noise"])
        self.draws.set_state(tensors["draws"])
        self.step = facts["step"]


def _shown(first: int, last: int, progress: bool) -> Iterable[int]:
    from rich.console import Console
    from rich.progress import track

    steps = range(first, last + 1)
    return track(steps, description="steps", console=Console(stderr=True), transient=True, disable=not progress)


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
