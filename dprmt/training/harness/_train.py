"""The training loop: draw, clip, charge, noise, denoise, move, write down."""

from __future__ import annotations

import json
import math
import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from dprmt import __version__
from dprmt._files import strict_json, write_whole
from dprmt._validation import ParameterError
from dprmt.training.data import per_sample_losses
from dprmt.training.harness._checkpoint import load_checkpoint, save_checkpoint
from dprmt.training.harness._events import Events
from dprmt.training.harness._guard import check_parameters_moved, snapshot
from dprmt.training.harness._interrupts import Interrupts
from dprmt.training.harness._ledger import PrivacyLedger, SpentEpsilon, charged_steps, describe_mechanism
from dprmt.training.harness._processes import from_first, process_group, summed, wait_for_all
from dprmt.training.harness._progress import RunProgress
from dprmt.training.harness._randomness import fresh_randomness
from dprmt.training.harness._released import ReleasedGradients
from dprmt.training.harness._run_folder import (
    MODEL,
    RUN,
    SPECTRA,
    SUMMARY,
    RunFolder,
    save_spectra,
)
from dprmt.training.harness._sampling import micro_batches, poisson_batches
from dprmt.training.harness._schedule import learning_rate_factor, set_learning_rate
from dprmt.training.harness._settings import build, load, usable_device
from dprmt.training.harness._trained import save_trained
from dprmt.training.recipes import Recipe

_MOVED_AFTER = 10  # steps after which a parameter that has not moved stops the run


@dataclass(frozen=True)
class TrainingResult:
    """What a call of :func:`train` ended with.

    Attributes
    ----------
    folder : Path
        The run folder.
    finished : bool
        False if the run was interrupted; ``resume=True`` continues it.
    steps : int
        Steps that the parameters have seen.
    charged : int
        Steps that the accountant was charged, over all starts; at least ``steps``.
    epsilon : float
        Upper bound of ε for all charged steps.
    evaluation : dict
        Scores after the last step; empty if there is nothing to evaluate on.
    """

    folder: Path
    finished: bool
    steps: int
    charged: int
    epsilon: float
    evaluation: dict[str, Any]


