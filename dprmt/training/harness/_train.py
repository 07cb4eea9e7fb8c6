"""Runs in a folder: open it, prepare, go through the loop, and write down what came out."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

import torch

from dprmt import __version__
from dprmt._files import strict_json, write_whole
from dprmt._validation import ParameterError, TrainingStateError
from dprmt.training.harness._loop import Run
from dprmt.training.harness._observer import Events, MetricsFile, Observer
from dprmt.training.harness._prepare import Prepared, prepare
from dprmt.training.harness._preview import with_norms
from dprmt.training.harness._privacy_cost import norms_sentence, read_card, wanted_releases, write_card
from dprmt.training.harness._recipe_task import load, prepare_recipe, usable_device
from dprmt.training.harness._run_folder import MODEL, RUN, SUMMARY, RunFolder, read_run, steps_seen
from dprmt.training.harness._shards import whole_weights
from dprmt.training.harness._task import Task
from dprmt.training.private_run._ledger import charged_steps, describe_mechanism, named_relation, no_privacy
from dprmt.training.private_run._randomness import Randomness, fresh_randomness, from_first, in_first, process_group
from dprmt.training.recipes import Recipe, Settings


@dataclass(frozen=True)
class TrainingResult:
    """Outcome of a call of :func:`train`.

    Attributes
    ----------
    folder : Path
        The run folder.
    finished : bool
        False if the run was interrupted; ``resume=True`` continues it.
    steps : int
        Steps that changed the parameters.
    charged : int
        Steps that count towards ε, over all starts; at least ``steps``.
    epsilon : float
        Upper bound on ε for all counted steps; infinite with ``privacy.clip_only``.
    evaluation : dict
        Scores after the last step; empty without evaluation data. With ``evaluation.private_noise`` it has the
        released accuracy, or nothing if a crash lost it.
    norms : str
        Norm method that was used. Layers whose exact norms are cheaper have exact norms.
    neighbours : str or None
        Neighbouring relation of the bound: "zero-out", or None with ``privacy.clip_only``.
    """

    folder: Path
    finished: bool
    steps: int
    charged: int
    epsilon: float
    evaluation: dict[str, Any]
    norms: str
    neighbours: str | None


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
        Seed that makes noise, sampling and probes repeatable. A resumed run then equals an uninterrupted one, and lost
        steps are repeated and counted again. Use it for studies and tests only, because an attacker who knows the
        seed can remove the noise.
    device : str, optional
        By default a GPU if there is one.
    show_progress : bool
        Whether to draw a progress bar.
    tensorboard : bool
        Whether to write TensorBoard events too (needs the package ``tensorboard``).

    Returns
    -------
    TrainingResult
        Result of the run, also if a signal stopped it.

    Raises
    ------
    ParameterError
        If the recipe, the folder, or an option cannot be used, or a trainable parameter gets no gradient, before the
        first step.

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

    def make(randomness: Randomness, former: Mapping[str, Any], processes: int) -> Prepared:
        loaded, data = load(recipe)
        chosen = with_norms(recipe, loaded, data, place, processes=processes, former=former.get("norms"))
        return prepare_recipe(chosen, loaded, data, place, randomness, former, processes)

    observers = [Events(Path(out))] if tensorboard else []
    return _in_folder(recipe, out, make, resume, noise_seed, observers, show_progress)


def train_task(
    model: torch.nn.Module,
    task: Task,
    settings: Settings,
    out: str | os.PathLike[str],
    *,
    resume: bool = False,
    noise_seed: int | None = None,
    tokens: int | None = None,
    observers: Sequence[Observer] = (),
) -> TrainingResult:
    """Train any model on any task, in place, with a run folder as in `train` except for ``model/``.

    Parameters
    ----------
    model : Module
        Model to train, on its device and in training mode. Its layers must be supported by `dprmt.make_private`, or by
        the task's private step.
    task : Task
        On what. Each loss is of one sample alone: of a text, the mean over its own tokens. Means over the batch's
        tokens (``num_items_in_batch``) or over padding, and anything divided by a statistic of the batch, are refused.
    settings : Settings
        How.
    out, resume, noise_seed
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
    make = partial(prepare, model, task, settings, tokens=tokens)
    return _in_folder(settings, out, make, resume, noise_seed, observers)


def _in_folder(
    config: Settings,
    out: str | os.PathLike[str],
    make: Callable[..., Prepared],
    resume: bool,
    noise_seed: int | None,
    observers: Sequence[Observer],
    show_progress: bool = False,
) -> TrainingResult:
    with process_group() as (_, processes):
        folder = in_first(lambda: RunFolder(out, resume=resume, config=config.to_toml()))
        try:
            start = _FolderRun(Path(out), folder, fresh_randomness(noise_seed, 1, config.privacy.secure))
            return start.to_the_end(make, observers, processes, show_progress)
        finally:
            if folder is not None:
                folder.close()


