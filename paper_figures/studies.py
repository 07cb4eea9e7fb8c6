"""Private training with records by frequency group: what the items on heavy tails, barcodes and next tokens share.

Each gives a task to `train_privately`, which is the harness with an observer that writes the records.
"""

from __future__ import annotations

import itertools
import math
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import torch

from dprmt._files import append_line, read_lines
from dprmt._validation import ParameterError, check_count, check_real
from dprmt.training.clipping import ClippingPlan, NoisySumOptimizer
from dprmt.training.clipping._formed_layers import NormPolicy
from dprmt.training.clipping._optimizer import sum_of
from dprmt.training.clipping._step import LogicalStep
from dprmt.training.harness import Observer, StepRecord, Task, train_task
from dprmt.training.norms import LayerRecord, NormRecord
from dprmt.training.private_run import MicroBatch, PrivateRun
from dprmt.training.recipes import NormsRecipe, OptimizerRecipe, PrivacyRecipe, Settings, TrainingRecipe

RECORDS = "records.jsonl"
STEPS = 10**6  # the length that the settings name; a call of `train_privately` stops where it is told
OnStep = Callable[[int, float], object]
ClippedSums: TypeAlias = Callable[[torch.nn.Module, Any, float], tuple[torch.Tensor, Mapping[str, torch.Tensor]]]
"""From a model, a batch and C to the losses, without graph, and the sum of clipped gradients by parameter."""


# ------------------------------------------------------------------------------------------------ frequency groups


def group_means(values: torch.Tensor, groups: torch.Tensor, count: int) -> list[float]:
    """Return the mean of the values in every group, summed in float64; NaN for a group without values.

    Examples
    --------
    >>> group_means(torch.tensor([1.0, 3.0, 5.0]), torch.tensor([0, 0, 2]), 3)
    [2.0, nan, 5.0]
    """
    sums = torch.zeros(count, dtype=torch.float64, device=values.device)
    sums.index_add_(0, groups, values.detach().double())
    return [float(mean) for mean in sums / torch.bincount(groups, minlength=count)]


def frequency_groups(counts: torch.Tensor, lowest: Sequence[int]) -> torch.Tensor:
    """Return the group of every class by its number of samples, 0 for the most frequent.

    Group j holds the classes with ``lowest[j] <= count < lowest[j-1]``; ``lowest`` decreases, to at most the least.

    Raises
    ------
    ParameterError
        If ``lowest`` does not decrease, or a class has fewer samples than its last entry.

    Examples
    --------
    >>> frequency_groups(torch.tensor([900, 3, 40, 0]), lowest=[100, 10, 0]).tolist()
    [0, 2, 1, 2]
    """
    if not lowest or any(a <= b for a, b in itertools.pairwise(lowest)):
        raise ParameterError("lowest", list(lowest), "decreasing, with at least one entry")
    if counts.numel() and int(counts.min()) < lowest[-1]:
        raise ParameterError("lowest", lowest[-1], f"at most the smallest count, {int(counts.min())}")
    return (counts[:, None] < torch.tensor(lowest, device=counts.device)[None]).sum(1)


# ------------------------------------------------------------------------------- sums that are known in closed form


@dataclass(frozen=True)
class SummedPlan(ClippingPlan):
    """A plan for sums that the caller clips, from `plan_sums`; all norms are exact."""

    sums: ClippedSums = lambda *_: (torch.zeros(0), {})  # a field needs a default after others

    def privatize(  # type: ignore[override]  # another kind of step
        self, optimizer: torch.optim.Optimizer, *, noise_multiplier: float, noise_generator: Any = None
    ) -> SummedStep:
        """Put noise before the optimizer, which has the model's trainable parameters; the model gets no hooks."""
        noisy = NoisySumOptimizer(
            optimizer,
            noise_multiplier=check_real("noise_multiplier", noise_multiplier, low=0.0),
            max_grad_norm=self.clipping_norm,
            expected_batch_size=self.expected_batch_size,
            loss_reduction="mean",
            generator=noise_generator,
        )
        return SummedStep(self.model, noisy, self.record, self.sums)


