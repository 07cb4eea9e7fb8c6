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


_SIZES = {
    "training.micro_batch_size": 16,
    "training.steps": 10,
    "training.checkpoint_every": 10,
    "evaluation.every": 2,
}
_ATTENTION = [f"layer.5.attention.self.{name}" for name in ("query", "key", "value")]
_DENSE = ["layer.5.attention.output.dense", "layer.5.intermediate.dense", "layer.5.output.dense"]

STUDIES: Mapping[str, Study] = {
    "minilm-docstrings": Study(
        recipe="minilm-docstrings",
        changes={
            "model.lora.targets": ["layer.5.attention.self.query", "layer.5.attention.self.value"],
            "training.batch_size": 96,
            **_SIZES,
        },
        first_rates=(-6, -5, -4),
        frozen_layers=5,
        rows=192,
    ),
    "minilm-sst2": Study(
        recipe="minilm-sst2",
        changes={"model.lora.targets": [*_ATTENTION, *_DENSE], "training.batch_size": 128, **_SIZES},
        first_rates=(-4, -3, -2),
        frozen_layers=5,
        rows=256,
        files={"data.train": "sst2/train.tsv", "data.validation": "sst2/dev.tsv", "data.test": "sst2/test.tsv"},
    ),
}
"""By name. Adapters are in the last layer alone: what lies below is computed once per text."""
