"""One run of a study, with data, features and model kept from run to run."""

from __future__ import annotations

import fnmatch
import json
import math
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from denoising._last_layer import Features, LastLayer, features, padded
from denoising._order import Job
from denoising._studies import Study
from dprmt._files import write_whole
from dprmt.training.data import load_data
from dprmt.training.denoising import DenoisingEvaluation, PrivateDataWarning
from dprmt.training.harness import Observer, Task, run_in_memory
from dprmt.training.models import load_model, load_tokenizer


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

    def _load(self, recipe: Any) -> None:
        labels, seed = len(self._data.labels), recipe.training.seed
        model = load_model(recipe.model, labels=labels, seed=seed, tokenizer=self._tokenizer).model
        if self._seed is None:
            self._features = self._all_features(model)
        self._model, self._seed = LastLayer(model).train(), seed
        self._start = {name: p.detach().clone() for name, p in self._model.named_parameters() if p.requires_grad}
        train, validation = self._features
        targets = [self._data.train[i]["labels"] for i in range(len(train))]
        scored = [self._data.validation[i]["labels"] for i in range(len(validation))]
        self._task = LastLayerTask(self._model, (train, targets), (validation, scored))

    def _all_features(self, model: torch.nn.Module) -> tuple[list[Features], list[Features]]:
        # Of the frozen part, the same for every seed; written down, since they take longer than many runs.
        file = self._runs / "features.pt"
        if not file.exists():
            splits = []
            for split, limit in ((self._data.train, len(self._data.train)), (self._data.validation, self._study.rows)):
                texts = [split[i]["input_ids"] for i in range(min(limit, len(split)))]
                splits.append([tuple(item) for item in features(model, texts)])
            torch.save(splits, file.with_suffix(".part"))
            file.with_suffix(".part").replace(file)
        train, validation = torch.load(file)
        return [Features(*item) for item in train], [Features(*item) for item in validation]


class LastLayerTask(Task):
    """Texts as what goes into the last matrix.

    Parameters
    ----------
    model : LastLayer
        What is trained.
    train, validation : pair of list
        Features and labels.
    """

    def __init__(self, model: LastLayer, train: Any, validation: Any) -> None:
        self._model, self._train, self._validation = model, train, validation
        self.size = len(train[0])

    def accumulate(self, private: Any, positions: Sequence[int], step: int) -> torch.Tensor:
        """See `Task`."""
        features, labels = self._train
        batch = padded([features[i] for i in positions])
        logits = private.model(*batch)
        targets = torch.tensor([labels[i] for i in positions])
        losses = torch.nn.functional.cross_entropy(logits, targets, reduction="none")
        private.accumulate(losses, samples=positions, step=step)
        return losses.detach()

    def pieces(self, batch: Sequence[int], largest: int) -> list[Sequence[int]]:
        """See `Task`; texts of similar length together."""
        features = self._train[0]
        return super().pieces(sorted(batch, key=lambda i: len(features[i].hidden)), largest)

    def score(self) -> dict[str, Any]:
        """Mean loss and accuracy on the validation texts."""
        features, labels = self._validation
        with torch.no_grad():
            pieces = [self._model(*padded(features[i : i + 64])) for i in range(0, len(features), 64)]
        logits, targets = torch.cat(pieces), torch.tensor(labels)
        loss = torch.nn.functional.cross_entropy(logits.double(), targets)
        return {"loss": float(loss), "accuracy": float((logits.argmax(1) == targets).double().mean())}


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
        line: dict[str, float] = {"replaced": sum(denoised[name] is not noisy[name] for name in names)}
        for kind, gradients in (("clean", clean), ("noisy", noisy), ("denoised", denoised)):
            line[kind] = float(sum((gradients[name].double() * clean[name].double()).sum() for name in names))
        self.steps.append(line)

    def _left_alone(self, name: str) -> bool:
        return any(fnmatch.fnmatchcase(name, pattern) for pattern in self._exclude)


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None