def plan_sums(
    model: torch.nn.Module, sums: ClippedSums, *, clipping_norm: float, expected_batch_size: float
) -> SummedPlan:
    """Plan a training whose clipped sums the caller forms, where it knows them without a backward pass.

    Its ``privatize`` gives a `SummedStep`. The record says that norms are exact, which is the caller's word.

    Examples
    --------
    >>> model = torch.nn.Linear(2, 1, bias=False)
    >>> def sums(model, batch, bound):
    ...     return torch.zeros(len(batch)), {"weight": torch.tensor([[1.0, 2.0]])}
    >>> plan_sums(model, sums, clipping_norm=1.0, expected_batch_size=4.0).record.norms
    ExactNorms()
    """
    bound = check_real("clipping_norm", clipping_norm, low=0.0, low_open=True)
    size = check_real("expected_batch_size", expected_batch_size, low=0.0, low_open=True)
    names = [name for name, parameter in model.named_parameters() if parameter.requires_grad]
    record = NormRecord([LayerRecord(name) for name in names])
    return SummedPlan(model, record, bound, size, NormPolicy(None, None), None, False, sums=sums)


class SummedStep(LogicalStep):
    """A private step that asks for sums in place of losses.

    :meth:`step` gives the optimizer (Σ + σC·N(0, I))/L, noise drawn once, L the *expected* batch size. That one sample
    changes Σ, over all parameters together, by at most C in norm is the caller's word.

    Examples
    --------
    >>> model = torch.nn.Linear(2, 1, bias=False)
    >>> _ = torch.nn.init.zeros_(model.weight)
    >>> def sums(model, batch, bound):
    ...     return torch.zeros(len(batch)), {"weight": torch.tensor([[1.0, 2.0]])}
    >>> plan = plan_sums(model, sums, clipping_norm=1.0, expected_batch_size=4.0)
    >>> step = plan.privatize(
    ...     torch.optim.SGD(model.parameters(), lr=1.0),
    ...     noise_multiplier=0.0,  # to see the sum: not private
    ...     noise_generator=torch.Generator(),
    ... )
    >>> _ = step.accumulate(None, batch=[0], samples=[0], step=0)
    >>> step.step()
    >>> model.weight.detach()
    tensor([[-0.2500, -0.5000]])
    """

    replays = 0

    def __init__(
        self, model: torch.nn.Module, optimizer: NoisySumOptimizer, record: NormRecord, sums: ClippedSums
    ) -> None:
        super().__init__(model, optimizer)
        self.record, self._sums = record, sums
        self._trained = {name: p for name, p in model.named_parameters() if p.requires_grad}

    def accumulate(self, losses: Any, *, samples: Any, step: int, batch: Any = None, **_: Any) -> torch.Tensor:
        """Add the sums of a batch."""
        self._enter(samples, step)
        found, sums = self._sums(self.model, batch, self.optimizer.max_grad_norm)
        if sums.keys() != self._trained.keys():
            raise ParameterError("sums", sorted(sums), f"of {sorted(self._trained)}")
        for name, parameter in self._trained.items():
            sum_of(parameter).add_(sums[name])
        return found


# ----------------------------------------------------------------------------------------------------------- tasks


class Measured(NamedTuple):
    """What the forward pass of a micro-batch of B samples gives; an item is a sample or one of its k tokens."""

    losses: torch.Tensor  # each sample's loss with its graph, shape (B,)
    item_losses: torch.Tensor  # shape (k,)
    item_correct: torch.Tensor
    item_groups: torch.Tensor  # the frequency group of the item's label


class GroupTask(Task):
    """A training set whose items belong to frequency groups, the most frequent first.

    Examples
    --------
    Any class with these members will do:

    >>> class Line(GroupTask):
    ...     size, group_names = 4, ("all",)
    ...     x = torch.arange(4.0)[:, None]
    ...
    ...     def measure(self, model: torch.nn.Module, indices: torch.Tensor) -> Measured:
    ...         losses = (model(self.x[indices]) - 2 * self.x[indices]).square().sum(1)
    ...         return Measured(losses, losses.detach(), losses < 0.1, torch.zeros_like(indices))
    >>> import tempfile
    >>> settings = private_settings("gd", 0.1, size=4, noise_multiplier=4.0)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     records = train_privately(torch.nn.Linear(1, 1), Line(), settings, 2, folder)
    >>> [record.step for record in records], round(records[-1].epsilon, 2)
    ([0, 1, 2], 1.36)
    """

    group_names: tuple[str, ...]

    @abstractmethod
    def measure(self, model: torch.nn.Module, indices: torch.Tensor) -> Measured:
        """Return losses of some samples, each of which depends on its own sample alone."""

    def losses_of(self, model: torch.nn.Module, batch: torch.Tensor) -> torch.Tensor:
        """See `Task`."""
        return self.keep(self.measure(model, batch.to(next(model.parameters()).device))).losses

    def keep(self, measured: Measured) -> Measured:
        """Remember what was measured last."""
        self.__dict__["_last"] = measured
        return measured

    def accumulate(self, private: PrivateRun, part: MicroBatch) -> torch.Tensor:
        """See `Task`; what was measured stays in ``seen`` until it is taken."""
        losses = super().accumulate(private, part)
        self.seen.append([column.detach() for column in self.__dict__["_last"][1:]])
        return losses

    @property
    def seen(self) -> list[list[torch.Tensor]]:
        """Columns of `Measured` but the losses, by micro-batch: **private**."""
        seen: list[list[torch.Tensor]] = self.__dict__.setdefault("_seen", [])
        return seen