def train(
    recipe: Recipe,
    out: str | os.PathLike[str],
    *,
    resume: bool = False,
    noise_seed: int | None = None,
    device: str | torch.device | None = None,
    show_progress: bool = False,
    tensorboard: bool = False,
) -> TrainingResult:
    r"""Train as a recipe says, writing everything down in a run folder.

    The folder holds ``config.toml`` (the recipe), ``run.json`` (mechanism, noise multiplier, starts),
    ``privacy.jsonl`` (every charged step), ``metrics.jsonl``, ``spectra.npz``, ``checkpoint/``, and at the end
    ``summary.json`` and ``model/``. See ``docs/training.md`` for their contents.

    Parameters
    ----------
    recipe : Recipe
        From :func:`dprmt.training.recipes.load_recipe`.
    out : path
        The run folder: new or empty, or that of a run to continue.
    resume : bool
        Continue the run in ``out`` from its last checkpoint.
    noise_seed : int, optional
        Makes noise, Poisson coins and probes repeatable. For studies and tests: whoever knows it can remove the noise.
    device : str, optional
        A GPU if there is one, by default.
    show_progress : bool
        Whether to draw a progress bar.
    tensorboard : bool
        Whether to write TensorBoard events into the folder too (needs the package ``tensorboard``).

    Returns
    -------
    TrainingResult
        Also when a signal stopped the run.

    Raises
    ------
    ParameterError
        If the recipe, the folder, or an option cannot be used, before the first step.
    SilentParameterError
        If a trainable parameter gets no gradient, or does not move.

    Formal guarantees
    -----------------
    The released parameters, after any number of starts and stops, are (ε, δ)-differentially private with respect to
    adding or removing one sample of the training set, for the ε that the result, ``privacy.jsonl`` and
    ``summary.json`` state, if ``noise_seed`` is None:

    * every logical step is the mechanism that ``run.json`` names (its clipping is `dprmt.training.clipping`'s, with
      that guarantee and its limits), sampled by Poisson sampling with the stated rate, which is the exact probability
      of the coins that are thrown;
    * a step is charged, durably, before its noisy gradient is used. Steps that a crash threw away are charged as
      well, and repeated with fresh noise;
    * with a target ε no more steps are charged than it was computed for: a resumed run ends as many steps earlier as
      were thrown away;
    * the sums are divided by the expected batch size.

    Not covered, and marked ``"private"`` in ``metrics.jsonl``: the training loss and the realised batch size. Scores
    on validation or test data are about those data. The size of the training set is taken to be public.

    Examples
    --------
    A recipe of the package, with a table of one's own:

    >>> import tempfile
    >>> from dprmt.training.recipes import load_recipe
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     file = Path(folder, "films.csv")
    ...     _ = file.write_text("text,label\n" + "a fine film,good\na dull film,bad\n" * 15)
    ...     table = {"source": "files", "train": [str(file)], "validation": [str(file)], "inputs": ["text"]}
    ...     recipe = load_recipe("qwen3-tiny-docstrings").with_changes(
    ...         {
    ...             "data": {**table, "target": "label", "max_tokens": 32},
    ...             "model.tokenizer": "bytes",
    ...             "privacy.target_epsilon": None,
    ...             "privacy.noise_multiplier": 1.0,
    ...             "training.batch_size": 10,
    ...             "training.steps": 2,
    ...         }
    ...     )
    ...     result = train(recipe, Path(folder, "run"))
    ...     (result.folder / "model" / "model.safetensors").exists()
    True
    >>> result.finished, result.steps, round(result.epsilon, 1), sorted(result.evaluation)
    (True, 2, 3.9, ['accuracy', 'loss', 'samples'])
    """
    with process_group() as (rank, processes):
        folder = _open_folder(recipe, out, resume, rank)
        events = None
        try:
            events = Events(Path(out)) if tensorboard and rank == 0 else None
            run = _Run(recipe, Path(out), folder, rank, processes, noise_seed, device, events)
            return run.to_the_end(show_progress)
        finally:
            if folder is not None:
                folder.close()
            if events is not None:
                events.close()


