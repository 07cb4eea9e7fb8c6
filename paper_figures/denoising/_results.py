"""The study's results from its files, and the differences between methods, paired over seeds."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from paper_figures._verdict import Interval, mean_interval
from paper_figures.denoising._order import (
    TUNING_SEED,
    chosen_rate,
    jobs,
    mean_of,
    read,
    step_length,
    tried_rates,
    tuning_result,
)
from paper_figures.denoising._studies import METHODS, STUDIES, Study

Reading = Literal["better", "worse", "cannot tell", "not compared"]
ROLES = ("none", "null", *list(METHODS)[1:], "longer steps")


def results(folder: Path) -> dict[str, Any]:
    """What is there of every study: rates that were tried, and the scores of each method by seed.

    Parameters
    ----------
    folder : Path
        With a folder of runs for each study.

    Returns
    -------
    dict
        JSON values.
    """
    begun = [name for name in STUDIES if any((folder / name).glob("*_seed*.json"))]
    return {name: _study(STUDIES[name], folder / name) for name in begun}


def _study(study: Study, runs: Path) -> dict[str, Any]:
    tried = {method: tried_rates(study, method, runs) for method in study.methods}
    tuned = all(len(rates) >= len(study.first_rates) for rates in tried.values())
    rows: dict[str, dict[str, Any]] = {}
    for seed in range(TUNING_SEED + 1, study.seeds + 1) if tuned else ():
        for job in jobs(study, runs, seed):
            if job.file(runs).exists():
                row = rows.setdefault(job.role, {"rate": job.rate, "seeds": []})
                row["seeds"].append(seed)
                for score, value in _scores(read(job.file(runs))).items():
                    row.setdefault(score, []).append(value)
    one = read(min(runs.glob("*_seed*.json")))
    facts = {key: one[key] for key in ("noise_multiplier", "sample_rate", "target_epsilon")}
    return {
        "recipe": study.recipe,
        "changes": {**study.changes, "evaluation.limit": study.rows},
        **facts,
        "seeds": study.seeds,
        "tried": {m: {f"{10 ** (k / 2):.4g}": loss for k, loss in rates.items()} for m, rates in tried.items()},
        "chosen": {method: chosen_rate(study, method, runs) for method, rates in tried.items() if rates},
        "step_length": step_length(study, runs) if tried["paper"] else None,
        "replaced": {method: _replaced(study, method, runs) for method in ("paper", "blend") if tried.get(method)},
        "matrices": _matrices(study, runs) if tried["paper"] else None,
        "rows": rows,
    }


def _scores(result: Mapping[str, Any]) -> dict[str, float]:
    last, losses = result["evaluations"][-1], result["training_losses"]
    return {
        "mean_loss": mean_of(result, "loss"),
        "final_loss": math.inf if last["loss"] is None else last["loss"],
        "mean_training_loss": math.fsum(losses) / len(losses),
        **(
            {"mean_accuracy": mean_of(result, "accuracy"), "final_accuracy": last["accuracy"]}
            if "accuracy" in last
            else {}
        ),
    }


def _matrices(study: Study, runs: Path) -> int | None:
    # How many the denoiser looks at.
    count: int | None = tuning_result(study, "paper", runs)["inner_products"][0].get("matrices")
    return count


def _replaced(study: Study, method: str, runs: Path) -> float:
    # Mean number of matrices per step that the denoiser replaced, in the tuning run at the chosen rate.
    steps = tuning_result(study, method, runs)["inner_products"]
    return math.fsum(step["replaced"] for step in steps) / len(steps)


@dataclass(frozen=True)
class Difference:
    """Of a method's score and tuned Adam's, over the seeds that both have.

    Attributes
    ----------
    mean : float
        Method minus Adam.
    error : float
        Its standard error, nan for one seed.
    seeds : int
        How many.
    interval : Interval
        Student's, at 95 %: two standard errors would miss in 18 % of three seeds, and in 12 % of five.
    """

    mean: float
    error: float
    seeds: int
    interval: Interval

    @property
    def errors(self) -> float:
        """The mean in units of its standard error; nan if there is none, 0 where all is equal."""
        return self.mean / self.error if self.error > 0 else (0.0 if self.mean == 0 else math.nan)


def difference(study: Mapping[str, Any], role: str, score: str, *, against: str = "none") -> Difference:
    """Paired over seeds.

    Parameters
    ----------
    study : mapping
        One of `results`.
    role, against : str
        Rows of it.
    score : str
        Which score.

    Returns
    -------
    Difference
        ``role`` minus ``against``.

    Examples
    --------
    >>> rows = {"none": {"seeds": [1, 2], "s": [1.0, 2.0]}, "paper": {"seeds": [2, 1], "s": [2.5, 1.1]}}
    >>> found = difference({"rows": rows}, "paper", "s")
    >>> round(found.mean, 3), round(found.error, 3), found.seeds
    (0.3, 0.2, 2)
    """
    one, other = (dict(zip(study["rows"][r]["seeds"], study["rows"][r][score], strict=True)) for r in (role, against))
    gains = np.array([one[seed] - other[seed] for seed in one if seed in other])
    error = float(gains.std(ddof=1)) / math.sqrt(len(gains)) if len(gains) > 1 else math.nan
    return Difference(float(gains.mean()), error, len(gains), mean_interval(gains))


def reading(study: Mapping[str, Any], role: str, score: str = "mean_loss") -> Reading:
    """What a method's difference to tuned Adam allows to say, by Student's 95 % interval; of a loss, less is better.

    Parameters
    ----------
    study : mapping
        One of `results`.
    role : str
        A row of it.
    score : str
        Which loss.

    Returns
    -------
    str
        "better", "worse" or "cannot tell"; "not compared" if in the run that was watched the method replaced nothing.
    """
    if (study["replaced"] or {}).get(role) == 0:
        return "not compared"
    interval = difference(study, role, score).interval
    return "better" if interval.high < 0 else "worse" if interval.low > 0 else "cannot tell"