class ClosedFormTask(GroupTask):
    """A task that forms its sums of clipped gradients, such as `heavy_tail.LinearTask` and `next_token.HeadData`."""

    @abstractmethod
    def clipped_gradients(
        self, model: torch.nn.Module, indices: torch.Tensor, clipping_norm: float
    ) -> tuple[Measured, dict[str, torch.Tensor]]:
        """Return losses of some samples, without graph, and the sum of their exactly clipped gradients by parameter.

        `train_privately` takes an implementation's word that a sample changes the sum by at most C in norm, over all
        parameters together.
        """

    def clipping_plan(self, model: torch.nn.Module, **options: Any) -> SummedPlan:
        """Plan without hooks: the sums are this task's."""
        return plan_sums(
            model,
            self._summed,
            clipping_norm=options["clipping_norm"],
            expected_batch_size=options["expected_batch_size"],
        )

    def _summed(
        self, model: torch.nn.Module, batch: torch.Tensor, clipping_norm: float
    ) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        measured, sums = self.clipped_gradients(model, batch.to(next(model.parameters()).device), clipping_norm)
        return self.keep(measured).losses.detach(), sums


def private_settings(
    optimizer: str,
    learning_rate: float,
    *,
    size: int,
    clipping_norm: float = 1.0,
    noise_multiplier: float = 10.0,
    sample_rate: float = 1.0,
    stability: float = 0.1,
    momentum: float = 0.9,
    betas: tuple[float, float] = (0.9, 0.999),
    micro_batch: int = 256,
    seed: int = 0,
    delta: float = 1e-5,
) -> Settings:
    """Settings of the studies, with Adam's γ and DP-AdamBC's γ' in units of the noise.

    Parameters
    ----------
    optimizer : {"gd", "gdm", "adam", "adamw", "adambc"}
        As in `dprmt.training.recipes.OptimizerRecipe`.
    learning_rate : float
        η > 0.
    size : int
        n, samples of the training set.
    clipping_norm, noise_multiplier : float
        C > 0 and σ > 0.
    sample_rate : float
        q in (0, 1]; 1 is the full batch of the paper, otherwise Poisson sampling. The expected batch L = qn is
        rounded to a whole number.
    stability : float
        γ = stability·σC/L for "adam" and "adamw", γ' = stability·(σC/L)² for "adambc".
    momentum, betas : float, pair of float
        μ of "gdm"; β₁ and β₂.
    micro_batch : int
        Samples whose gradients are in memory at the same time; the result does not depend on it.
    seed : int
        Of noise and sampling: known, so there is no privacy towards anyone who knows it.
    delta : float
        δ in (0, 1), of the ε that is recorded.

    Examples
    --------
    >>> settings = private_settings("adam", 1e-3, size=100, noise_multiplier=2.0, sample_rate=0.5)
    >>> settings.training.batch_size, settings.optimizer.eps
    (50, 0.004)
    """
    check_real("sample_rate", sample_rate, low=0.0, high=1.0, low_open=True)
    check_real("stability", stability, low=0.0, low_open=True)
    batch = max(1, round(sample_rate * check_count("size", size)))
    deviation = noise_multiplier * clipping_norm / batch
    return Settings(
        privacy=PrivacyRecipe(
            noise_multiplier=noise_multiplier, delta=delta, norms=NormsRecipe("ghost"), clipping_norm=clipping_norm
        ),
        optimizer=OptimizerRecipe(
            name=optimizer,
            learning_rate=learning_rate,
            momentum=momentum,
            betas=betas,
            eps=stability * deviation,
            floor=stability * deviation**2,
        ),
        training=TrainingRecipe(batch_size=batch, micro_batch_size=micro_batch, steps=STEPS, seed=seed),
    )


# -------------------------------------------------------------------------------------------------------- training


class GroupRecord(NamedTuple):
    """Training metrics after a number of steps. Private except for ε."""

    step: int
    epsilon: float  # upper bound at the run's δ, of all steps up to here
    loss: float  # mean over items; NaN if sampling drew nobody, or the run was hopeless from here on
    accuracy: float
    group_loss: tuple[float, ...]
    group_accuracy: tuple[float, ...]


