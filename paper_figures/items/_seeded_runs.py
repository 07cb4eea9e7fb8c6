"""Accuracies over seeds that a script has stored under ``results``, and differences paired by seed."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from paper_figures._reproduction import RESULTS


@dataclass(frozen=True)
class SeededRuns:
    """One file: curves by variant, each with accuracies of shape (seeds, evaluations)."""

    file: str

    @cached_property
    def _content(self) -> dict[str, Any]:
        content: dict[str, Any] = json.loads((RESULTS / self.file).read_text(encoding="utf-8"))
        return content

    @property
    def variants(self) -> list[str]:
        return list(self._content["curves"])

    @property
    def recipe(self) -> str:
        return str(self._content["recipe"]["name"])

    @property
    def seeds(self) -> int:
        return min(len(curve["values"]) for curve in self._content["curves"].values())

    def last(self, variant: str) -> np.ndarray:
        """Accuracy in percent at the end of each seed's run."""
        return 100 * np.array(self._content["curves"][variant]["values"])[:, -1]

    def mean_curve(self, variant: str) -> tuple[np.ndarray, np.ndarray]:
        """Steps, and accuracy in percent at each, mean over the seeds."""
        curve = self._content["curves"][variant]
        return np.array(curve["steps"]), 100 * np.array(curve["values"]).mean(0)

    def difference(self, variant: str, baseline: str) -> tuple[float, float]:
        """Mean and standard error of the paired differences of these, in points."""
        points = self.last(variant) - self.last(baseline)
        return float(points.mean()), float(points.std(ddof=1) / np.sqrt(len(points)))