class _Run:
    """One start of a run: set up, then :meth:`to_the_end`."""

    def __init__(
        self,
        recipe: Recipe,
        path: Path,
        folder: RunFolder | None,
        rank: int,
        processes: int,
        noise_seed: int | None,
        device: str | torch.device | None,
        events: Events | None,
    ) -> None:
        self.events = events
        self.recipe, self.path, self.folder = recipe, path, folder
        self.rank, self.processes = rank, processes
        self.device = usable_device(device)
        self.document = from_first(_read_run(path))
        self.attempt = int(self.document.get("starts", 0)) + 1
        self.randomness = from_first(fresh_randomness(noise_seed, self.attempt))
        sigma = self.document.get("noise_multiplier")
        self.settings = build(recipe, *load(recipe), self.device, self.randomness, processes, sigma)
        self._check_mechanism()
        self.released = self._watch()
        self.scores: dict[str, Any] = {}
        self.scored: int | None = None  # the step after which the scores were taken
        self.before = snapshot(self.settings.loaded.model)
        self.done = self._restore()
        self._check_charged()
        self.spent = SpentEpsilon(self.settings.mechanism, recipe.privacy.delta, recipe.training.steps)
        self._write_run()
        self.ledger = PrivacyLedger(path) if rank == 0 else None

    def _watch(self) -> ReleasedGradients:
        training, inner = self.recipe.training, self.settings.inner_optimizer
        released = ReleasedGradients(self.settings.parameters, training.spectra_layers, training.spectra_every)
        self.settings.attach_denoising(released)
        released.after(inner)
        return released

    def _check_mechanism(self) -> None:
        # ε of all starts together is computed for one mechanism: it has to be that of every step charged so far.
        settings, former = self.settings, self.document
        if not former:
            return
        now = {
            "step": describe_mechanism(settings.mechanism),
            "samples": len(settings.data.train),
            "labels": list(settings.data.labels) if settings.data.labels is not None else None,
        }
        for key, value in now.items():
            if former.get(key) != value:
                allowed = f"as at the run's first start ({key}: {former.get(key)})"
                raise ParameterError("data, model and version of dprmt", value, allowed)

    def _check_charged(self) -> None:
        # Steps that the parameters have seen were charged before: if they are gone from the ledger, ε is unknown.
        charged = from_first(charged_steps(self.path))
        if charged < self.done or (charged and not self.document):
            what = f"{charged} steps charged, {self.done} done" if self.document else "no run.json"
            raise ParameterError("resume", f"{self.path}: {what}", "given for a run whose record is complete")

    def _restore(self) -> int:
        # Number of steps that the parameters have seen. All processes continue from the first one's checkpoint.
        state = from_first(load_checkpoint(self.path) if self.rank == 0 else None)
        if state is None:
            return 0
        parameters, saved = self.settings.parameters, state["parameters"]
        if {name: value.shape for name, value in parameters.items()} != {n: v.shape for n, v in saved.items()}:
            raise ParameterError("resume", str(self.path), "given for a run of the same model: its parameters differ")
        with torch.no_grad():
            for name, value in parameters.items():
                value.copy_(saved[name])
        self.settings.inner_optimizer.load_state_dict(state["optimizer"])
        if self.settings.denoising_memory is not None:
            self.settings.denoising_memory.load_state_dict(state["denoising"])
        if (self.path / SPECTRA).exists():
            with np.load(self.path / SPECTRA) as spectra:
                self.released.restore(dict(spectra), state["step"])
        return int(state["step"])

    def _write_run(self) -> None:
        if self.folder is None:
            return
        settings, privacy = self.settings, self.recipe.privacy
        self.folder.write_config()
        self.document = {
            "dprmt": __version__,
            "starts": self.attempt,
            "noise_multiplier": settings.mechanism.noise_multiplier,
            "sample_rate": settings.mechanism.sample_rate,
            "delta": privacy.delta,
            "step": describe_mechanism(settings.mechanism),
            "noise_is_secret": self.randomness.is_secret and bool(self.document.get("noise_is_secret", True)),
            "samples": len(settings.data.train),
            "labels": settings.data.labels,
            "processes": self.processes,
            "trainable_parameters": sum(value.numel() for value in settings.parameters.values()),
        }
        write_whole(self.path / RUN, strict_json(self.document, indent=1) + "\n")

    def to_the_end(self, show_progress: bool) -> TrainingResult:
        total = self.recipe.training.steps
        batches = poisson_batches(
            len(self.settings.data.train),
            self.settings.mechanism.sample_rate,
            total - self.done,
            self.randomness.generator("sampling"),
        )
        show = show_progress and self.rank == 0
        with Interrupts() as interrupts, RunProgress(total, self.done, show) as progress:
            if not self.randomness.is_secret:
                progress.note("The noise seed is known: this run has no privacy towards whoever knows it.")
            for step, batch in enumerate(batches, start=self.done + 1):
                if from_first(interrupts.asked):
                    self._checkpoint()
                    return self._result(finished=False)
                if not self._may_charge():
                    progress.note(
                        f"ends at step {step - 1}: steps lost to interruptions used up the rest of the target ε"
                    )
                    break
                entry = self._one_step(step, batch)
                if self.folder is not None:
                    self.folder.append_metrics(entry)
                if self.events is not None:
                    self.events.write(entry)
                if step % self.recipe.training.checkpoint_every == 0 or step == total:
                    self._checkpoint()
                if step == min(_MOVED_AFTER, total):
                    self._check_moved()
                progress.update(step, entry["private"]["loss"], entry["epsilon"], entry["noisy_gradient_norm"])
        self._checkpoint()
        return self._finish()

    def _may_charge(self) -> bool:
        # With a target, σ was chosen for so many steps: a repeated step takes the place of a later one.
        charged = self.ledger.charged if self.ledger is not None else 0
        return self.recipe.privacy.target_epsilon is None or from_first(charged) < self.recipe.training.steps

    def _one_step(self, step: int, batch: list[int]) -> dict[str, Any]:
        started = time.perf_counter()
        optimizer, training = self.recipe.optimizer, self.recipe.training
        rate = optimizer.learning_rate * learning_rate_factor(optimizer.schedule, step, training.steps)
        set_learning_rate(self.settings.inner_optimizer, rate)
        loss = self._accumulate(step, batch)
        epsilon = self._charge(step)
        self.released.step = step
        self.settings.private.step()
        self.done = step
        entry: dict[str, Any] = {
            "step": step,
            "attempt": self.attempt,
            "epsilon": epsilon,
            "learning_rate": rate,
            "noisy_gradient_norm": self.released.norm,
            **self.settings.denoising_summary(),
            "seconds": time.perf_counter() - started,
            "private": {"loss": loss, "batch_size": len(batch)},
        }
        every = self.recipe.evaluation.every
        if every is not None and (step % every == 0 or step == training.steps):
            entry["evaluation"] = self._evaluate()
        return entry

    def _evaluate(self) -> dict[str, Any]:
        self.scores, self.scored = self.settings.evaluate(), self.done
        return self.scores

    def _accumulate(self, step: int, batch: list[int]) -> float | None:
        # The mean loss of the logical batch over all processes; None if Poisson sampling drew nobody.
        data, private = self.settings.data, self.settings.private
        private.model.train()
        total = torch.zeros((), dtype=torch.float64)
        for piece in micro_batches(batch, self.recipe.training.micro_batch_size, self.rank, self.processes):
            inputs = self.settings.collate([data.train[position] for position in piece])
            samples = inputs.pop("sample_id")
            losses = per_sample_losses(private.model, inputs)
            private.accumulate(losses, samples=samples, step=step)
            total += losses.detach().double().sum().cpu()
        return float(summed(total)) / len(batch) if batch else None

    def _charge(self, step: int) -> float:
        epsilon = math.nan
        if self.ledger is not None:
            epsilon = self.spent.after(self.ledger.charged + 1)
            self.ledger.charge(self.attempt, step, epsilon)
        wait_for_all()
        return epsilon

    def _check_moved(self) -> None:
        check_parameters_moved(self.settings.loaded.model, self.before)

    def _checkpoint(self) -> None:
        if self.folder is None:
            return
        state = {
            "step": self.done,
            "parameters": {name: value.detach() for name, value in self.settings.parameters.items()},
            "optimizer": self.settings.inner_optimizer.state_dict(),
        }
        if self.settings.denoising_memory is not None:
            state["denoising"] = self.settings.denoising_memory.state_dict()
        if self.released.changed:
            save_spectra(self.path / SPECTRA, self.released.spectra())
            self.released.changed = False
        save_checkpoint(self.path, state)

    def _result(self, *, finished: bool) -> TrainingResult:
        charged = from_first(self.ledger.charged if self.ledger is not None else 0)
        return TrainingResult(
            self.path, finished, self.done, charged, self.spent.after(charged, exactly=True), self.scores
        )

    def _finish(self) -> TrainingResult:
        if self.done:  # else all steps that were charged are lost
            self._check_moved()
        if self.scored != self.done:
            self._evaluate()
        result = self._result(finished=True)
        if self.folder is not None:
            save_trained(self.settings.loaded, self.path / MODEL)
            summary = {
                "steps": result.steps,
                "charged": result.charged,
                "epsilon": result.epsilon,
                "delta": self.recipe.privacy.delta,
                "noise_is_secret": self.document["noise_is_secret"],
                "evaluation": result.evaluation,
            }
            write_whole(self.path / SUMMARY, strict_json(summary, indent=1) + "\n")
        return result


def _read_run(path: Path) -> dict[str, Any]:
    file = path / RUN
    try:
        document: dict[str, Any] = json.loads(file.read_text()) if file.exists() else {}
    except (OSError, ValueError) as error:
        raise ParameterError("resume", str(file), f"given for a run whose record can be read ({error})") from None
    return document


def _open_folder(recipe: Recipe, out: str | os.PathLike[str], resume: bool, rank: int) -> RunFolder | None:
    # In the first process; what is wrong with the folder is said in all of them.
    folder, problem = None, None
    if rank == 0:
        try:
            folder = RunFolder(out, resume=resume, config=recipe.to_toml())
        except ParameterError as error:
            problem = error.name, error.value, error.allowed
    problem = from_first(problem)
    if problem is not None:
        raise ParameterError(*problem)
    return folder
