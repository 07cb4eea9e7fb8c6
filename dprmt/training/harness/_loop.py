"""The loop: draw, clip, charge, noise, denoise, move, look on."""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Generator, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import torch

from dprmt._validation import ParameterError
from dprmt.training.clipping import ShardedStep
from dprmt.training.harness._allocation import AllocatedBatches
from dprmt.training.harness._checkpoint import load_checkpoint, save_checkpoint
from dprmt.training.harness._observer import Observer, StepRecord, listeners
from dprmt.training.harness._prepare import Prepared
from dprmt.training.harness._private_score import charged_releases, release_score, wanted_releases
from dprmt.training.harness._released import ReleasedGradients
from dprmt.training.harness._sampling import poisson_batches
from dprmt.training.harness._shard_files import check_shared, in_memory
from dprmt.training.harness._sharding import like, optimizer_state_like
from dprmt.training.private_run._clip_only import named_relation, no_privacy
from dprmt.training.private_run._ledger import (
    PrivacyLedger,
    SpentEpsilon,
    mechanism_digest,
    spent_epsilon,
    whole_epochs,
)
from dprmt.training.private_run._processes import from_first, in_first, most_in_any
from dprmt.training.private_run._randomness import Randomness

_MOMENTS = ("before_step", "measured", "after_step", "before_checkpoint")


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
    rank, processes : int
        Rank of this process, and number of processes.
    repeatable : bool
        Whether the next start continues the generators of noise and sampling from the checkpoint, so that a resumed
        run equals an uninterrupted one. It raises an error for a secret seed, whose state must not be written.

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
    counts as a whole (see `AllocatedBatches`). With a target ε, no more steps are recorded than it was computed for.
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
        rank: int = 0,
        processes: int = 1,
        repeatable: bool = False,
    ) -> None:
        if repeatable and randomness.is_secret:
            raise ParameterError("repeatable", True, "False without a noise seed")
        self._generators = {"noise": prepared.noise_generator, "sampling": randomness.generator("sampling")}
        self._repeatable = repeatable
        self.prepared, self.randomness, self._folder = prepared, randomness, folder
        self.attempt, self.rank, self.processes = attempt, rank, processes
        settings, mechanism = prepared.settings, prepared.mechanism
        self._ledger = None
        if folder is not None:
            digest = mechanism_digest(mechanism, settings.privacy.delta)
            self._ledger = in_first(lambda: PrivacyLedger(folder, digest, named_relation(mechanism)))
        self.charged = from_first(0 if self._ledger is None else self._ledger.charged)
        self.total, self.stopped = settings.training.steps, False
        self.observers: list[Observer] = []
        self.released = ReleasedGradients(
            prepared.parameters, settings.training.spectra_layers, settings.training.spectra_every
        )
        prepared.attach_telemetry()
        prepared.attach_denoising(self.released)
        self.scores: dict[str, Any] = {}
        self.weights: Path | None = None  # a file of them at the end, where no process has the whole model
        self._scored: int | None = None  # the step after which the scores were taken
        self._draws: AllocatedBatches | None = None
        self._saved_draws: dict[str, Any] | None = None
        self.done = self._restore()
        self._next = 0  # steps charged once the one under way is
        self._spent = self._spending()
        # With a target, σ was chosen for so many steps: a repeated step takes the place of a later one.
        targeted = settings.privacy.target_epsilon is not None
        self._most = whole_epochs(self.total, mechanism.steps_per_epoch) if targeted else math.inf

    def epsilon(self) -> float:
        """Return an upper bound of ε for all charged steps, exactly for their number."""
        return self._spent.after(self.charged, exactly=True)

    def epsilon_after(self, steps: int) -> float:
        """Return an upper bound of ε for a number of steps."""
        return self._spent.after(steps)

    def _spending(self) -> SpentEpsilon:
        settings = self.prepared.settings
        releases = from_first(in_first(lambda: charged_releases(self._folder, settings))) or ()
        return spent_epsilon(self.prepared.mechanism, settings.privacy.delta, self.total, releases)

    def stop(self) -> None:
        """End the run before the next step is charged; for observers."""
        self.stopped = True

    def evaluate(self) -> dict[str, Any]:
        """Compute the scores after the finished steps, once."""
        if self._scored != self.done:
            self.scores, self._scored = self.prepared.task.score(), self.done
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
        self._spent = self._spending()
        return from_first(found) or {}

    def steps(self) -> Generator[StepRecord, None, None]:
        """Run the remaining steps, one for each item of the iterator.

        Yields
        ------
        StepRecord
            After the optimizer has moved and the observers have seen it.
        """
        every = self.prepared.settings.training.checkpoint_every
        with self._watched():
            batches = self._batches()
            for step in range(self.done + 1, self.total + 1):
                for listener in self._hear["before_step"]:
                    listener(self, step)
                if self.processes > 1:
                    self.stopped = from_first(self.stopped)
                if self.stopped:
                    break
                # An epoch of random allocation that was given up after an interruption is charged with the next step.
                self._next = 1 + (self.charged if self._draws is None else self._draws.charged)
                if self._next > self._most:
                    self._say(f"ends at step {step - 1}: steps lost to interruptions used up the rest of the target ε")
                    break
                record = self._one_step(step, next(batches))
                if record is None:
                    break
                for listener in self._hear["after_step"]:
                    listener(self, record)
                if step % every == 0 or step == self.total:
                    self._checkpoint()
                yield record
            self._checkpoint()

    @contextmanager
    def _watched(self) -> Iterator[None]:
        with ExitStack() as stack:
            for observer in self.observers:
                observer.start(self)
                stack.callback(observer.end, self)
            self._hear = {moment: listeners(self.observers, moment) for moment in _MOMENTS}
            if not self.randomness.is_secret:
                self._say("The noise seed is known: this run has no privacy towards whoever knows it.")
            for sentence in no_privacy(self.prepared.mechanism).values():
                self._say(f"{sentence[0].upper()}{sentence[1:]}.")
            yield

    def _batches(self) -> Iterator[list[int]]:
        mechanism, size, left = self.prepared.mechanism, self.prepared.task.size, self.total - self.done
        if mechanism.steps_per_epoch is None:
            return poisson_batches(size, mechanism.sample_rate, left, self._generators["sampling"])
        self._draws = AllocatedBatches(
            size, mechanism.steps_per_epoch, self.randomness, self.charged, self._saved_draws
        )
        return itertools.islice(self._draws, left)

    def _one_step(self, step: int, batch: list[int]) -> StepRecord | None:
        started = time.perf_counter()
        settings, private = self.prepared.settings, self.prepared.private
        rate = settings.optimizer.learning_rate
        rate *= learning_rate_factor(settings.optimizer.schedule, step, self.total)
        for group in self.prepared.inner_optimizer.param_groups:
            group["lr"] = rate
        charged = False
        try:
            loss = self._accumulate(step, batch)
            for listener in self._hear["measured"]:
                listener(self, step)
            if self.processes > 1:
                self.stopped = from_first(self.stopped)
            if self.stopped:
                return None
            epsilon, charged = self._charge(step), True
        finally:
            if not charged:
                private.optimizer.forget()  # the sum, which was neither charged nor used
        self.released.step = step
        private.step()
        self.done = step
        every = settings.evaluation.every
        scored = every is not None and (step % every == 0 or step == self.total)
        scores = self.evaluate() if scored else None
        exact = settings.evaluation.private_noise is None
        return StepRecord(
            step=step,
            attempt=self.attempt,
            epsilon=epsilon,
            learning_rate=rate,
            noisy_gradient_norm=self.released.norm,
            denoising=self.released.denoising,
            telemetry=self.prepared.telemetry.last if self.prepared.telemetry is not None else {},
            seconds=time.perf_counter() - started,
            loss=loss,
            batch_size=len(batch),
            evaluation=scores if exact else None,
            private_evaluation=None if exact else scores,
        )

    def _accumulate(self, step: int, batch: Sequence[int]) -> float | None:
        # Mean loss of the logical batch over all processes; None if Poisson sampling drew no sample.
        task, private = self.prepared.task, self.prepared.private
        total = torch.zeros((), dtype=torch.float64)
        share = batch[self.rank :: self.processes]  # of the same draw, so that one process and several do the same
        pieces = task.pieces(share, self.prepared.settings.training.micro_batch_size)
        # With a sharded model passes are all processes' work, and who has fewer pieces takes part with nobody's.
        most = most_in_any(len(pieces)) if isinstance(private, ShardedStep) else len(pieces)
        for piece in pieces:
            total += task.accumulate(private, piece, step).double().sum().cpu()
        for _ in range(most - len(pieces)):
            with private.standing_in():  # type: ignore[attr-defined]
                task.accumulate(private, [0], step)
        if self.processes > 1:
            torch.distributed.all_reduce(total)
        return float(total) / len(batch) if batch else None

    def _charge(self, step: int) -> float:
        # ε after the step.
        epsilon = math.nan
        if self._ledger is not None:
            epsilon = self._spent.after(self._next)
            self._ledger.charge(self.attempt, step, epsilon, self._next)
        if self._draws is not None:
            self._draws.was_charged()
        self.charged = self._next
        if self.processes > 1:
            epsilon = from_first(epsilon)  # so none of them goes on before the charge is on the disk
        return epsilon

    def _checkpoint(self) -> None:
        for listener in self._hear["before_checkpoint"]:
            listener(self)
        is_sharded = self.prepared.settings.distributed.is_sharded
        if self._folder is None or (self.rank and not is_sharded):
            return
        state: dict[str, Any] = {
            "step": self.done,
            "parameters": {name: value.detach() for name, value in self.prepared.parameters.items()},
            "optimizer": self.prepared.inner_optimizer.state_dict(),
        }
        if self.prepared.telemetry is not None:
            state["telemetry"] = self.prepared.telemetry.state_dict()
        if self._draws is not None and self.done < self.total:
            state["allocation"] = self._draws.for_checkpoint()
        if self._repeatable:
            state["generators"] = {name: generator.get_state() for name, generator in self._generators.items()}
        save_checkpoint(self._folder, state)

    def _restore(self) -> int:
        # Number of steps that the parameters have seen. All processes continue from the first one's checkpoint; where
        # parameters are shards, each process reads its rows, whichever process wrote them.
        folder, parameters = self._folder, self.prepared.parameters
        lazily = self.prepared.settings.distributed.is_sharded
        if folder is not None and lazily and self.processes > 1:
            check_shared(folder)
        state = None if folder is None else from_first(in_first(lambda: load_checkpoint(folder, lazily=lazily)))
        if state is None:
            return 0
        saved = state["parameters"]
        if {name: value.shape for name, value in parameters.items()} != {n: v.shape for n, v in saved.items()}:
            raise ParameterError("resume", str(folder), "given for a run of the same model: its parameters differ")
        with torch.no_grad():
            for name, value in parameters.items():
                value.copy_(like(saved[name], value))
        inner = self.prepared.inner_optimizer
        inner.load_state_dict(optimizer_state_like(state["optimizer"], inner))
        if self.prepared.telemetry is not None and "telemetry" in state:
            self.prepared.telemetry.load_state_dict(state["telemetry"])
        self._saved_draws = in_memory(state.get("allocation"))
        for name, generator_state in state.get("generators", {}).items() if self._repeatable else ():
            self._generators[name].set_state(generator_state)
        return int(state["step"])

    def _say(self, text: str) -> None:
        for observer in self.observers:
            observer.note(self, text)


def learning_rate_factor(schedule: str, step: int, steps: int) -> float:
    """Share of the peak learning rate at a step, by that alone: a resumed run continues it."""
    return 1.0 if schedule == "constant" else (steps - step + 1) / steps
