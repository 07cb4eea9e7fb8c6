"""Which run comes next: rates first, then seed by seed all methods, so that a stop leaves a balanced table."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from denoising._studies import METHODS, Study
from dprmt.training.harness import read_metrics

TUNING_SEED = 0
INNER_PRODUCTS = "inner-products.jsonl"
_MOST_RATES = 5  # by method


class Job(NamedTuple):
    """One run."""

    role: str
    """The method, or "null", which is "none" with other noise, or "longer steps"."""
    method: str
    rate: float
    seed: int
    noise_seed: int

    def folder(self, runs: Path) -> Path:
        """Of the run."""
        return runs / f"{self.role.replace(' ', '-')}_rate{self.rate:.5g}_seed{self.seed}"


def jobs(study: Study, runs: Path, seed: int) -> Iterator[Job]:
    """The runs of one seed, in their order; those of seed 0 choose the rates. Ask for the next after a run is done.

    ``runs``: the folder with the runs of the study.
    """
    if seed == TUNING_SEED:
        for method in METHODS:
            yield from _tuning(study, method, runs)
        return
    none = chosen_rate(study, "none", runs)
    yield Job("none", "none", none, seed, seed)
    yield Job("null", "none", none, seed, 1000 + seed)
    for method in list(METHODS)[1:]:
        yield Job(method, method, chosen_rate(study, method, runs), seed, seed)
    paper = chosen_rate(study, "paper", runs)
    yield Job("longer steps", "none", paper * step_length(study, runs), seed, seed)


def chosen_rate(study: Study, method: str, runs: Path) -> float:
    """The rate with the lowest mean validation loss over the run of the tuning seed."""
    losses = tried_rates(study, method, runs)
    return _rate(min(losses, key=lambda k: losses[k]))


def tried_rates(study: Study, method: str, runs: Path) -> dict[int, float]:
    """Mean validation loss over the run by half power of ten; infinite if it is not finite."""
    found = {}
    for k in range(-14, 3):
        folder = _tuning_job(method, k).folder(runs)
        if (folder / "summary.json").exists():
            found[k] = mean_loss(folder)
    return found


def step_length(study: Study, runs: Path) -> float:
    """c: how much longer the part along the clean gradient of the paper's steps is than that of the noisy ones.

    Over all steps of the tuning run at the paper's own rate, and all matrices that may be denoised.
    """
    folder = Job("paper", "paper", chosen_rate(study, "paper", runs), TUNING_SEED, TUNING_SEED).folder(runs)
    lines = [json.loads(line) for line in (folder / INNER_PRODUCTS).read_text().splitlines()]
    steps = {line["step"]: line for line in lines}.values()
    return math.fsum(line["denoised"] for line in steps) / math.fsum(line["noisy"] for line in steps)


def mean_loss(folder: Path) -> float:
    """Of the validation set, over the evaluations of a run."""
    losses = [entry["evaluation"]["loss"] for entry in read_metrics(folder) if "evaluation" in entry]
    mean = math.fsum(losses) / len(losses) if all(isinstance(loss, float) for loss in losses) else math.inf
    return mean if math.isfinite(mean) else math.inf


def _tuning(study: Study, method: str, runs: Path) -> Iterator[Job]:
    for k in study.first_rates:
        yield _tuning_job(method, k)
    while len(losses := tried_rates(study, method, runs)) < _MOST_RATES:
        best = min(losses, key=lambda k: losses[k])
        if best not in (min(losses), max(losses)):
            return
        yield _tuning_job(method, best - 1 if best == min(losses) else best + 1)


def _tuning_job(method: str, k: int) -> Job:
    return Job(method, method, _rate(k), TUNING_SEED, TUNING_SEED)


def _rate(k: int) -> float:
    return float(f"{10 ** (k / 2):.4g}")