def train_privately(
    model: torch.nn.Module,
    task: GroupTask,
    settings: Settings,
    steps: int,
    folder: str | Path,
    *,
    record_every: int = 1,
    hopeless: float = math.inf,
    on_step: OnStep = lambda step, loss: None,
) -> list[GroupRecord]:
    """Train in place until ``steps`` steps are done in all, from where an earlier call in the folder ended.

    Parameters
    ----------
    model : Module
        What to train; parameters that require no gradient are left alone. The model and its layers that are trained
        are put into training mode, other layers (dropout, say) stay in theirs.
    task : GroupTask
        The samples. The sums of a `ClosedFormTask` are taken from it, others from hooks.
    settings : Settings
        As from `private_settings`. They belong to the folder: a call with others raises an error.
    steps : int
        Where to stop.
    folder : str or Path
        A run folder of the harness (`dprmt.training.harness.train_task`), with ``records.jsonl`` beside the rest.
    record_every : int
        Steps between records, which are of the samples drawn in the step that follows; after the last step, of all.
    hopeless : float
        A mean loss from which a run does not come back: it ends there, as with one that is not finite, if this is.
    on_step : callable
        Receives the step and the mean loss, after each step.

    Returns
    -------
    list of GroupRecord
        Of the whole run.

    Raises
    ------
    KeyboardInterrupt
        If a signal ended the run between two steps: what it has lies in the folder.

    Formal guarantees
    -----------------
    Those of `dprmt.training.harness.train_task`, but that the noise has a known seed. The records are not private,
    except for ε.
    """
    last, every = check_count("steps", steps, low=0), check_count("record_every", record_every)
    for module in model.modules():  # gradients are taken from modules in training mode only
        if module is model or any(p.requires_grad for p in module.parameters(recurse=False)):
            module.training = True
    folder = Path(folder)
    trained = train_task(
        model,
        task,
        settings,
        folder,
        resume=(folder / "config.toml").exists(),
        noise_seed=settings.training.seed,
        observers=[_Records(folder / RECORDS, task, last, every, hopeless, on_step)],
    )
    records = read_records(folder)
    gave_up = math.isfinite(hopeless) and bool(records) and math.isnan(records[-1].loss)
    if trained.steps < last and not gave_up:
        raise KeyboardInterrupt(f"the run was stopped after {trained.steps} of {last} steps; the same call goes on")
    return records


def read_records(folder: str | Path) -> list[GroupRecord]:
    """Return the records of a run by step; a step that was repeated after a crash counts once."""
    rows = {row["step"]: row for row in read_lines(Path(folder) / RECORDS)}
    return [_record(rows[step]) for step in sorted(rows)]


def _record(row: Mapping[str, Any]) -> GroupRecord:
    def number(value: Any) -> Any:
        return tuple(map(number, value)) if isinstance(value, list) else math.nan if value is None else value

    return GroupRecord(*(number(row[name]) for name in GroupRecord._fields))


class _Records(Observer):
    # Writes a record every so often, and ends the run where it was told to, or where it is hopeless.

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
        if run.private.steps_taken % self._every == 0:
            self._record(run)

    def after_step(self, run: Any, record: StepRecord) -> None:
        loss = record.private["loss"]
        self._on_step(record.step, math.nan if loss is None else loss)

    def _see_all(self, run: Any) -> None:
        size, device = run.settings.training.micro_batch_size, next(run.model.parameters()).device
        with torch.no_grad():
            for indices in torch.arange(self._task.size, device=device).split(size):
                self._task.seen.append(list(self._task.measure(run.model, indices)[1:]))

    def _record(self, run: Any) -> None:
        empty = [torch.zeros(0), torch.zeros(0), torch.zeros(0, dtype=torch.int64)]
        columns = zip(*(self._task.seen or [empty]), strict=True)
        losses, correct, groups = (torch.cat(column).cpu() for column in columns)
        loss, count = float(losses.double().mean()), len(self._task.group_names)
        accuracy = float(correct.double().mean())
        by_group = (group_means(values, groups, count) for values in (losses, correct))
        if math.isfinite(self._hopeless) and len(losses) and not loss < self._hopeless:
            loss = math.nan
            run.stop()
        steps = run.private.steps_taken
        record = GroupRecord(steps, run.epsilon(steps), loss, accuracy, *map(tuple, by_group))
        append_line(self._file, record._asdict())
