"""What the denoiser costs on docstrings with the head denoised or left alone, at the recipe's rate and at tuned ones.

The recipe's own training, of which what does not change is computed once (`UpperLayers`); frozen matrices of the upper
layers multiply in 16 bits. Each method's rate is the one with which most of the recipe's test texts come out right, on
seeds of its own; what is compared are the validation texts.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from paper_figures._pieces import Pieces
from paper_figures._reproduction import RESULTS

RECIPE = "minilm-docstrings"
FIRST_LAYER = 4
"""The lowest with an adapter."""
PLAIN, WHOLE, BODY = "DP-LoRA", "denoised", "denoised, head left alone"
METHODS: dict[str, dict[str, Any]] = {
    PLAIN: {"denoising.method": "none"},
    BODY: {"denoising.method": "paper", "denoising.exclude": ("*classifier.*",)},
    WHOLE: {"denoising.method": "paper", "denoising.exclude": ()},
}
OWN = 5e-3
"""The recipe's rate."""
RATES = (1.58e-3, OWN, 8.89e-3, 1.58e-2, 2.81e-2, 5e-2)
"""It, half a decade below, and a decade above in quarters: half a decade above it all methods were better."""
SEEDS, TUNING_SEEDS = range(5), (100,)
Runs = Mapping[str, Mapping[str, Mapping[str, float]]]
"""Scores by split, by name of the run."""


@dataclass(frozen=True)
class Job:
    """A run; noise and coins have its seed too."""

    method: str
    rate: float
    seed: int

    @property
    def name(self) -> str:
        """As a piece of the item."""
        return f"{self.method}, lr = {self.rate:g}, seed {self.seed}"


def first_jobs() -> Iterator[Job]:
    """At the recipe's rate: all three on one seed, then the head left alone on the others."""
    yield from (Job(method, OWN, SEEDS[0]) for method in (BODY, PLAIN, WHOLE))
    yield from (Job(BODY, OWN, seed) for seed in SEEDS[1:])


def tuning_jobs() -> Iterator[Job]:
    """All methods at all rates."""
    yield from (Job(method, rate, seed) for seed in TUNING_SEEDS for rate in RATES for method in METHODS)


def last_jobs(chosen: Mapping[str, float]) -> Iterator[Job]:
    """Every method at its rate on all seeds."""
    yield from (Job(method, rate, seed) for method, rate in chosen.items() for seed in SEEDS)


def accuracies(runs: Runs, jobs: Iterable[Job], split: str) -> np.ndarray | None:
    """In percent; None where a run is missing."""
    names = [job.name for job in jobs]
    if any(name not in runs for name in names):
        return None
    return 100 * np.array([runs[name][split]["accuracy"] for name in names])


def tried(runs: Runs) -> dict[str, dict[float, float]]:
    """Mean accuracy on the test texts over the tuning seeds, by method and rate, of what was measured."""
    found: dict[str, dict[float, float]] = {}
    for method in METHODS:
        for rate in RATES:
            values = accuracies(runs, (Job(method, rate, seed) for seed in TUNING_SEEDS), "test")
            if values is not None:
                found.setdefault(method, {})[rate] = float(values.mean())
    return found


def chosen(runs: Runs) -> dict[str, float]:
    """The best rate of every method, once all have been tried with all rates; the first of equal ones."""
    found = tried(runs)
    if any(len(found.get(method, {})) < len(RATES) for method in METHODS):
        return {}
    return {method: max(by_rate, key=by_rate.__getitem__) for method, by_rate in found.items()}


def at_rate(runs: Runs, method: str, rate: float) -> np.ndarray | None:
    """Last accuracies on the validation texts by seed; at the recipe's rate the stored runs stand in for missing ones.

    None where neither has all seeds.
    """
    own = accuracies(runs, (Job(method, rate, seed) for seed in SEEDS), "validation")
    return stored().get(method) if own is None and rate == OWN else own


def stored() -> dict[str, np.ndarray]:
    """The last accuracies of the study whose products are in 32 bits, by method."""
    content = json.loads((RESULTS / "raw" / "denoising-speedup.json").read_text(encoding="utf-8"))
    return {method: 100 * np.array(curve["values"])[:, -1] for method, curve in content["curves"].items()}


def moved_by_rounding(runs: Runs) -> dict[str, float]:
    """By how many points products in 16 bits move the first seed's last accuracy, where it is stored in 32."""
    found = {}
    for method, values in stored().items():
        own = accuracies(runs, [Job(method, OWN, SEEDS[0])], "validation") if method in METHODS else None
        if own is not None:
            found[method] = round(float(own[0] - values[SEEDS[0]]), 4) + 0.0  # pieces have seven digits
    return found


def measured(pieces: Pieces) -> tuple[Runs, str]:
    """What is known once all runs are, and what stopped them before that."""
    trainer = Trainer()
    try:
        pieces.measure({job.name: partial(trainer, job) for job in (*first_jobs(), *tuning_jobs())})
        rates = chosen(pieces.known())
        pieces.measure({job.name: partial(trainer, job) for job in last_jobs(rates)})
    except KeyboardInterrupt as stop:
        return pieces.known(), str(stop) or "stopped"
    return pieces.known(), ""


class Trainer:
    """Does a run; texts are read with the first one."""

    _task: Any = None

    def __call__(self, job: Job) -> dict[str, dict[str, float]]:
        """Scores of the trained model on the splits that are not trained on."""
        from dprmt.training.harness import run_in_memory
        from dprmt.training.models import load_model

        recipe = self._recipe.with_changes(
            {**METHODS[job.method], "optimizer.learning_rate": job.rate, "training.seed": job.seed}
        )
        task = self._read()
        model = load_model(recipe.model, labels=self._labels, seed=job.seed).model
        with run_in_memory(model, task, recipe.settings, noise_seed=job.seed) as run:
            for _ in run.steps():
                pass
        return {split: task.scores(model, split) for split in ("validation", "test")}

    @property
    def _recipe(self) -> Any:
        from dprmt.training.recipes import load_recipe

        # Sums do not depend on micro-batches; spectra are looked at by other items.
        return load_recipe(RECIPE).with_changes({"training.micro_batch_size": 4096, "training.spectra_layers": ()})

    def _read(self) -> Any:
        if self._task is None:
            import torch

            from dprmt.training.data import load_data
            from dprmt.training.models import load_model, load_tokenizer
            from paper_figures.denoising._upper_layers import UpperLayers

            recipe = self._recipe
            tokenizer = load_tokenizer(recipe.model)
            data: Any = load_data(recipe.data, tokenizer, recipe.model.task)
            self._labels = len(data.labels)
            model = load_model(recipe.model, labels=self._labels, seed=0, tokenizer=tokenizer).model
            splits = {name: getattr(data, name) for name in ("train", "validation", "test")}
            items = {name: [split[i] for i in range(len(split))] for name, split in splits.items()}
            self._task = UpperLayers(model, FIRST_LAYER, items, torch.bfloat16)
        return self._task
