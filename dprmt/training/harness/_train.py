"""Runs in a folder: open it, prepare, go through the loop, and write down what came out."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import torch

from dprmt import __version__
from dprmt._files import strict_json, write_whole
from dprmt._validation import ParameterError, TrainingStateError
from dprmt.training.harness._costs import with_norms
from dprmt.training.harness._events import Events
from dprmt.training.harness._guard import check_parameters_moved, snapshot
from dprmt.training.harness._interrupts import Interrupts
from dprmt.training.harness._loop import Run
from dprmt.training.harness._norms_said import epsilon_of_exact_norms, norms_sentence
from dprmt.training.harness._observer import MetricsFile, Observer, SpectraFile
from dprmt.training.harness._prepare import Prepared, prepare
from dprmt.training.harness._privacy_card import write_card
from dprmt.training.harness._private_score import charged_releases, wanted_releases
from dprmt.training.harness._progress import ProgressBar
from dprmt.training.harness._recipe_task import RecipeTask, check_draws_kept, load, prepare_recipe, usable_device
from dprmt.training.harness._run_folder import MODEL, RUN, SUMMARY, WEIGHTS, RunFolder
from dprmt.training.harness._run_record import NOT_REPLAYED, other_packages, read_run, steps_seen
from dprmt.training.harness._shard_files import write_whole_tensors
from dprmt.training.harness._sharding import check_spread
from dprmt.training.harness._task import Task
from dprmt.training.harness._trained import save_trained
from dprmt.training.harness._training_result import TrainingResult
from dprmt.training.private_run._clip_only import named_relation, no_privacy
from dprmt.training.private_run._ledger import describe_mechanism
from dprmt.training.private_run._processes import from_first, in_first, process_group
from dprmt.training.private_run._randomness import Randomness, fresh_randomness
from dprmt.training.recipes import Recipe, Settings

_MOVED_AFTER = 10  # steps after which a parameter that has not moved since the first start stops the run


def train(
    recipe: Recipe,
    out: str | os.PathLike[str],
    *,
    resume: bool = False,
    noise_seed: int | None = None,
    repeatable: bool = False,
    device: str | torch.device | None = None,
    show_progress: bool = False,
    tensorboard: bool = False,
) -> TrainingResult:
    """Train a recipe and record everything in a run folder.

    The folder has recipe, record, steps, metrics, spectra and checkpoint, and at the end summary, model and privacy
    report. See ``docs/reference/run_folder.md``. ``privacy.clip_only`` switches privacy off.

    Parameters
    ----------
    recipe : Recipe
        From :func:`dprmt.training.recipes.load_recipe`.
    out : path
        The run folder: new, empty, or of a run to continue.
    resume : bool
        Whether to continue the run in ``out`` from its last checkpoint.
    noise_seed : int, optional
        Makes noise, Poisson sampling and probes repeatable, for studies and tests. Anyone who knows it can remove the
        noise.
    repeatable : bool
        Whether, with a noise seed, a resumed run continues the generators from the checkpoint, so that it equals an
        uninterrupted one. Lost steps count again, so pass σ instead of a target ε. Not with LoRA's dropout.
    device : str, optional
        By default a GPU if there is one.
    show_progress : bool
        Whether to draw a progress bar.
    tensorboard : bool
        Whether to write TensorBoard events too (needs the package ``tensorboard``).

    Returns
    -------
    TrainingResult
        Also if a signal stopped the run.

    Raises
    ------
    ParameterError
        If the recipe, the folder, or an option cannot be used, before the first step.
    SilentParameterError
        If a trainable parameter gets no gradient, or does not move.

    Privacy
    -------
    Holds if: ``noise_seed`` is None, and the checkpoint of a run with random allocation stays as secret as the data
    until the run is finished.

    Covers: the released parameters after any number of starts and stops, for :class:`dprmt.accounting.ZeroOut`
    neighbours and the ε that the result and the files state:

    * batches come from Poisson sampling with the exact rate of ``run.json``, or from random allocation, and
      `dprmt.training.clipping` clips, within its limits. Every epoch of random allocation that was begun counts as a
      whole;
    * a step is recorded durably before its noisy gradient is used, and steps lost in a crash count, too;
    * with a target ε no more steps are recorded than it was computed for;
    * sums are divided by the expected batch size.

    With ``evaluation.private_noise`` the accuracy after the last step is a further release. The ε then holds for a
    person with at most one item in the training set and one scored row.

    Does not cover: entries marked ``"private"`` in ``metrics.jsonl``, and scores, which depend on validation or test
    data. The size of the training set is public.

    Examples
    --------
    A recipe of the package, on a few of its texts:

    >>> import tempfile
    >>> from dprmt.training.recipes import load_recipe
    >>> few = {"data.limit": 30, "training.batch_size": 10, "training.steps": 2, "model.tokenizer": "bytes"}
    >>> recipe = load_recipe("qwen3-tiny-docstrings").with_changes(few)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     result = train(recipe, folder)
    ...     Path(folder, "model", "model.safetensors").exists()
    True
    >>> result.finished, result.steps, round(result.epsilon, 1), sorted(result.evaluation)
    (True, 2, 6.7, ['accuracy', 'loss', 'samples'])
    """
    place = usable_device(device)
    check_draws_kept(recipe, repeatable=repeatable)

    def make(randomness: Randomness, **options: Any) -> Prepared:
        loaded, data = load(recipe)
        former = from_first(in_first(lambda: read_run(Path(out))) or {}).get("norms")
        chosen = with_norms(recipe, loaded, data, place, processes=options["processes"], former=former)
        return prepare_recipe(chosen, loaded, data, place, randomness, **options)

    def finish(run: Run) -> None:
        assert isinstance(run.prepared.task, RecipeTask)
        save_trained(run.prepared.task.loaded, Path(out) / MODEL, run.weights)

    return _in_folder(
        recipe,
        out,
        make,
        finish,
        resume=resume,
        noise_seed=noise_seed,
        show_progress=show_progress,
        observers=[Events(Path(out))] if tensorboard else [],
        repeatable=repeatable,
    )


def train_task(
    model: torch.nn.Module,
    task: Task,
    settings: Settings,
    out: str | os.PathLike[str],
    *,
    resume: bool = False,
    noise_seed: int | None = None,
    repeatable: bool = False,
    tokens: int | None = None,
    show_progress: bool = False,
    observers: Sequence[Observer] = (),
) -> TrainingResult:
    """Train any model on any task, in place, with a run folder as in `train` except for ``model/``.

    Parameters
    ----------
    model : Module
        Model to train, on its device and in training mode. Its layers must be supported by `dprmt.make_private`, or by
        the task's private step.
    task : Task
        Task to train on. Each loss depends on one sample alone: for a text, the mean over its tokens. Means over the
        batch's tokens (``num_items_in_batch``) or over padding, and division by a statistic of the batch, raise an
        error. This cannot be detected if the task's ``accumulate`` passes losses as a tensor; ``run.json`` then
        records it (``replay``).
    settings : Settings
        Settings of the run.
    out, resume, noise_seed, repeatable, show_progress
        As for `train`.
    tokens : int, optional
        Length of the longest sample, if it is known without looking at the data.
    observers : sequence of Observer
        Observers in the first process, in addition to those that write the folder.

    Returns
    -------
    TrainingResult
        Also if a signal or an observer stopped the run.

    Raises
    ------
    ParameterError
        As for `train`.

    Formal guarantees
    -----------------
    As for `train`, with the task's samples instead of the recipe's, and with the limits of its private step, if it has
    one.

    Examples
    --------
    >>> import tempfile
    >>> from dprmt.training.harness import ItemTask
    >>> def losses(model, labels):
    ...     return torch.nn.functional.cross_entropy(model(torch.eye(4)[labels]), labels, reduction="none")
    >>> settings = Settings(
    ...     privacy={"noise_multiplier": 1.0, "delta": 1e-5},
    ...     optimizer={"name": "adam", "learning_rate": 0.1},
    ...     training={"batch_size": 10, "steps": 2},
    ... )
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     task = ItemTask([0, 1, 2] * 10, torch.tensor, losses)
    ...     result = train_task(torch.nn.Linear(4, 3), task, settings, Path(folder, "run"))
    >>> result.finished, round(result.epsilon, 1)
    (True, 3.9)
    """
    return _in_folder(
        settings,
        out,
        partial(prepare, model, task, settings, tokens=tokens),
        lambda run: None,
        resume=resume,
        noise_seed=noise_seed,
        show_progress=show_progress,
        observers=observers,
        repeatable=repeatable,
    )


def _in_folder(
    config: Recipe | Settings,
    out: str | os.PathLike[str],
    make: Callable[..., Prepared],
    finish: Callable[[Run], None],
    *,
    resume: bool,
    noise_seed: int | None,
    show_progress: bool,
    observers: Sequence[Observer],
    repeatable: bool = False,
) -> TrainingResult:
    with process_group() as (rank, processes):
        folder = in_first(lambda: RunFolder(out, resume=resume, config=config.to_toml()))
        try:
            start = _FolderRun(Path(out), folder, rank, processes, repeatable)
            settings = config if isinstance(config, Settings) else config.settings
            check_spread(settings, processes, repeatable=repeatable, goes_on=resume)
            start.draw(noise_seed, config.privacy.secure)
            return start.to_the_end(make, finish, [*observers, *([ProgressBar()] if show_progress else [])])
        finally:
            if folder is not None:
                folder.close()


class _FolderRun:
    """One start of a run in a folder: what was there before, the loop, and what is there afterwards."""

    def __init__(self, path: Path, folder: RunFolder | None, rank: int, processes: int, repeatable: bool) -> None:
        self._path, self._folder, self._repeatable = path, folder, repeatable
        self._rank, self._processes = rank, processes
        self._former: dict[str, Any] = from_first(in_first(lambda: read_run(path)) or {})
        self._attempt = int(self._former.get("starts", 0)) + 1

    def draw(self, noise_seed: int | None, secure: bool) -> None:
        """Draw the randomness of this start, the same in all processes."""
        self._randomness = from_first(fresh_randomness(noise_seed, 1 if self._repeatable else self._attempt, secure))

    def to_the_end(
        self, make: Callable[..., Prepared], finish: Callable[[Run], None], observers: Sequence[Observer]
    ) -> TrainingResult:
        sigma = self._former.get("noise_multiplier")
        prepared = make(self._randomness, processes=self._processes, noise_multiplier=sigma)
        try:
            document = self._described(prepared)
            if self._former:
                self._check_same(document, prepared.settings)
            before = snapshot(prepared.model)  # before a checkpoint is restored
            run = Run(
                prepared,
                self._randomness,
                self._path,
                attempt=self._attempt,
                rank=self._rank,
                processes=self._processes,
                repeatable=self._repeatable,
            )
            self._check_charged(run)
            if self._folder is not None:
                self._folder.write_config()
                write_whole(self._path / RUN, strict_json(document, indent=1) + "\n")
                spectra = [] if prepared.settings.training.spectra_every is None else [SpectraFile(self._path)]
                run.observers = [MetricsFile(self._path), *spectra, *observers]
            self._go_through(run, before, document)
            if not run.stopped:
                if prepared.settings.distributed.is_sharded:
                    run.weights = self._path / WEIGHTS
                    write_whole_tensors(run.weights, prepared.model.state_dict())
                if run.done:  # else all steps that were charged are lost
                    check_parameters_moved(prepared.model, before)
                scores = run.release()
                if self._folder is not None:
                    self._finished(run, finish, document, scores)
            else:
                scores = {} if wanted_releases(prepared.settings) else run.scores
            spent = (run.epsilon(), scores, *_of_norms(run, self._path), named_relation(prepared.mechanism))
            return TrainingResult(self._path, not run.stopped, run.done, run.charged, *spent)
        finally:
            prepared.close()
            if self._folder is not None:
                (self._path / WEIGHTS).unlink(missing_ok=True)

    def _go_through(self, run: Run, before: dict[str, torch.Tensor], document: dict[str, Any]) -> None:
        # The first SIGINT or SIGTERM ends the run between two steps.
        looked_at = max(min(_MOVED_AFTER, run.total), run.done + 1)
        with Interrupts() as interrupts, closing(run.steps()) as steps:
            for record in steps:
                if record.step == looked_at:
                    check_parameters_moved(run.prepared.model, before)
                    self._say_unless_replayed(run.prepared, document)
                if interrupts.asked and run.done < run.total:
                    run.stop()
        if run.done:
            self._say_unless_replayed(run.prepared, document)

    def _described(self, prepared: Prepared) -> dict[str, Any]:
        mechanism, task = prepared.mechanism, prepared.task
        return {
            "dprmt": __version__,
            "starts": self._attempt,
            "noise_multiplier": mechanism.noise_multiplier,
            "sample_rate": mechanism.sample_rate,
            "delta": prepared.settings.privacy.delta,
            "step": describe_mechanism(mechanism),
            "norms": prepared.settings.privacy.norms.kind,
            "noise_is_secret": self._randomness.is_secret and bool(self._former.get("noise_is_secret", True)),
            "secure": self._randomness.secure,
            "samples": task.size,
            "unit_of_privacy": task.unit,
            "labels": None if task.class_names is None else list(task.class_names),
            "processes": self._processes,
            "trainable_parameters": sum(value.numel() for value in prepared.parameters.values()),
            "score_release": next((one.as_dict() for one in wanted_releases(prepared.settings)), None),
            "replay": self._former.get("replay", prepared.settings.privacy.replay),
            "private": {"data": task.digest()},
        } | {**no_privacy(mechanism), **other_packages(prepared.settings)}

    def _say_unless_replayed(self, prepared: Prepared, document: dict[str, Any]) -> None:
        # Whether losses are a function of the batch is the task's code, which runs first in the first step.
        if not getattr(prepared.private, "replayable", False) and document["replay"] != NOT_REPLAYED:
            document["replay"] = NOT_REPLAYED
            if self._folder is not None:
                write_whole(self._path / RUN, strict_json(document, indent=1) + "\n")

    def _check_same(self, document: dict[str, Any], settings: Settings) -> None:
        # ε over all starts is computed for one mechanism, so every recorded step must have it.
        former = self._former
        for key in ("step", "samples", "labels", "score_release"):
            if former.get(key) != document[key]:
                allowed = f"as at the run's first start ({key}: {former.get(key)})"
                raise ParameterError("data, model and version of dprmt", document[key], allowed)
        wanted = settings.privacy.noise_multiplier
        if wanted is not None and former.get("noise_multiplier") != wanted:
            allowed = f"{former.get('noise_multiplier')}, as {RUN} has it"
            raise ParameterError("privacy.noise_multiplier", wanted, allowed)
        if former.get("private", {}).get("data") not in (None, document["private"]["data"]):
            raise TrainingStateError("other training items than those of the run's first start, or in another order")

    def _check_charged(self, run: Run) -> None:
        # Steps that the parameters have seen were charged before: if they are gone from the ledger, ε is unknown.
        # Every line of the metrics counts, and the summary has their number.
        seen = max(run.done, from_first(steps_seen(self._path)))
        if run.charged < seen or (run.charged and not self._former):
            what = f"{run.charged} steps charged, {seen} done" if self._former else "no run.json"
            raise TrainingStateError(f"{self._path} cannot go on: {what}, so that what was charged is unknown")

    def _finished(
        self, run: Run, finish: Callable[[Run], None], document: dict[str, Any], scores: dict[str, Any]
    ) -> None:
        finish(run)
        norms, exact = _of_norms(run, self._path)
        summary = {
            "steps": run.done,
            "charged": run.charged,
            "epsilon": run.epsilon(),
            "epsilon_of_exact_norms": exact,
            "delta": run.prepared.settings.privacy.delta,
            "neighbours": named_relation(run.prepared.mechanism),
            "norms": norms,
            "noise_is_secret": document["noise_is_secret"],
            "replay": document["replay"],
            "looks": getattr(run.prepared.private, "replays", 0),
            "evaluation": scores,
        } | no_privacy(run.prepared.mechanism)
        write_whole(self._path / SUMMARY, strict_json(summary, indent=1) + "\n")
        if run.charged and not no_privacy(run.prepared.mechanism):
            write_card(self._path)


def _of_norms(run: Run, folder: Path) -> tuple[str, float | None]:
    prepared = run.prepared
    privacy = prepared.settings.privacy
    norms = norms_sentence(privacy.norms.kind, prepared.private.record, prepared.units)
    releases = charged_releases(folder, prepared.settings)
    return norms, epsilon_of_exact_norms(prepared.mechanism, run.charged, privacy.delta, run.total, releases)
