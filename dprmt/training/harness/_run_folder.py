"""The folder of a run: what lies where, who may write in it, and how it is read back."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import IO, Any

import torch
from safetensors.torch import load_model as load_weights
from safetensors.torch import save_file
from safetensors.torch import save_model as save_weights

from dprmt._files import (
    LEFTOVERS,
    lock,
    open_in_place,
    parse_json,
    parse_toml,
    read_lines,
    strict_json,
    write_whole,
)
from dprmt._validation import ParameterError, differences
from dprmt.training.models import LoadedModel, load_model
from dprmt.training.models._trainable import adapter_of, load_adapter, save_adapter
from dprmt.training.recipes import Settings, load_recipe
from dprmt.training.recipes._fields import read_section

CONFIG, RUN, METRICS, SUMMARY, MODEL = "config.toml", "run.json", "metrics.jsonl", "summary.json", "model"
_LOCK, _WEIGHTS = "lock", "model.safetensors"


class RunFolder:
    """A folder that one process at a time writes to, with the recipe ``config`` of its run.

    A folder is made, or taken, by :meth:`begin` alone, once the recipe is known to work.
    """

    def __init__(self, path: str | os.PathLike[str], *, resume: bool, config: Settings) -> None:
        if os.fspath(path) == "":  # which would be the current folder
            raise ParameterError("out", "", "the name of a folder")
        self.path, self._config, self._resumes = Path(path), config, resume
        self._lock: IO[str] | None = None
        self._check()
        if resume:
            self._hold()

    def begin(self, record: dict[str, Any]) -> None:
        """Make it the folder of a run, with its record for ``run.json``."""
        if not self._resumes:
            self._hold()
            self._check()
            write_whole(self.path / CONFIG, self._config.to_toml())
        write_whole(self.path / RUN, strict_json(record, indent=1) + "\n")

    def _check(self) -> None:
        near = next(place for place in (self.path, *self.path.absolute().parents) if place.exists())
        if not near.is_dir() or not os.access(near, os.W_OK):
            raise ParameterError("out", str(self.path), f"a folder that can be written to ({near})")
        config, found = self.path / CONFIG, list(self.path.iterdir()) if near == self.path else []
        if self._resumes and not config.exists():
            raise ParameterError("resume", str(self.path), "given only for the folder of a run that was started")
        if not self._resumes and not all(file.name == _LOCK or file.match(LEFTOVERS) for file in found):
            raise ParameterError("out", str(self.path), "a new or empty folder; --resume continues the run in a folder")
        links = [file.name for file in found if file.is_symlink()]
        if links:
            raise ParameterError("out", str(self.path), f"a folder without links in it, such as {links[0]}")
        if self._resumes:
            first: Settings | None = None
            with contextlib.suppress(OSError, ValueError):  # defaults for options that an older version did not have
                first = read_section(type(self._config), parse_toml(config.read_bytes()))
            if first != self._config:
                other = "see its config.toml" if first is None else differences(first.to_dict(), self._config.to_dict())
                raise ParameterError("recipe", str(self.path), f"the recipe the run was started with ({other})")

    def _hold(self) -> None:
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            self._lock = os.fdopen(open_in_place(self.path / _LOCK, os.O_RDWR), "r+", encoding="utf-8")
        except OSError as error:
            raise ParameterError("out", str(self.path), f"a folder that can be written to ({error.strerror})") from None
        try:
            lock(self._lock)
        except OSError:
            self.close()
            raise ParameterError("out", str(self.path), "a folder in which no other process is training") from None
        for leftover in self.path.glob(LEFTOVERS):
            leftover.unlink()

    def close(self) -> None:
        """Let others in."""
        if self._lock is not None:
            self._lock.close()


def read_metrics(folder: str | os.PathLike[str]) -> list[dict[str, Any]]:
    """Read one entry per step of a run, from the last start that did the step.

    Parameters
    ----------
    folder : path
        Run folder.

    Returns
    -------
    list of dict
        Entries by step, none if nothing was written; the keys are in ``docs/reference/run_folder.md``. Lines that were
        cut short are skipped.

    Formal guarantees
    -----------------
    As for :func:`dprmt.training.harness.train`: entries under ``"private"`` are private. The run's ε covers the rest,
    except scores, which depend on the data that they were measured on.

    Examples
    --------
    Step 2 was repeated after an interruption:

    >>> import json, tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     for attempt, step in ((1, 1), (1, 2), (2, 2), (2, 3)):
    ...         with Path(folder, "metrics.jsonl").open("a") as file:
    ...             print(json.dumps({"step": step, "attempt": attempt}), file=file)
    ...     [(entry["step"], entry["attempt"]) for entry in read_metrics(folder)]
    [(1, 1), (2, 2), (3, 2)]
    """
    by_step: dict[int, dict[str, Any]] = {}
    for entry in read_lines(Path(folder) / METRICS):
        if type(entry.get("step")) is int:
            by_step[entry["step"]] = entry
    return [by_step[step] for step in sorted(by_step)]


def read_summary(folder: str | os.PathLike[str]) -> dict[str, Any]:
    """Summary that a finished run wrote at its end.

    Parameters
    ----------
    folder : path
        A run folder.

    Returns
    -------
    dict
        See ``docs/reference/run_folder.md``.

    Raises
    ------
    ParameterError
        If there is no finished run.

    Formal guarantees
    -----------------
    The ε in it is what :func:`dprmt.training.harness.train` guarantees if ``noise_is_secret`` is true; the scores are
    about the data that they were measured on.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = Path(folder, "summary.json").write_text('{"steps": 30, "epsilon": 6.69, "delta": 1e-05}')
    ...     read_summary(folder)["epsilon"]
    6.69
    >>> read_summary("nowhere")
    Traceback (most recent call last):
    ...
    dprmt._validation.ParameterError: folder must be the folder of a finished run, whose summary.json can be ...
    """
    summary = read_document(Path(folder) / SUMMARY)
    if not summary:
        raise ParameterError("folder", str(folder), f"the folder of a finished run, whose {SUMMARY} can be read")
    return summary


def read_document(file: Path) -> dict[str, Any]:
    """Read a JSON object; empty if there is no file, or no object in it."""
    with contextlib.suppress(OSError, ValueError):
        if isinstance(document := parse_json(file.read_bytes()), dict):
            return document
    return {}


def read_run(path: Path) -> dict[str, Any]:
    """Read ``run.json``; empty if there is none."""
    file = path / RUN
    document = read_document(file)
    known = isinstance(document.get("starts"), int) and isinstance(document.get("noise_multiplier"), int | float)
    if file.exists() and not known:
        raise ParameterError("resume", str(file), "given for a run whose record can be read")
    return document


def steps_seen(path: Path) -> int:
    """Count the steps in metrics and summary: each of them was recorded."""
    steps, charged = len(read_lines(path / METRICS)), read_document(path / SUMMARY).get("charged")
    return max(steps, charged) if isinstance(charged, int) else steps


def save_trained(loaded: LoadedModel, folder: Path, weights: dict[str, torch.Tensor] | None = None) -> None:
    """Write a model: its adapters with PEFT, or all its weights, and the tokenizer.

    ``weights``: all of a model that has only a part of each itself.
    """
    folder.mkdir(exist_ok=True)
    if adapter_of(loaded.model) is not None:
        save_adapter(loaded.model, folder)
    else:
        if weights is None:
            save_weights(loaded.model, str(folder / _WEIGHTS))
        else:
            save_file(weights, folder / _WEIGHTS)
        loaded.model.config.to_json_file(folder / "config.json")
    loaded.tokenizer.save_pretrained(str(folder))


def load_trained(run: str | os.PathLike[str]) -> LoadedModel:
    """Return the model that a finished run ended with.

    Parameters
    ----------
    run : path
        A run folder. The pretrained weights that its recipe names must still be there; the data need not.

    Returns
    -------
    LoadedModel
        In evaluation mode.

    Raises
    ------
    ParameterError
        If it is not the folder of a finished run.

    Formal guarantees
    -----------------
    The weights are what :func:`dprmt.training.harness.train` released: private to the ε and δ of the run's summary.
    Whatever is done with them costs no more.

    Examples
    --------
    >>> import tempfile
    >>> from dprmt.training.harness import train
    >>> few = {"data.limit": 30, "training.batch_size": 10, "training.steps": 2, "model.tokenizer": "bytes"}
    >>> recipe = load_recipe("qwen3-tiny-docstrings").with_changes(few)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = train(recipe, folder)
    ...     load_trained(folder).model.training
    False
    """
    path = Path(run)
    if not (path / SUMMARY).exists():  # written after the model
        raise ParameterError("run", str(run), "the folder of a finished run")
    recipe = load_recipe(path / CONFIG)
    labels = read_run(path)["labels"]
    loaded = load_model(recipe.model, labels=None if labels is None else len(labels), seed=recipe.training.seed)
    if adapter_of(loaded.model) is not None:
        load_adapter(loaded.model, path / MODEL)
    else:
        load_weights(loaded.model, str(path / MODEL / _WEIGHTS))
    loaded.model.eval()
    return loaded