class _FolderRun:
    """One start of a run in a folder: what was there before, the loop, and what is there afterwards."""

    def __init__(self, path: Path, folder: RunFolder | None, randomness: Randomness) -> None:
        self._path, self._folder = path, folder
        self._randomness = from_first(randomness)  # the same in all processes
        self._former: dict[str, Any] = from_first(in_first(lambda: read_run(path)) or {})
        self._attempt = int(self._former.get("starts", 0)) + 1

    def to_the_end(
        self, make: Callable[..., Prepared], observers: Sequence[Observer], processes: int, show_progress: bool
    ) -> TrainingResult:
        prepared = make(self._randomness, self._former, processes)
        document = self._described(prepared, processes)
        self._check_same(document, prepared.settings)
        run = Run(prepared, self._randomness, self._path, attempt=self._attempt, progress=show_progress)
        try:
            self._check_charged(run)
            if self._folder is not None:
                self._folder.write_config()
                write_whole(self._path / RUN, strict_json(document, indent=1) + "\n")
                run.observers = [MetricsFile(self._path), *observers]
            with Interrupts() as interrupts, closing(run.steps()) as steps:
                for _ in steps:  # the first SIGINT or SIGTERM ends the run between two steps
                    if interrupts.asked and run.done < run.total:
                        run.stop()
            if run.stopped:
                return self._result(run, {} if wanted_releases(prepared.settings) else run.scores)
            weights = whole_weights(prepared.model) if prepared.settings.distributed.is_sharded else None
            result = self._result(run, run.release())
            if self._folder is not None:
                prepared.task.save(self._path / MODEL, weights)
                self._finished(run, result, document)
            return result
        finally:
            run.private.close()

    def _described(self, prepared: Prepared, processes: int) -> dict[str, Any]:
        mechanism, task, privacy = prepared.mechanism, prepared.task, prepared.settings.privacy
        return {
            "dprmt": __version__,
            "starts": self._attempt,
            "noise_multiplier": mechanism.noise_multiplier,
            "sample_rate": mechanism.sample_rate,
            "delta": privacy.delta,
            "step": describe_mechanism(mechanism),
            "norms": privacy.norms.kind,
            "noise_is_secret": self._randomness.is_secret and bool(self._former.get("noise_is_secret", True)),
            "secure": self._randomness.secure,
            "samples": task.size,
            "unit_of_privacy": task.unit,
            "labels": None if task.class_names is None else list(task.class_names),
            "processes": processes,
            "trainable_parameters": sum(value.numel() for value in prepared.parameters.values()),
            "score_release": next((one.as_dict() for one in wanted_releases(prepared.settings)), None),
            "replay": self._former.get("replay", privacy.replay),
            "private": {"data": task.digest()},
        } | no_privacy(mechanism)

    def _check_same(self, document: dict[str, Any], settings: Settings) -> None:
        # ε over all starts is computed for one mechanism, so every recorded step must have it.
        if not (former := self._former):
            return
        for key in ("step", "samples", "labels", "score_release"):
            if former.get(key) != document[key]:
                allowed = f"as at the run's first start ({key}: {former.get(key)})"
                raise ParameterError("data, model and version of dprmt", document[key], allowed)
        wanted = settings.privacy.noise_multiplier
        if wanted is not None and former.get("noise_multiplier") != wanted:
            allowed = f"{former.get('noise_multiplier')}, as {RUN} has it"
            raise ParameterError("privacy.noise_multiplier", wanted, allowed)
        if former.get("private", {}).get("data") not in (None, document["private"]["data"]):
            raise TrainingStateError("the training items or their order have changed since the run's first start")

    def _check_charged(self, run: Run) -> None:
        # Steps that the parameters have seen were charged before: if they are gone from the ledger, ε is unknown.
        # Every line of the metrics was charged too, and the summary says how many were.
        charged, seen = from_first((charged_steps(self._path), max(run.charged, steps_seen(self._path))))
        if charged < seen or (charged and not self._former):
            what = f"{charged} steps charged, {seen} done" if self._former else "no run.json"
            raise TrainingStateError(f"{self._path} cannot go on: {what}, so that what was charged is unknown")

    def _result(self, run: Run, scores: dict[str, Any]) -> TrainingResult:
        prepared = run.prepared
        return TrainingResult(
            folder=self._path,
            finished=not run.stopped,
            steps=run.done,
            charged=run.charged,
            epsilon=run.epsilon(),
            evaluation=scores,
            norms=norms_sentence(prepared.settings.privacy.norms.kind, prepared.plan),
            neighbours=named_relation(prepared.mechanism),
        )

    def _finished(self, run: Run, result: TrainingResult, document: dict[str, Any]) -> None:
        mechanism = run.prepared.mechanism
        summary = {name: value for name, value in vars(result).items() if name not in ("folder", "finished")}
        summary |= {name: document[name] for name in ("delta", "noise_is_secret", "replay")} | no_privacy(mechanism)
        write_whole(self._path / SUMMARY, strict_json(summary, indent=1) + "\n")
        if run.charged and not no_privacy(mechanism):
            write_card(self._path, read_card(self._path))


class Interrupts:
    """While entered, the first SIGINT or SIGTERM only sets a flag; a second SIGINT interrupts immediately.

    Outside the main thread, where Python delivers no signals, it does nothing.
    """

    _SIGNALS = (signal.SIGINT, signal.SIGTERM)

    def __init__(self) -> None:
        self.asked = False
        self._former: dict[int, object] = {}

    def __enter__(self) -> Interrupts:
        if threading.current_thread() is threading.main_thread():
            self._former = {number: signal.signal(number, self._note) for number in self._SIGNALS}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._former.items():
            if handler is not None:  # None: not set from Python
                signal.signal(number, handler)  # type: ignore[arg-type]

    def _note(self, number: int, frame: FrameType | None) -> None:
        del frame
        if self.asked and number == signal.SIGINT:
            raise KeyboardInterrupt
        self.asked = True
