"""What is trained: the recipes at the study's sizes, the methods, and the rates they may choose from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dprmt.training.recipes import Recipe, load_recipe
from paper_figures import shrinkers  # noqa: F401 (registers "blend")

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
    rows : int
        Of the validation set, the first ones.
    files : mapping
        Files of the data by key, relative to the folder of the data sets.
    methods : tuple of str
        Those of `METHODS` that are compared, "none" first and "paper" among them.
    whole : bool
        All layers are adapted, as the recipe says, so that nothing can be computed beforehand.
    """

    recipe: str
    changes: Mapping[str, Any]
    first_rates: tuple[int, ...]
    seeds: int = 5
    rows: int = 512
    files: Mapping[str, str] = field(default_factory=dict)
    methods: tuple[str, ...] = tuple(METHODS)
    whole: bool = False

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
    "model.lora.targets": ["layer.5.output.dense"],
    "training.batch_size": 256,
    "training.micro_batch_size": 64,
    "training.steps": 20,
    "evaluation.every": 4,
}

_E2E = {
    "data.train": "e2e/trainset.csv",
    "data.validation": "e2e/devset.csv",
    "data.test": "e2e/testset_w_refs.csv",
}
_SST2 = {"data.train": "sst2/train.tsv", "data.validation": "sst2/dev.tsv", "data.test": "sst2/test.tsv"}

STUDIES: Mapping[str, Study] = {
    "minilm-docstrings": Study("minilm-docstrings", {**_SIZES, "data.limit": 1024}, (-5, -4, -3), rows=192),
    "minilm-sst2": Study(
        "minilm-sst2",
        {**_SIZES, "data.limit": 1024},
        (-5, -4, -3),
        rows=256,
        files=_SST2,
    ),
    "minilm-sst2-large": Study(
        "minilm-sst2",
        {**_SIZES, "data.limit": 8192, "training.batch_size": 1024, "training.micro_batch_size": 128},
        (-5, -4, -3),
        rows=512,
        files=_SST2,
    ),
    "smollm2-e2e": Study(
        "smollm2-e2e",
        {
            "model.lora.targets": ["layers.29.self_attn.q_proj", "layers.29.self_attn.v_proj"],
            "privacy.target_epsilon": 6.7,
            "data.limit": 2048,
            "data.max_tokens": 96,
            "training.batch_size": 64,
            "training.micro_batch_size": 16,
            "training.steps": 16,
            "evaluation.every": 4,
        },
        (-4, -3, -2),
        seeds=3,
        rows=96,
        files=_E2E,
    ),
    "minilm-sst2-whole": Study(
        "minilm-sst2",
        {
            "data.limit": 1024,
            "training.batch_size": 64,
            "training.micro_batch_size": 32,
            "training.steps": 8,
            "evaluation.every": 4,
        },
        (-5, -4, -3),
        seeds=3,
        rows=192,
        files=_SST2,
        methods=("none", "paper"),
        whole=True,
    ),
}
"""By name. Of an encoder the last matrix is adapted, of a decoder q and v of the last layer: what goes into them is
computed once per text. In the third an average has a quarter of the noise; in the last all layers are adapted."""
