"""The loop around a private run: rates, scores, checkpoints, and what is seen of the released gradients."""

from __future__ import annotations

import dataclasses
import math
import sys
import time
import zipfile
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from dprmt._files import replacing
from dprmt.training.denoising import Denoising
from dprmt.training.denoising._options import matches
from dprmt.training.harness._checkpoint import like, load_checkpoint, optimizer_state_like, save_checkpoint
from dprmt.training.harness._observer import Observer, StepRecord
from dprmt.training.harness._prepare import Prepared, prepare
from dprmt.training.harness._privacy_cost import charged_releases, release_score, wanted_releases
from dprmt.training.harness._run_folder import SPECTRA
from dprmt.training.harness._shards import check_shared, squared_norm
from dprmt.training.harness._task import Task
from dprmt.training.optimizers import released_gradient
from dprmt.training.private_run import PrivateBatch, PrivateRun
from dprmt.training.private_run._ledger import no_privacy
from dprmt.training.private_run._randomness import Randomness, fresh_randomness, from_first, in_first, rank
from dprmt.training.recipes import Settings


class Run:
    """One start of a run; every private training of dprmt uses :meth:`steps`.

    Parameters
    ----------
    prepared : Prepared
        Model, task, settings and private step.
    randomness : Randomness
        Randomness of this start.
    folder : Path or None
        Folder for ledger and checkpoints. None keeps both in memory, for runs on public data whose parameters are not
        published; then no step computes ε, which takes time.
    attempt : int
        Number of this start.
    progress : bool
        Whether to show a bar with ε, and what else there is to say about the run, on stderr.

    Attributes
    ----------
    done : int
        Number of steps that the parameters have seen.
    total : int
        Number of steps of the whole run.
    released : ReleasedGradients
        Statistics of the noisy gradients.
    scores : dict
        The most recent scores.
    charged : int
        Number of steps recorded over all starts, at least ``done``.
    stopped : bool
        Whether an observer ended it.

    Raises
    ------
    ParameterError
        If the state in ``folder`` belongs to another model.

    Formal guarantees
    -----------------
    A logical step is recorded in ``folder`` before its noise is added and its gradient used. Batches come from a
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
        self,
        prepared: Prepared,
        randomness: Randomness,
        folder: Path | None = None,
        *,
        attempt: int = 1,
        progress: bool = False,
    ) -> None:
        self.prepared, self.randomness, self._folder, self.attempt = prepared, randomness, folder, attempt
        self.processes = dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1
        settings, wanted = prepared.settings, prepared.settings.training
        self.total, self.stopped, self._progress = wanted.steps, False, progress and not rank()
        self.observers: list[Observer] = []
        self.released = ReleasedGradients(prepared.parameters, wanted.spectra_layers, wanted.spectra_every)
        prepared.optimizer.register_step_pre_hook(partial(self.released.look, "noisy"))
        self.scores: dict[str, Any] = {}
        self._scored: int | None = None  # the step after which the scores were taken
        denoising = settings.denoising
        options = vars(settings.telemetry).items()
        denoised_before = denoising.method != "none" and settings.optimizer.name == "grape"
        # Telemetry reads what is released, with noise, in a process that has all of it.
        reads = settings.telemetry.on and not (
            settings.privacy.clip_only or settings.distributed.is_sharded or denoised_before
        )
        self.private = PrivateRun(
            prepared.plan,
            prepared.probes,
            prepared.optimizer,
            prepared.task.source(prepared.plan, wanted.micro_batch_size),
            mechanism=prepared.mechanism,
            steps=self.total,
            delta=settings.privacy.delta,
            has_target=settings.privacy.target_epsilon is not None,
            randomness=randomness,
            ledger=folder,
            attempt=attempt,
            progress=progress,
            denoising=None if denoising.method == "none" else Denoising(**dataclasses.asdict(denoising)),
            telemetry={name: value for name, value in options if name != "on" and value is not None} if reads else None,
        )
        if self.private.optimizer is not prepared.optimizer:  # the task's own plan has another one
            self.private.optimizer.register_step_pre_hook(partial(self.released.look, "noisy"))
        if wanted.spectra_every is not None:  # after all hooks that are registered already
            self.private.optimizer.register_step_pre_hook(partial(self.released.look, "denoised"))
        self._restore()
        self._spend()

    @property
    def done(self) -> int:
        """Steps that the parameters have seen."""
        return self.private.steps_taken

    @property
    def noised(self) -> torch.optim.Optimizer:
        """The optimizer that adds the noise, around the one that moves, for what is attached in between."""
        return self.private._inner.optimizer

    @property
    def charged(self) -> int:
        """Steps charged over all starts, at least ``done``."""
        return self.private.steps_charged

    def epsilon(self) -> float:
        """Return an upper bound of ε for all charged steps, exactly for their number."""
        return self.private._spent.after(self.charged, exactly=True)

    def epsilon_after(self, steps: int) -> float:
        """Return an upper bound of ε for a number of steps."""
        return self.private._spent.after(steps)

    def _spend(self) -> None:
        settings = self.prepared.settings
        self.private.releases = from_first(in_first(lambda: charged_releases(self._folder, settings)) or ())

    def stop(self) -> None:
        """End the run before the next step is charged; for observers."""
        self.stopped = True

    def evaluate(self) -> dict[str, Any]:
        """Compute the scores after the finished steps, once."""
        if self._scored != self.done:
            training = self.prepared.model.training
            self.scores, self._scored = self.prepared.task.score(), self.done
            self.prepared.model.train(training)
        return self.scores

    def release(self) -> dict[str, Any]:
        """Compute the scores after the last step to be recorded and shown; with ``evaluation.private_noise`` they get
        noise and count towards ε.
        """
        scores, folder = self.evaluate(), self._folder
        releases, rows = wanted_releases(self.prepared.settings), self.prepared.task.scored_rows
        if not releases:
            return scores
        assert folder is not None  # only runs in folders ask for it
        assert rows is not None  # as `prepare` has seen to
        generator = self.randomness.generator("score")
        found = in_first(lambda: release_score(folder, scores["accuracy"], rows, releases[0], generator))
        self._spend()
        return from_first(found) or {}

    def steps(self) -> Generator[StepRecord, None, None]:
        """Run the remaining steps, one for each item of the iterator.

        Yields
        ------
        StepRecord
            After the optimizer has moved and the observers have seen it.
        """
        every, batches = self.prepared.settings.training.checkpoint_every, None
        with ExitStack() as stack:
            for observer in self.observers:
                observer.start(self)
                stack.callback(observer.end, self)
            if not self.randomness.is_secret:
                self._say("Anyone who knows the noise seed can remove the noise: this run is not private.")
            for sentence in no_privacy(self.prepared.mechanism).values():
                self._say(sentence)
            for step in range(self.done + 1, self.total + 1):
                for observer in self.observers:
                    observer.before_step(self, step)
                if self._is_stopped():
                    break
                if not self.private.steps_left:
                    self._say(f"ends at step {step - 1}: steps lost to interruptions used up the rest of the target ε")
                    break
                batches = batches or stack.enter_context(closing(iter(self.private)))  # with their progress bar
                record = self._one_step(step, next(batches))
                if record is None:
                    break
                for observer in self.observers:
                    observer.after_step(self, record)
                if step % every == 0 or step == self.total:
                    self._checkpoint()
                yield record
            if batches is not None and self.done == self.total:
                next(batches, None)  # there is none, and the bar is full
            self._checkpoint()

    def _is_stopped(self) -> bool:
        if self.processes > 1:
            self.stopped = from_first(self.stopped)
        return self.stopped

    def _one_step(self, step: int, batch: PrivateBatch) -> StepRecord | None:
        started = time.perf_counter()
        settings, private = self.prepared.settings, self.private
        rate = settings.optimizer.learning_rate
        if settings.optimizer.schedule == "linear":  # of the step alone: a resumed run continues it
            rate *= (self.total - step + 1) / self.total
        for group in private.optimizer.param_groups:
            group["lr"] = rate
        size = batch.size
        try:
            loss = self._accumulate(batch)
            for observer in self.observers:
                observer.measured(self, step)
            if self._is_stopped():
                return None
            self.released.step = step
            private.finish()
        finally:
            private.discard()  # of a step that was not taken
        every = settings.evaluation.every
        scored = every is not None and (step % every == 0 or step == self.total)
        scores = self.evaluate() if scored else None
        exact = settings.evaluation.private_noise is None
        report = None if private.denoising is None else private.denoising.last_report
        return StepRecord(
            step=step,
            attempt=self.attempt,
            epsilon=from_first(math.nan if self._folder is None else self.epsilon_after(self.charged)),
            learning_rate=rate,
            noisy_gradient_norm=self.released.norm,
            denoising={}
            if report is None
            else {"denoised_layers": len(report.replaced), "matrices": len(report.layers)},
            telemetry=private.telemetry.last if private.telemetry is not None else {},
            seconds=time.perf_counter() - started,
            loss=loss,
            batch_size=size,
            evaluation=scores if exact else None,
            private_evaluation=None if exact else scores,
        )

    def _accumulate(self, batch: PrivateBatch) -> float | None:
        # The mean loss of the logical batch over all processes; None if it is empty.
        total = torch.zeros((), dtype=torch.float64)
        for part in self.private.micro_batches(batch):
            total += self.prepared.task.accumulate(self.private, part).double().sum().cpu()
        if self.processes > 1:
            dist.all_reduce(total)
        return float(total) / batch.size if batch.size else None

    def _checkpoint(self) -> None:
        if self._folder is None or (rank() and not self.prepared.settings.distributed.is_sharded):
            return
        self.released.save(self._folder)
        state = self.private.state_dict(secret=not self.randomness.is_secret)
        if self.done == self.total:
            state.pop("epoch", None)  # nobody goes on with its draws
        save_checkpoint(self._folder, state)

    def _restore(self) -> None:
        # All processes continue from the first one's checkpoint; where parameters are shards each reads its own rows,
        # whoever wrote them.
        if (folder := self._folder) is None:
            return
        lazily = self.prepared.settings.distributed.is_sharded
        if lazily and self.processes > 1:
            check_shared(folder)
        state = from_first(in_first(lambda: load_checkpoint(folder, lazily=lazily)))
        if state is None:
            return
        trained = self.prepared.parameters
        state["parameters"] = {name: like(value, trained.get(name)) for name, value in state["parameters"].items()}
        state["optimizer"] = optimizer_state_like(state["optimizer"], self.private.optimizer)
        self.private.load_state_dict(state)
        self.released.load(folder, self.done)

    def _say(self, text: str) -> None:
        if self._progress:
            print(text, file=sys.stderr)


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
    run = Run(prepare(model, task, settings, drawn, tokens=tokens), drawn)
    try:
        run.observers = list(observers)
        yield run
    finally:
        run.private.close()


class ReleasedGradients:
    """Reads noisy gradients as they pass; all it sees was released already, so that it costs no privacy.

    Singular values of the matrices that ``patterns`` name are kept at steps that are multiples of ``every``.
    """

    def __init__(
        self, parameters: Mapping[str, torch.nn.Parameter], patterns: Sequence[str], every: int | None
    ) -> None:
        self._parameters, self._every = dict(parameters), every
        self._chosen = [name for name, value in parameters.items() if value.ndim == 2 and matches(name, patterns)]
        self.spectra: dict[str, np.ndarray] = {}  # in decreasing order, by ``stepNNNNNN/noisy|denoised/parameter``
        self.norm = math.nan  # of the last noisy gradient over all trainable parameters, before denoising
        self.step = 0
        self.changed = False  # whether there are singular values that were not there when it was last set to False

    def look(self, kind: str, *_: object) -> None:
        """Take the gradients that are there for ``"noisy"`` or ``"denoised"`` ones."""
        found = {name: released_gradient(value) for name, value in self._parameters.items()}
        released = {name: value for name, value in found.items() if value is not None}
        if kind == "noisy":
            squares = [squared_norm(value) for value in released.values()]
            self.norm = math.sqrt(float(sum(squares))) if squares else math.nan
        if self._every is not None and self.step % self._every == 0:
            for name in self._chosen:
                if name in released:
                    self.changed = True
                    values = torch.linalg.svdvals(released[name].detach().float())
                    self.spectra[f"step{self.step:06d}/{kind}/{name}"] = values.cpu().numpy()

    def save(self, folder: Path) -> None:
        """Write the singular values, if there are new ones."""
        if self.changed:
            with replacing(folder / SPECTRA) as fresh:
                np.savez_compressed(fresh, **self.spectra)  # type: ignore[arg-type]  # its stub wants a flag
            self.changed = False

    def load(self, folder: Path, done: int) -> None:
        """Read those of the steps that are done; if the file is damaged, they are no reason not to go on."""
        path = folder / SPECTRA
        if not path.exists():
            return
        try:
            with path.open("rb") as file, np.load(file) as spectra:
                self.spectra = {key: value for key, value in spectra.items() if int(key[4:10]) <= done}
        except (OSError, ValueError, EOFError, zipfile.BadZipFile):
            if not rank():
                path.replace(path.with_stem(f"{path.stem}.damaged"))
