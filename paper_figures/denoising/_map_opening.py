"""At which batch and ε the papers' settings would open the gate, with the mean gradients of a stand-in's map."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from statistics import median
from typing import Any

import numpy as np

from dprmt.accounting import DPSGD, calibrate

Look = Mapping[str, Any]
LARGEST_EPSILON = 100.0
"""Above this no ε is told."""


@dataclass(frozen=True)
class PaperSetting:
    """What a paper trains with: Poisson batches of so many of the samples, so many steps, (ε, δ) in all."""

    name: str
    samples: int
    batch: int
    steps: int
    epsilon: float
    delta: float = 1e-5


PAPERS: Mapping[str, PaperSetting] = {
    "MiniLM, SST-2, LoRA": PaperSetting("SST-2, appendix J.1", 67_349, 2000, 400, 6.7),
    "SmolLM2, E2E, LoRA": PaperSetting("E2E, appendix J.2", 42_061, 64, 400, 5.4),
}
"""Of arXiv:2510.01137v3, by the setting of the map whose gradients stand in for those of its models."""


@lru_cache
def noise_of(paper: PaperSetting, batch: int, epsilon: float) -> float:
    """σ of the whole training at this batch and ε."""
    run = DPSGD(1.0, batch / paper.samples)
    return calibrate(run, steps=paper.steps, target_epsilon=epsilon, delta=paper.delta).noise_multiplier


def over_threshold(paper: PaperSetting, mean: float) -> float:
    """λ₁ of the clean sum over the detection threshold; ``mean``: λ₁ of the mean gradient over C·(mn)^¼."""
    return paper.batch * mean / noise_of(paper, paper.batch, paper.epsilon)


def epsilon_to_open(paper: PaperSetting, mean: float) -> float:
    """The ε at which the paper's batch reaches the threshold, inf above `LARGEST_EPSILON`."""
    noise = paper.batch * mean
    if noise <= noise_of(paper, paper.batch, LARGEST_EPSILON):
        return math.inf
    run = DPSGD(noise, paper.batch / paper.samples)
    return run.epsilon(steps=paper.steps, delta=paper.delta).upper


def batch_to_open(paper: PaperSetting, mean: float) -> float:
    """The batch that reaches the threshold at the paper's ε, inf if not even all samples do.

    Half of the paper's batch where that one does already.
    """
    sizes = _sizes(paper)
    strengths = np.array([size * mean / noise_of(paper, size, paper.epsilon) for size in sizes])
    if strengths[-1] < 1:
        return math.inf
    return float(np.exp(np.interp(0.0, np.log(strengths), np.log(sizes))))


def whole_over_threshold(paper: PaperSetting, mean: float) -> float:
    """As `over_threshold`, of all samples in one batch."""
    return paper.samples * mean / noise_of(paper, paper.samples, paper.epsilon)


def _sizes(paper: PaperSetting) -> list[int]:
    # From half of the paper's batch to all samples, each half as large again as the one before.
    count = math.ceil(math.log(2 * paper.samples / paper.batch, 1.5))
    return [round(size) for size in np.geomspace(paper.batch / 2, paper.samples, count + 1)]


HEADER = (
    "the paper's setting",
    "gradients of",
    "step",
    "role",
    "over the threshold there: median, largest",
    "ε that would open it at that batch",
    "batch that would open it at that ε",
    "all samples in one batch, over the threshold",
)


def rows(looks: Sequence[Look], roles: Sequence[str]) -> list[list[str]]:
    """A row for each look and role of the settings that stand in for a paper's."""
    found = []
    for seen in looks:
        paper = PAPERS.get(seen["setting"])
        for role in roles if paper is not None else ():
            means = [_mean(seen, layer) for layer in seen["layers"] if layer["role"] == role]
            if means:
                found.append(_row(paper, seen, role, [median(means), max(means)]))  # type: ignore[arg-type]
    return found


def _row(paper: PaperSetting, seen: Look, role: str, means: Sequence[float]) -> list[str]:
    words = f"{paper.name}: {paper.batch:,} of {paper.samples:,}, {paper.steps} steps, ε = {paper.epsilon:g}"
    return [
        words,
        str(seen["setting"]).split(",")[0],
        str(seen["step"]),
        role,
        ", ".join(f"{over_threshold(paper, mean):.2g}" for mean in means),
        ", ".join(_or(epsilon_to_open(paper, mean), f"> {LARGEST_EPSILON:g}", ".1f") for mean in means),
        ", ".join(_batch(paper, batch_to_open(paper, mean)) for mean in means),
        ", ".join(f"{whole_over_threshold(paper, mean):.2g}" for mean in means),
    ]


def _batch(paper: PaperSetting, size: float) -> str:
    return ("≤ " if size <= paper.batch / 2 else "") + _or(size, "none", ",.0f")


def _or(value: float, words: str, form: str) -> str:
    return format(value, form) if math.isfinite(value) else words


def _mean(seen: Look, layer: Mapping[str, Any]) -> float:
    at, size = max((k, size) for k, size in enumerate(seen["sizes"]) if size <= seen["samples"])
    rows, columns = layer["shape"]
    return float(layer["tops"][at] / size / (rows * columns) ** 0.25)
