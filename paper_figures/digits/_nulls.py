"""Adam against itself, many times: how often a comparison of the study tells runs apart that differ in noise alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from paper_figures._pieces import Pieces
from paper_figures._verdict import Interval, mean_interval, share_interval
from paper_figures.digits._compared import compared
from paper_figures.digits._runs import Run
from paper_figures.digits._samples import Samples
from paper_figures.digits._settings import Setting
from paper_figures.digits._tuning import measured

_FIRST = 2
_DRAWS = 20_000


def null_columns(
    pieces: Pieces,
    samples: Samples,
    name: str,
    setting: Setting,
    rate: int,
) -> list[list[float]]:
    """Test accuracies at Adam's rate by noise and seed; a seed has the same weights and draws beside all noises.

    Two noises make a null.
    """
    return [
        [
            end.test
            for end in measured(
                pieces,
                samples,
                name,
                setting,
                "Adam",
                f"noise {column} at {rate}",
                [Run(10 ** (rate / 4), seed, 1000 * column + seed) for seed in setting.seeds],
            )
        ]
        for column in range(_FIRST, _FIRST + setting.noises)
    ]


@dataclass(frozen=True)
class FalseAlarms:
    """How often Student's interval of a null misses 0.

    Attributes
    ----------
    differences : list of float
        Points of the independent nulls, two columns each.
    missed : int
        How many of these nulls' intervals at 95 % miss 0.
    share : Interval
        Of all such nulls, Clopper and Pearson's at 95 %.
    drawn, drawn_at_once : float
        The same share at 95 %, and at the level of one of the comparisons that are made at once, of nulls that
        take, for each seed, two of its columns at random.
    lucky : Interval
        Points that the study's own Adam is above other noises', Student's interval over seeds.
    """

    differences: list[float]
    missed: int
    share: Interval
    drawn: float
    drawn_at_once: float
    lucky: Interval


def false_alarms(results: dict[str, Any]) -> FalseAlarms:
    """Of the nulls that are stored with a setting."""
    columns, methods = results["nulls"], results["methods"]
    pairs = [compared(a, b) for a, b in zip(columns[::2], columns[1::2], strict=True)]
    missed = sum(_misses(pair.interval) for pair in pairs)
    points = 100 * np.array(columns)
    return FalseAlarms(
        [pair.mean for pair in pairs],
        missed,
        share_interval(missed, len(pairs)),
        _drawn(points, 1),
        _drawn(points, len(methods) - 1),
        mean_interval(100 * np.array(methods["Adam"]["test"]) - points.mean(0)),
    )


def _misses(interval: Interval) -> bool:
    return not interval.low <= 0 <= interval.high


def _drawn(points: np.ndarray, of: int) -> float:
    # Two different columns for each seed and draw; Student's statistic of every draw.
    from scipy.stats import t

    rng = np.random.default_rng(0)
    count, seeds = points.shape
    first = rng.integers(count, size=(_DRAWS, seeds))
    second = (first + rng.integers(1, count, size=first.shape)) % count
    each = np.arange(seeds)
    difference = points[first, each] - points[second, each]
    spread = difference.std(1, ddof=1) / np.sqrt(seeds)
    reach = t.ppf(1 - 0.025 / of, seeds - 1) * spread
    return float((np.abs(difference.mean(1)) > reach).mean())
