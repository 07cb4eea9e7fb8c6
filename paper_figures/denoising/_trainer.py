"""One run of a study, with data, features and model kept from run to run."""

from __future__ import annotations

import fnmatch
import json
import math
import warnings
from functools import partial
from pathlib import Path
from typing import Any

import torch

from dprmt._files import write_whole
from dprmt.training.data import load_data
from dprmt.training.denoising import DenoisingEvaluation, PrivateDataWarning
from dprmt.training.harness import Observer, Task, run_in_memory
from dprmt.training.models import load_model, load_tokenizer
from paper_figures.denoising._last_decoder import LastDecoder, states
from paper_figures.denoising._last_layer import LastLayer, features
from paper_figures.denoising._order import Job, read
from paper_figures.denoising._stored import kept
from paper_figures.denoising._studies import Study
from paper_figures.denoising._tasks import LastDecoderTask, LastLayerTask, WholeTask


class Trainer:
    """Trains the runs of one study.

    Parameters
    ----------
    study : Study
        What.
    runs, data : Path
        Where the results are kept, and where the files of the data sets are.
    """

    def __init__(self, study: Study, runs: Path, data: Path) -> None:
        self._study, self._runs, self._files = study, runs, data
        runs.mkdir(parents=True, exist_ok=True)
        recipe = study.at("none", 1.0, 0, data)
        self._tokenizer = load_tokenizer(recipe.model)
        self._data = load_data(recipe.data, self._tokenizer, recipe.model.task)
        self._seed: int | None = None
        self._sigma: float | None = None
        self._load(recipe)

    def run(self, job: Job) -> None:
        """Do a run that was not done yet, and write its file."""
        if job.file(self._runs).exists():
            return
        if (known := self._twin(job)) is not None:
            write_whole(job.file(self._runs), json.dumps({**known, **job._asdict()}) + "\n")
            return
        recipe = self._study.at(job.method, job.rate, job.seed, self._files)
        if job.seed != self._seed:
            self._load(recipe)
        for name, parameter in self._model.named_parameters():
            if parameter.requires_grad:
                parameter.data.copy_(self._start[name])
        settings = recipe.settings
        if self._sigma is not None:
            settings = settings.with_changes({"privacy.target_epsilon": None, "privacy.noise_multiplier": self._sigma})
        denoising = settings.denoising
        inner = InnerProducts() if denoising.method != "none" and denoising.on == "gradient" else Observer()
        with run_in_memory(self._model, self._task, settings, noise_seed=job.noise_seed, observers=[inner]) as run:
            self._sigma = run.prepared.mechanism.noise_multiplier
            records = list(run.steps())
        result = {
            **job._asdict(),
            "noise_multiplier": self._sigma,
            "sample_rate": run.prepared.mechanism.sample_rate,
            "target_epsilon": recipe.privacy.target_epsilon,
            "training_losses": [_finite(record.loss) for record in records],
            "evaluations": [
                {"step": r.step, **{key: _finite(value) for key, value in r.evaluation.items()}}
                for r in records
                if r.evaluation is not None
            ],
            "inner_products": getattr(inner, "steps", []),
        }
        write_whole(job.file(self._runs), json.dumps(result) + "\n")

    def _twin(self, job: Job) -> dict[str, Any] | None:
        # The same run under another role: the control, where the denoiser replaced nothing.
        twin = job._replace(role=job.method)
        known = read(twin.file(self._runs)) if twin.file(self._runs).exists() else {}
        return known if all(known.get(key) == getattr(job, key) for key in ("rate", "seed", "noise_seed")) else None

    def _load(self, recipe: Any) -> None:
        labels, seed = self._data.labels, recipe.training.seed
        options = {"labels": None if labels is None else len(labels), "seed": seed, "tokenizer": self._tokenizer}
        model = load_model(recipe.model, **options).model
        if self._seed is None and not self._study.whole:
            self._splits = self._known(model, recipe.model.task)
        self._model, self._task = self._trained(model)
        self._seed = seed
        self._start = {name: p.detach().clone() for name, p in self._model.named_parameters() if p.requires_grad}

    def _trained(self, model: torch.nn.Module) -> tuple[torch.nn.Module, Task]:
        if self._study.whole:
            return model, WholeTask(model, self._data, self._study.rows)
        if self._data.labels is None:
            end = LastDecoder(model).train()
            return end, LastDecoderTask(end, *self._splits)
        last = LastLayer(model).train()
        return last, LastLayerTask(last, *self._splits)

    def _known(self, model: torch.nn.Module, task: str) -> list[tuple[list[Any], list[Any]]]:
        # Inputs of the part that is trained, and targets: the same for every seed.
        compute = _states if task == "generation" else _tuples
        folder, splits = self._runs / "features", []
        for name, most in (("train", len(self._data.train)), ("validation", self._study.rows)):
            split = getattr(self._data, name)
            items = [split[i] for i in range(min(most, len(split)))]
            texts = [item["input_ids"] for item in items]
            known = kept(folder, name, texts, partial(compute, model))
            splits.append((known, [item["labels"] for item in items]))
        return splits


def _states(model: torch.nn.Module, texts: Any) -> list[Any]:
    return list(states(model, texts))


def _tuples(model: torch.nn.Module, texts: Any) -> list[Any]:
    return [tuple(item) for item in features(model, texts)]  # torch loads no other kind of tuple


class InnerProducts(Observer):
    """The clean gradient's inner products with itself, the noisy and the denoised one, over denoised matrices.

    They are **private**. Of a momentum there are none: it has no one clean gradient.
    """

    def __init__(self) -> None:
        self.steps: list[dict[str, float]] = []

    def start(self, run: Any) -> None:
        """Look at the denoiser."""
        step = run.prepared.denoising
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", PrivateDataWarning)
            self._evaluation = DenoisingEvaluation(step)
        self._exclude = step.options.exclude
        step.observe(self, self._take)

    def _take(self, noisy: Any, denoised: Any, sigma: float) -> None:
        clean = self._evaluation.private_clean_gradients()
        names = [name for name, value in noisy.items() if value.ndim == 2 and not self._left_alone(name)]
        replaced = sum(denoised[name] is not noisy[name] for name in names)
        line: dict[str, float] = {"matrices": len(names), "replaced": replaced}
        for kind, gradients in (("clean", clean), ("noisy", noisy), ("denoised", denoised)):
            line[kind] = float(sum((gradients[name].double() * clean[name].double()).sum() for name in names))
        self.steps.append(line)

    def _left_alone(self, name: str) -> bool:
        return any(fnmatch.fnmatchcase(name, pattern) for pattern in self._exclude)


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None
