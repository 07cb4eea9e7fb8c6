"""Runs in a folder: open it, prepare, go through the loop, and write down what came out."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any, cast

import torch

from dprmt._files import strict_json, write_whole
from dprmt._validation import TrainingStateError
from dprmt.training.harness._checkpoint import whole_weights
from dprmt.training.harness._privacy_cost import norms_sentence, read_card, wanted_releases, write_card
from dprmt.training.harness._recipe import RecipeTask, usable_device
from dprmt.training.harness._run import Observer, Run, Start
from dprmt.training.harness._run_folder import MODEL, SUMMARY, RunFolder, read_run, steps_seen
from dprmt.training.harness._task import Task
from dprmt.training.private_run._ledger import charged_steps, named_relation, no_privacy
from dprmt.training.private_run._randomness import fresh_randomness, from_first, in_first, process_group
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

    def make(start: Start) -> Run:
        return RecipeTask(recipe, place).run(start, start.former.get("norms"))

    return _in_folder(recipe, out, make, resume, noise_seed, (), show_progress)


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
    make = partial(Run, model, task, settings, tokens=tokens)
    return _in_folder(settings, out, make, resume, noise_seed, observers)


def _in_folder(
    config: Settings,
    out: str | os.PathLike[str],
    make: Callable[[Start], Run],
    resume: bool,
    noise_seed: int | None,
    observers: Sequence[Observer],
    show_progress: bool = False,
) -> TrainingResult:
    path = Path(out)
    with process_group(), ExitStack() as stack:
        folder = in_first(lambda: RunFolder(out, resume=resume, config=config))
        if folder is not None:
            stack.callback(folder.close)
        randomness = from_first(fresh_randomness(noise_seed, 1, config.privacy.secure))  # the same in all processes
        former = from_first(in_first(lambda: read_run(path)) or {})
        run = make(Start(randomness, path, former, show_progress))
        stack.callback(run.private.close)
        # Steps that the parameters have seen were charged before: if they are gone from the ledger, ε is unknown.
        # Every line of the metrics was charged too, and the summary says how many were.
        charged, seen = from_first((charged_steps(path), max(run.private.steps_charged, steps_seen(path))))
        if charged < seen or (charged and not former):
            what = f"{charged} steps charged, {seen} done" if former else "no run.json"
            raise TrainingStateError(f"{path} cannot go on: {what}, so that what was charged is unknown")

        in_first(lambda: cast(RunFolder, folder).begin(run.record))
        if folder is not None:
            run.observers = [*observers]
        with interrupts() as asked, closing(run.steps()) as steps:
            for _ in steps:  # the first SIGINT or SIGTERM ends the run between two steps
                if asked and run.private.steps_taken < run.total:
                    run.stop()
        if run.stopped:
            return _result(run, {} if wanted_releases(run.settings) else run.scores)
        weights = whole_weights(run.model) if run.settings.distributed.is_sharded else None
        result = _result(run, run.release())
        if folder is not None:
            run.task.save(path / MODEL, weights)
            _write_summary(run, result)
        return result


def _result(run: Run, scores: dict[str, Any]) -> TrainingResult:
    assert run.start.folder is not None  # it was made with one
    return TrainingResult(
        folder=run.start.folder,
        finished=not run.stopped,
        steps=run.private.steps_taken,
        charged=run.private.steps_charged,
        epsilon=run.epsilon(),
        evaluation=scores,
        norms=norms_sentence(run.plan),
        neighbours=named_relation(run.private.mechanism),
    )


def _write_summary(run: Run, result: TrainingResult) -> None:
    without = no_privacy(run.private.mechanism)
    summary = {name: value for name, value in vars(result).items() if name not in ("folder", "finished")}
    summary |= {name: run.record[name] for name in ("delta", "noise_is_secret", "replay")} | without
    write_whole(result.folder / SUMMARY, strict_json(summary, indent=1) + "\n")
    if result.charged and not without:
        write_card(result.folder, read_card(result.folder))


@contextmanager
def interrupts() -> Iterator[list[int]]:
    """Yield a list that gets the first SIGINT or SIGTERM; a second SIGINT interrupts immediately.

    Outside the main thread, where Python delivers no signals, it does nothing.
    """
    asked: list[int] = []

    def note(number: int, frame: FrameType | None) -> None:
        del frame
        if asked and number == signal.SIGINT:
            raise KeyboardInterrupt
        asked.append(number)

    in_main = threading.current_thread() is threading.main_thread()
    former = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM) if in_main}
    try:
        yield asked
    finally:
        for number, handler in former.items():
            if handler is not None:  # None: not set from Python
                signal.signal(number, handler)
