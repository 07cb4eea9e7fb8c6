"""One run of a study in a folder of its own, with data, model and frozen layers kept from run to run."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from denoising._frozen import FrozenPrefix
from denoising._order import INNER_PRODUCTS, Job
from denoising._studies import Study
from dprmt._files import append_line
from dprmt.training.data import TaskData, load_data, per_sample_losses
from dprmt.training.denoising import DenoisingEvaluation, PrivateDataWarning
from dprmt.training.evaluation import evaluate_classification
from dprmt.training.harness import Observer, Task, train_task
from dprmt.training.models import load_model, load_tokenizer


class Trainer:
    """Trains the runs of one study.

    Parameters
    ----------
    study : Study
        What.
    runs, data : Path
        Where the runs are kept, and where the files of the data sets are.
    """

    def __init__(self, study: Study, runs: Path, data: Path) -> None:
        self._study, self._runs, self._files = study, runs, data
        recipe = study.at("none", 1.0, 0, data)
        self._tokenizer = load_tokenizer(recipe.model)
        self._data = load_data(recipe.data, self._tokenizer, recipe.model.task)
        self._seed: int | None = None
        self._known: dict[tuple[int, ...], torch.Tensor] = {}

    def run(self, job: Job) -> bool:
        """Do what is left of a run, and say whether it is finished; a signal ends it between two steps."""
        folder = job.folder(self._runs)
        if (folder / "summary.json").exists():
            return True
        recipe = self._study.at(job.method, job.rate, job.seed, self._files)
        if job.seed != self._seed:
            self._load(recipe)
        for name, parameter in self._model.named_parameters():
            if name in self._start:
                parameter.data.copy_(self._start[name])
        gate = job.role == "paper" and job.seed == 0
        result = train_task(
            self._model,
            self._task,
            recipe.settings,
            folder,
            resume=(folder / "config.toml").exists(),
            noise_seed=job.noise_seed,
            repeatable=True,
            tokens=recipe.data.max_tokens,
            observers=[InnerProducts(folder / INNER_PRODUCTS)] if gate else [],
        )
        return result.finished

    def _load(self, recipe: Any) -> None:
        labels = None if self._data.labels is None else len(self._data.labels)
        seed = recipe.training.seed
        loaded = load_model(recipe.model, labels=labels, seed=seed, tokenizer=self._tokenizer)
        self._model, self._seed = loaded.model, seed
        frozen = self._study.frozen_layers
        prefix = FrozenPrefix(loaded.model, frozen, self._known) if frozen else None
        self._start = {name: p.detach().clone() for name, p in loaded.model.named_parameters() if p.requires_grad}
        self._task = StudyTask(loaded.model, self._data, prefix, self._study.rows)


class StudyTask(Task):
    """The texts of a recipe.

    Parameters
    ----------
    model : Module
        What is trained.
    data : TaskData
        On what.
    prefix : FrozenPrefix or None
        Of the model.
    rows : int
        Of the validation set that are scored.
    """

    def __init__(self, model: torch.nn.Module, data: TaskData, prefix: FrozenPrefix | None, rows: int) -> None:
        self._model, self._data, self._prefix, self._rows = model, data, prefix, rows
        self.size, self.class_names = len(data.train), data.labels
        self._lengths = [len(data.train[i]["input_ids"]) for i in range(self.size)]
        self._scored = [data.validation[i] for i in range(min(rows, len(data.validation)))]
        self._remember(self._scored)

    def accumulate(self, private: Any, positions: Sequence[int], step: int) -> torch.Tensor:
        """See `Task`."""
        items = [self._data.train[position] for position in positions]
        self._remember(items)
        batch = self._data.collate(items)
        samples = batch.pop("sample_id")
        private.model.train()
        losses = per_sample_losses(private.model, batch)
        private.accumulate(losses, samples=samples, step=step)
        return losses.detach()

    def pieces(self, batch: Sequence[int], largest: int) -> list[Sequence[int]]:
        """See `Task`; texts of similar length together."""
        return super().pieces(sorted(batch, key=lambda i: self._lengths[i]), largest)

    def score(self) -> dict[str, Any]:
        """Loss, and a classifier's accuracy."""
        if self._data.labels is not None:
            return {**evaluate_classification(self._model, self._data, batch_size=16, limit=self._rows)}
        with torch.no_grad():
            losses = torch.cat([self._losses(self._scored[i : i + 4]) for i in range(0, len(self._scored), 4)])
        return {"loss": float(losses.double().mean()), "samples": float(len(losses))}

    def _losses(self, items: Sequence[dict[str, Any]]) -> torch.Tensor:
        batch = self._data.collate(list(items))
        del batch["sample_id"]
        return per_sample_losses(self._model, batch)

    def _remember(self, items: Sequence[dict[str, Any]]) -> None:
        if self._prefix is not None:
            self._prefix.remember(items)


class InnerProducts(Observer):
    """Writes the clean gradient's inner products with the noisy and the denoised one, of matrices: **private**.

    Parameters
    ----------
    file : Path
        A line per step.
    """

    def __init__(self, file: Path) -> None:
        self._file, self._step = file, 0

    def start(self, run: Any) -> None:
        """Look at the denoiser."""
        step = run.prepared.denoising
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", PrivateDataWarning)
            self._evaluation = DenoisingEvaluation(step)
        self._options = step.options
        step.observe(self, self._take)

    def measured(self, run: Any, step: int) -> None:
        """Remember which step it is."""
        self._step = step

    def _take(self, noisy: Any, denoised: Any, sigma: float) -> None:
        clean = self._evaluation.private_clean_gradients()
        names = [name for name, value in noisy.items() if value.ndim == 2 and not _excluded(name, self._options)]
        line: dict[str, Any] = {"step": self._step}
        for kind, gradients in (("clean", clean), ("noisy", noisy), ("denoised", denoised)):
            line[kind] = float(sum((gradients[name].double() * clean[name].double()).sum() for name in names))
        line["replaced"] = sum(denoised[name] is not noisy[name] for name in names)
        line["matrices"] = len(names)
        append_line(self._file, line)


def _excluded(name: str, options: Any) -> bool:
    import fnmatch

    return any(fnmatch.fnmatchcase(name, pattern) for pattern in options.exclude)
