"""Variants of one recipe at equal ε over the same seeds: accuracies in percent, and differences paired by seed."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dprmt.training.recipes import Recipe
from paper_figures._picture import STYLES
from paper_figures._pieces import Pieces
from paper_figures._reproduction import RESULTS
from paper_figures.items._recipe_runs import draw_band, run_variants, scores

Changes = dict[str, Any]
SHORTER: Changes = {"training.steps": 20, "training.batch_size": 128, "evaluation.every": 5, "evaluation.limit": 200}


@dataclass(frozen=True)
class PairedRuns:
    """Accuracies by variant, each of shape (seeds, evaluations)."""

    recipe: str
    steps: Sequence[float]
    accuracy: Mapping[str, np.ndarray]
    earlier_seconds: float = 0.0

    @property
    def variants(self) -> list[str]:
        return list(self.accuracy)

    @property
    def seeds(self) -> int:
        return min(map(len, self.accuracy.values()))

    @property
    def length(self) -> str:
        return f"{self.recipe}, {self.steps[-1]:g} steps"

    def last(self, variant: str) -> np.ndarray:
        """At the end of each seed's run."""
        return self.accuracy[variant][:, -1]

    def difference(self, variant: str, baseline: str) -> np.ndarray:
        """At the end, in points, paired by seed."""
        return self.last(variant) - self.last(baseline)

    def draw(self, ax: Any, styles: Mapping[str, str]) -> None:
        """Mean and spread over the steps, by variant."""
        for name, values in self.accuracy.items():
            draw_band(ax, self.steps, values, name, STYLES[styles[name]])
        ax.set(xlabel="step", ylabel="accuracy, %")
        ax.legend(frameon=False)


def trained(pieces: Pieces, recipe: Recipe, variants: Mapping[str, Changes], seeds: int) -> PairedRuns:
    """Train what the pieces lack."""
    runs = run_variants(pieces, recipe, variants, range(seeds))
    accuracy = {name: 100 * scores(found, "accuracy") for name, found in runs.items()}
    return PairedRuns(recipe.name, next(iter(runs.values()))[0]["steps"], accuracy, pieces.earlier_seconds)


def stored(file: str) -> PairedRuns:
    """What a study has left under ``results/raw``."""
    content = json.loads((RESULTS / "raw" / file).read_text(encoding="utf-8"))
    accuracy = {name: 100 * np.array(curve["values"]) for name, curve in content["curves"].items()}
    return PairedRuns(content["recipe"]["name"], next(iter(content["curves"].values()))["steps"], accuracy)
