"""Which run comes next: rates first, then seed by seed all methods, so that a stop leaves a balanced table."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from paper_figures._rates import lowest
from paper_figures.denoising._studies import Study

TUNING_SEED = 0
_MOST_RATES = 5  # by method


class Job(NamedTuple):
    """One run."""

    role: str
    """The method, or "null", which is "none" with other noise, or "longer steps"."""
    method: str
    rate: float
    seed: int
    noise_seed: int

    def file(self, runs: Path) -> Path:
        """Where its result is."""
        return runs / f"{self.role.replace(' ', '-')}_rate{self.rate:.5g}_seed{self.seed}.json"


def jobs(study: Study, runs: Path, seed: int) -> Iterator[Job]:
    """The runs of one seed, in their order; those of seed 0 choose the rates. Ask for the next after a run is done.

    ``runs``: the folder with the results of the study.
    """
    if seed == TUNING_SEED:
        for method in study.methods:
            yield from _tuning(study, method, runs)
        return
    none = chosen_rate(study, "none", runs)
    yield Job("none", "none", none, seed, seed)
    yield Job("null", "none", none, seed, 1000 + seed)
    for method in study.methods[1:]:
        yield Job(method, method, chosen_rate(study, method, runs), seed, seed)
    paper = chosen_rate(study, "paper", runs)
    yield Job("longer steps", "none", paper * step_length(study, runs), seed, seed)


def chosen_rate(study: Study, method: str, runs: Path) -> float:
    """The rate with the lowest mean validation loss over the run of the tuning seed."""
    losses = tried_rates(study, method, runs)
    return _rate(lowest(losses))


def tried_rates(study: Study, method: str, runs: Path) -> dict[int, float]:
    """Mean validation loss over the run by half power of ten; infinite if it is not finite."""
    files = {k: _tuning_job(method, k).file(runs) for k in range(-14, 5)}
    return {k: mean_of(read(file), "loss") for k, file in files.items() if file.exists()}


def step_length(study: Study, runs: Path) -> float:
    """c: how much longer the part along the clean gradient of the paper's steps is than that of the noisy ones.

    Over all steps of the tuning run at the paper's own rate, and all matrices that may be denoised.
    """
    steps = tuning_result(study, "paper", runs)["inner_products"]
    return math.fsum(step["denoised"] for step in steps) / math.fsum(step["noisy"] for step in steps)


def tuning_result(study: Study, method: str, runs: Path) -> dict[str, Any]:
    """The run of the tuning seed at the chosen rate."""
    return read(Job(method, method, chosen_rate(study, method, runs), TUNING_SEED, TUNING_SEED).file(runs))


def mean_of(result: Mapping[str, Any], score: str) -> float:
    """Of a score over the evaluations of a run; infinite if one is not finite."""
    values = [evaluation[score] for evaluation in result["evaluations"]]
    return math.inf if None in values else math.fsum(values) / len(values)


def read(file: Path) -> dict[str, Any]:
    """What a run has written."""
    result: dict[str, Any] = json.loads(file.read_text())
    return result


def _tuning(study: Study, method: str, runs: Path) -> Iterator[Job]:
    for k in study.first_rates:
        yield _tuning_job(method, k)
    while len(losses := tried_rates(study, method, runs)) < _MOST_RATES:
        best = lowest(losses)
        if best not in (min(losses), max(losses)):
            return
        yield _tuning_job(method, best - 1 if best == min(losses) else best + 1)


def _tuning_job(method: str, k: int) -> Job:
    return Job(method, method, _rate(k), TUNING_SEED, TUNING_SEED)


def _rate(k: int) -> float:
    return float(f"{10 ** (k / 2):.4g}")
