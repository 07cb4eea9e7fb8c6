"""What is trained: the recipes at the study's sizes, the methods, and the rates they may choose from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dprmt.training.recipes import Recipe, load_recipe

METHODS: Mapping[str, Mapping[str, Any]] = {
    "none": {"denoising.method": "none"},
    "paper": {"denoising.method": "paper"},
    "blend": {"denoising.method": "blend"},
    "momentum gate": {"denoising.method": "paper", "denoising.on": "momentum"},
    "momentum blend": {"denoising.method": "blend", "denoising.on": "momentum"},
}
"""Changes of a recipe by method."""


@dataclass(frozen=True)
class Study:
    """One recipe at the size at which it is studied.

    Attributes
    ----------
    recipe : str
        A recipe of the package.
    changes : mapping
        To it.
    first_rates : tuple of int
        Half powers of ten k, for the rates 10^(k/2), that are tried first.
    seeds : int
        Runs of each method, after the tuning.
    frozen_layers : int
        The first transformer layers, none of which has an adapter.
    rows : int
        Of the validation set, the first ones.
    score : {"accuracy", "loss"}
        What a table is about.
    """

    recipe: str
    changes: Mapping[str, Any]
    first_rates: tuple[int, ...]
    seeds: int = 5
    frozen_layers: int = 0
    rows: int = 512
    score: str = "accuracy"
    files: Mapping[str, str] = field(default_factory=dict)

    def at(self, method: str, rate: float, seed: int, data: Path) -> Recipe:
        """The recipe of one run; ``data``: the folder in which the folders of the data sets are."""
        files = {key: [str(data / name)] for key, name in self.files.items()}
        return load_recipe(self.recipe).with_changes(
            {
                **self.changes,
                **files,
                **METHODS[method],
                "evaluation.limit": self.rows,
                "optimizer.learning_rate": rate,
                "training.seed": seed,
            }
        )


_LAST = "layer.5"
STUDIES: Mapping[str, Study] = {
    "minilm-docstrings": Study(
        recipe="minilm-docstrings",
        changes={
            "training.batch_size": 96,
            "training.micro_batch_size": 16,
            "training.steps": 12,
            "training.checkpoint_every": 12,
            "evaluation.every": 4,
        },
        first_rates=(-6, -5, -4),
        frozen_layers=4,
        rows=256,
    ),
    "minilm-sst2": Study(
        recipe="minilm-sst2",
        changes={
            "model.lora.targets": [
                f"{_LAST}.attention.self.query",
                f"{_LAST}.attention.self.key",
                f"{_LAST}.attention.self.value",
                f"{_LAST}.attention.output.dense",
                f"{_LAST}.intermediate.dense",
                f"{_LAST}.output.dense",
            ],
            "training.batch_size": 256,
            "training.micro_batch_size": 16,
            "training.steps": 12,
            "training.checkpoint_every": 12,
            "evaluation.every": 4,
        },
        first_rates=(-6, -5, -4),
        frozen_layers=5,
        rows=512,
        files={"data.train": "sst2/train.tsv", "data.validation": "sst2/dev.tsv", "data.test": "sst2/test.tsv"},
    ),
}
