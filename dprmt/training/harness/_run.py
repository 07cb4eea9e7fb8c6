"""One start of a private run: its plan, its steps, their records and checkpoints, and what observers see of them."""

from __future__ import annotations

import dataclasses
import math
import sys
import time
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from inspect import signature
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader

from dprmt import __version__
from dprmt._files import append_line
from dprmt._validation import ParameterError, TrainingStateError, differences
from dprmt.training.clipping import ClippingPlan
from dprmt.training.denoising import Denoising
from dprmt.training.harness._checkpoint import (
    like,
    load_checkpoint,
    optimizer_state_like,
    save_checkpoint,
    spread,
    squared_norm,
)
from dprmt.training.harness._privacy_cost import SCORE, release_score, wanted_releases
from dprmt.training.harness._run_folder import METRICS
from dprmt.training.harness._task import Task
from dprmt.training.norms import ProbeGenerator
from dprmt.training.optimizers import released_gradient
from dprmt.training.private_run import PrivateBatch, PrivateRun
from dprmt.training.private_run._batches import Source, scheme
from dprmt.training.private_run._ledger import (
    ClippingOnly,
    Mechanism,
    calibrated,
    describe_mechanism,
    no_privacy,
    said_of_every_step,
)
from dprmt.training.private_run._randomness import (
    Randomness,
    fresh_randomness,
    from_first,
    in_first,
    rank,
    sum_of_all,
)
from dprmt.training.recipes import OPTIMIZERS, Settings
from dprmt.training.subspaces import Subspaces


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
    telemetry : dict
        Reading of `dprmt.training.telemetry.Telemetry.last`; empty without telemetry.
    evaluation : dict or None
        Scores after the step, if they were computed and may be shown.
    private : dict
        **Private**: ``loss``, the mean over the batch, or None if Poisson sampling drew no sample; ``batch_size``, the
        size of the drawn batch; ``seconds``, which grow with it; and with ``evaluation.private_noise`` the
        ``evaluation``.
    """

    step: int
    attempt: int
    epsilon: float
    learning_rate: float
    noisy_gradient_norm: float
    denoising: dict[str, int]
    telemetry: dict[str, Any]
    evaluation: dict[str, Any] | None
    private: dict[str, Any]

    def entry(self) -> dict[str, Any]:
        """Return the record as a line of ``metrics.jsonl``."""
        entry = vars(self) | self.denoising
        left_out = [name for name in ("telemetry", "evaluation") if not entry[name]]
        return {name: value for name, value in entry.items() if name not in ("denoising", *left_out)}


class Observer:
    """Base of listeners to a run, which does nothing; subclasses look, or end the run by ``run.stop()``.

    Examples
    --------
    >>> class Losses(Observer):
    ...     def __init__(self):
    ...         self.private_losses = []
    ...
    ...     def after_step(self, run, record):
    ...         self.private_losses.append(record.private["loss"])
    """

    def start(self, run: Run) -> None:
        """Handle the start, before the first step; earlier starts did ``run.private.steps_taken`` steps."""

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


@dataclass(frozen=True)
class Start:
    """What one start of a run begins with; ``former`` is the record of earlier starts in ``folder``, its run.json."""

    randomness: Randomness
    folder: Path | None = None
    former: Mapping[str, Any] = field(default_factory=dict)
    progress: bool = False
    processes: int = field(
        default_factory=lambda: dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1
    )

    @property
    def number(self) -> int:
        """Number of this start, from 1."""
        return int(self.former.get("starts", 0)) + 1


def plan_step(
    model: torch.nn.Module, task: Task, settings: Settings, start: Start, probes: ProbeGenerator, tokens: int | None
) -> tuple[ClippingPlan, Mechanism]:
    """Plan how gradients are clipped, and return one step as the accountant composes it.

    Its σ is the one that the settings ask for, the one of an earlier start, or the smallest that keeps the target ε.
    """
    privacy, optimizer, size, subspaces = settings.privacy, settings.optimizer, settings.training.batch_size, None
    if size > task.size:
        raise ParameterError("training.batch_size", size, f"at most the size of the training set, {task.size}")
    if optimizer.name == "grape":
        drawn: dict[str, Any] = {"refresh_every": optimizer.refresh_every, "projector": optimizer.projector}
        subspaces = Subspaces(model, rank=optimizer.rank, seed=settings.training.seed, **drawn)
    plan = task.clipping_plan(
        model,
        norms=privacy.norms,
        clipping_norm=privacy.clipping_norm,
        expected_batch_size=size,
        tokens=tokens,
        probe_generator=probes,
        replay=privacy.replay,
        units=task.units,
        subspaces=subspaces,
    )
    batches = scheme(privacy.sampling, size, task.size)
    if privacy.clip_only:
        return plan, ClippingOnly(batches)
    sigma, target = privacy.noise_multiplier or start.former.get("noise_multiplier"), privacy.target_epsilon
    mechanism = plan.record.mechanism(sigma or 1.0, batches)
    if sigma is None and target is not None:  # one of both is given
        mechanism = calibrated(mechanism, settings.training.steps, target, privacy.delta, wanted_releases(settings))
    return plan, mechanism


class Run:
    """One start of a run; every private training of dprmt uses :meth:`steps`.

    Parameters
    ----------
    model : Module
        Model to train, on its device and in training mode.
    task : Task
        Samples, losses and scores.
    settings : Settings
        Settings of the run.
    start : Start
        Randomness and folder. A run without a folder keeps ledger and checkpoints in memory, for public data whose
        parameters are not published; then no step computes ε, which takes time.
    tokens : int, optional
        Length of the longest sample, if it is known without looking at the data.

    Attributes
    ----------
    private : PrivateRun
        The private run, with ``steps_taken``, ``steps_charged``, ``mechanism`` and ``optimizer``.
    parameters : dict of Parameter
        The trainable ones by name.
    total : int
        Number of steps of the whole run.
    scores : dict
        The most recent scores.
    record : dict
        What ``run.json`` has.
    stopped : bool
        Whether an observer ended it.

    Raises
    ------
    ParameterError
        If the settings do not fit the model or the task, or the state in the folder belongs to another run.

    Formal guarantees
    -----------------
    A logical step is recorded in the folder before its noise is added and its gradient used. Batches come from a
    Poisson sampler whose exact rate is the mechanism's, or from random allocation, where every epoch that was begun
    counts as a whole. With a target ε, no more steps are recorded than it was computed for.
    So ``epsilon()`` covers the releases, and is as durable as the folder.

    Examples
    --------
    Use `dprmt.training.harness.run_in_memory`, or for a folder `dprmt.training.harness.train`; see there.

    >>> from dprmt.training.harness import run_in_memory
    >>> with run_in_memory(model, task, settings) as run:  # doctest: +SKIP
    ...     norms = [record.noisy_gradient_norm for record in run.steps()]
    """

    def __init__(
        self, model: torch.nn.Module, task: Task, settings: Settings, start: Start, *, tokens: int | None = None
    ) -> None:
        self.model, self.task, self.settings, self.start = model, task, settings, start
        if wanted_releases(settings) and task.scored_rows is None:
            allowed = "left out: this task's score is no accuracy over a known number of rows"
            raise ParameterError("evaluation.private_noise", settings.evaluation.private_noise, allowed)
        if settings.distributed.is_sharded and start.processes > 1:
            spread(model)
        elif settings.distributed.is_sharded and not start.former:  # one process may go on alone
            allowed = "'replicated' in one process: torchrun --nproc-per-node N -m dprmt train … starts several"
            raise ParameterError("distributed.strategy", "fsdp", allowed)
        probes = ProbeGenerator(start.randomness.derive("probes"))
        self.plan, mechanism = plan_step(model, task, settings, start, probes, tokens)
        self.parameters = {name: value for name, value in model.named_parameters() if value.requires_grad}
        self.record = self._described(mechanism)
        self._check_same()
        wanted, training = settings.optimizer, settings.training
        named = vars(wanted) | {
            "lr": wanted.learning_rate,
            "momentum": 0.0 if wanted.name == "gd" else wanted.momentum,
            "noise_variance": self.plan.noise_variance(mechanism.noise_multiplier),
            "subspaces": self.plan.subspaces,
        }
        make = OPTIMIZERS.load(wanted.name)
        known = signature(make).parameters
        optimizer = make(self.parameters.values(), **{name: named[name] for name in named if name in known})
        self.total, self.stopped = training.steps, False
        self.observers: list[Observer] = []
        self.scores: dict[str, Any] = {}
        self._scored: int | None = None  # the step after which the scores were taken
        self._norm = math.nan  # of the last noisy gradient over all trainable parameters, before denoising
        optimizer.register_step_pre_hook(self._look)
        denoising, owners = settings.denoising, task.owners_of_rows
        if owners is not None:
            owners = dataclasses.replace(owners, alone=self.plan.regime == "alone")
        loader = DataLoader(task.rows, collate_fn=task.batch_of)
        options = vars(settings.telemetry).items()
        # Telemetry reads what is released, with noise, in a process that has all of it.
        reads = settings.telemetry.on and not (settings.privacy.clip_only or settings.distributed.is_sharded)
        self.private = PrivateRun(
            self.plan,
            probes,
            optimizer,
            Source(loader, owners, training.micro_batch_size, task.length_at),
            mechanism=mechanism,
            steps=self.total,
            delta=settings.privacy.delta,
            has_target=settings.privacy.target_epsilon is not None,
            randomness=start.randomness,
            ledger=start.folder,
            attempt=start.number,
            progress=start.progress,
            denoising=None if denoising.method == "none" else Denoising(**dataclasses.asdict(denoising)),
            telemetry={name: value for name, value in options if name != "on" and value is not None} if reads else None,
        )
        self._restore()
        self._count_releases()

    def _described(self, mechanism: Mechanism) -> dict[str, Any]:
        task, privacy, start = self.task, self.settings.privacy, self.start
        return {
            "dprmt": __version__,
            "starts": start.number,
            "noise_multiplier": mechanism.noise_multiplier,
            "sample_rate": mechanism.sample_rate,
            "delta": privacy.delta,
            "step": describe_mechanism(mechanism),
            "norms": privacy.norms.kind,
            "noise_is_secret": start.randomness.is_secret and bool(start.former.get("noise_is_secret", True)),
            "secure": start.randomness.secure,
            "samples": task.size,
            "unit_of_privacy": task.unit,
            "labels": None if task.class_names is None else list(task.class_names),
            "processes": start.processes,
            "trainable_parameters": sum(value.numel() for value in self.parameters.values()),
            "score_release": next((one.as_dict() for one in wanted_releases(self.settings)), None),
            "replay": start.former.get("replay", privacy.replay),
            "private": {"data": None if start.folder is None else task.digest()},
        } | no_privacy(mechanism)

    def _check_same(self) -> None:
        # ε over all starts is computed for one mechanism, so every recorded step must have it.
        if not (former := self.start.former):
            return
        for key in ("noise_multiplier", "step", "samples", "labels", "score_release"):
            if other := differences(former.get(key), self.record[key], key):
                allowed = f"as at the run's first start ({other})"
                raise ParameterError("data, model and version of dprmt", str(self.start.folder), allowed)
        if former.get("private", {}).get("data") not in (None, self.record["private"]["data"]):
            raise TrainingStateError("the training items or their order have changed since the run's first start")

    @property
    def noised(self) -> torch.optim.Optimizer:
        """The optimizer that adds the noise, around the one that moves, for what is attached in between."""
        return self.private._inner.optimizer

    def epsilon(self, steps: int | None = None) -> float:
        """Return an upper bound of ε after a number of steps; exactly, for all charged steps, by default."""
        if steps is None:
            return self.private._spent.after(self.private.steps_charged, exactly=True)
        return self.private._spent.after(steps)

    def stop(self) -> None:
        """End the run before the next step is charged; for observers."""
        self.stopped = True

    def evaluate(self) -> dict[str, Any]:
        """Compute the scores after the finished steps, once."""
        if self._scored != self.private.steps_taken:
            training = self.model.training
            self.scores, self._scored = self.task.score(), self.private.steps_taken
            self.model.train(training)
        return self.scores

    def release(self) -> dict[str, Any]:
        """Compute the scores after the last step to be recorded and shown; with ``evaluation.private_noise`` they get
        noise and count towards ε.
        """
        scores, folder = self.evaluate(), self.start.folder
        releases, rows = wanted_releases(self.settings), self.task.scored_rows
        if not releases:
            return scores
        assert folder is not None  # only runs in folders ask for it
        assert rows is not None  # as was checked at the beginning
        generator = self.start.randomness.generator("score")
        found = in_first(lambda: release_score(folder, scores["accuracy"], rows, releases[0], generator))
        self._count_releases()
        return from_first(found) or {}

    def _count_releases(self) -> None:
        has_score = self.start.folder is not None and (self.start.folder / SCORE).exists()
        self.private.releases = from_first(wanted_releases(self.settings) if has_score else ())

    def steps(self) -> Generator[StepRecord, None, None]:
        """Run the remaining steps, one for each item of the iterator.

        Yields
        ------
        StepRecord
            After the optimizer has moved and the observers have seen it.
        """
        every, private, record = self.settings.training.checkpoint_every, self.private, None
        with ExitStack() as stack:
            for observer in self.observers:
                observer.start(self)
                stack.callback(observer.end, self)
            if not self.start.randomness.is_secret:
                self._say("Anyone who knows the noise seed can remove the noise: this run is not private.")
            for sentence in no_privacy(private.mechanism).values():
                self._say(sentence)
            batches = stack.enter_context(closing(iter(private)))  # with their progress bar
            for step in range(private.steps_taken + 1, self.total + 1):
                for observer in self.observers:
                    observer.before_step(self, step)
                if self._is_stopped():
                    break
                if not private.steps_left:
                    self._say(f"ends at step {step - 1}: steps lost to interruptions used up the rest of the target ε")
                    break
                record = self._one_step(step, next(batches))
                if record is None:
                    break
                if self.start.folder is not None and not rank():
                    append_line(self.start.folder / METRICS, record.entry() | said_of_every_step(private.mechanism))
                for observer in self.observers:
                    observer.after_step(self, record)
                if step % every == 0 or step == self.total:
                    self._checkpoint()
                yield record
            if record is not None and private.steps_taken == self.total:
                next(batches, None)  # there is none, and the bar is full
            self._checkpoint()

    def _is_stopped(self) -> bool:
        self.stopped = from_first(self.stopped)
        return self.stopped

    def _one_step(self, step: int, batch: PrivateBatch) -> StepRecord | None:
        started = time.perf_counter()
        settings, private, size = self.settings, self.private, batch.size
        rate = settings.optimizer.learning_rate
        if settings.optimizer.schedule == "linear":  # of the step alone: a resumed run continues it
            rate *= (self.total - step + 1) / self.total
        for group in private.optimizer.param_groups:
            group["lr"] = rate
        losses = 0.0
        try:
            for part in private.micro_batches(batch):
                losses += float(self.task.accumulate(private, part).double().sum())
            if self.start.processes > 1:
                losses = sum_of_all(losses)
            for observer in self.observers:
                observer.measured(self, step)
            if self._is_stopped():
                return None
            private.finish()
        finally:
            private.discard()  # of a step that was not taken
        every = settings.evaluation.every
        found: dict[str, Any] = {"loss": losses / size if size else None, "batch_size": size}
        scored = every is not None and (step % every == 0 or step == self.total)
        scores = self.evaluate() if scored else None
        if scored and settings.evaluation.private_noise is not None:
            found["evaluation"], scores = scores, None
        report = None if private.denoising is None else private.denoising.last_report
        counts = {} if report is None else {"denoised_layers": len(report.replaced), "matrices": len(report.layers)}
        has_folder = self.start.folder is not None
        return StepRecord(
            step=step,
            attempt=self.start.number,
            epsilon=from_first(self.epsilon(private.steps_charged) if has_folder else math.nan),
            learning_rate=rate,
            noisy_gradient_norm=self._norm,
            denoising=counts,
            telemetry=private.telemetry.last if private.telemetry is not None else {},
            evaluation=scores,
            private=found | {"seconds": time.perf_counter() - started},
        )

    def _look(self, *_: object) -> None:
        # Reads noisy gradients as they pass: they are released, so that this costs no privacy.
        released = map(released_gradient, self.parameters.values())
        squares = [squared_norm(gradient) for gradient in released if gradient is not None]
        self._norm = math.sqrt(float(sum(squares))) if squares else math.nan

    def _checkpoint(self) -> None:
        folder, sharded = self.start.folder, self.settings.distributed.is_sharded
        if folder is None or (rank() and not sharded):
            return
        state = self.private.state_dict(secret=not self.start.randomness.is_secret)
        if self.private.steps_taken == self.total:
            state.pop("epoch", None)  # nobody goes on with its draws
        save_checkpoint(folder, state)

    def _restore(self) -> None:
        # All processes continue from the first one's checkpoint; where parameters are shards each reads its own rows,
        # whoever wrote them.
        if (folder := self.start.folder) is None:
            return
        lazily = self.settings.distributed.is_sharded
        state = from_first(in_first(lambda: load_checkpoint(folder, lazily=lazily)))
        if state is None:
            return
        state["parameters"] = {
            name: like(value, self.parameters.get(name)) for name, value in state["parameters"].items()
        }
        state["optimizer"] = optimizer_state_like(state["optimizer"], self.private.optimizer)
        self.private.load_state_dict(state)

    def _say(self, text: str) -> None:
        if self.start.progress and not rank():
            print(text, file=sys.stderr)


@contextmanager
def run_in_memory(
    model: torch.nn.Module,
    task: Task,
    settings: Settings,
    *,
    noise_seed: int | None = None,
    tokens: int | None = None,
    observers: Sequence[Observer] = (),
) -> Iterator[Run]:
    """Run the loop without a folder: steps are recorded in memory, and the run cannot be resumed.

    Parameters
    ----------
    model, task, settings, noise_seed, tokens, observers
        As for `train_task`.

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
    start = Start(fresh_randomness(noise_seed, 1, settings.privacy.secure))
    run = Run(model, task, settings, start, tokens=tokens)
    try:
        run.observers = list(observers)
        yield run
    finally:
        run.private.close()
