"""Rates in steps of a quarter of a decade, tuned on seeds of their own, and the runs at the chosen ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from paper_figures._pieces import Pieces
from paper_figures.digits._images import Images
from paper_figures.digits._methods import METHODS
from paper_figures.digits._runs import Ended, Run, train
from paper_figures.digits._settings import SETTINGS, Setting

TUNING_SEEDS = tuple(range(100, 104))
SEEDS = tuple(range(20))
NULL = "Adam, other noise"
FIRST_RATES = tuple(range(-12, 0))
"""k of the rates 10^(k/4) that are tried first."""
_MORE, _LOWEST, _HIGHEST = 3, -24, 8


def tuned_and_run(
    pieces: Pieces, images: Images, settings: Mapping[str, Setting] = SETTINGS, seeds: Sequence[int] = SEEDS
) -> dict[str, Any]:
    """Per setting and method the rate with the best tuning accuracy, and the test accuracies at it by seed.

    ``pieces`` keeps what was measured, so that a stopped study goes on.
    """
    return {name: _of_setting(pieces, images, name, setting, seeds) for name, setting in settings.items()}


def _of_setting(pieces: Pieces, images: Images, name: str, setting: Setting, seeds: Sequence[int]) -> dict[str, Any]:
    found = {method: of_method(pieces, images, name, setting, method, seeds) for method in METHODS}
    rate = found["Adam"]["rate"]
    other = [Run(10 ** (rate / 4), seed, 1000 + seed) for seed in seeds]
    ended = measured(pieces, images, name, setting, "Adam", f"null at {rate}", other)
    found[NULL] = {"rate": rate, **_columns(ended)}
    return {"noise_multiplier": setting.noise_multiplier(len(images.train[1])), "methods": found}


def of_method(
    pieces: Pieces, images: Images, name: str, setting: Setting, method: str, seeds: Sequence[int] = SEEDS
) -> dict[str, Any]:
    """One method in one setting: its best rate, what was tried, and what it reached by seed."""
    measure = partial(measured, pieces, images, name, setting, method)
    tried = _tried(measure)
    best = max(tried, key=lambda k: (tried[k][0], -tried[k][1]))
    ended = measure(f"at {best}", [Run(10 ** (best / 4), seed, seed) for seed in seeds])
    return {"rate": best, "tried": {str(k): tried[k][0] for k in sorted(tried)}, **_columns(ended)}


def _tried(measure: Any) -> dict[int, tuple[float, float]]:
    """Mean tuning accuracy and loss by rate; more rates while the best one is the lowest or highest."""
    tried: dict[int, tuple[float, float]] = {}
    new = list(FIRST_RATES)
    while new:
        runs = [Run(10 ** (k / 4), seed, seed) for k in new for seed in TUNING_SEEDS]
        ended = measure(f"tuning {new[0]} to {new[-1]}", runs)
        for place, k in enumerate(new):
            some = ended[place * len(TUNING_SEEDS) : (place + 1) * len(TUNING_SEEDS)]
            tried[k] = (_mean([end.tune for end in some]), _mean([end.tune_loss for end in some]))
        best, low, high = max(tried, key=lambda k: tried[k][0]), min(tried), max(tried)
        new = []
        if best == low and low > _LOWEST:
            new = list(range(low - _MORE, low))
        if best == high and high < _HIGHEST:
            new = list(range(high + 1, high + 1 + _MORE))
    return tried


def measured(
    pieces: Pieces, images: Images, name: str, setting: Setting, method: str, what: str, runs: list[Run]
) -> list[Ended]:
    """What these runs come to, from the pieces where it is known."""
    key = f"{name} · {method} · {what}"
    look = "tuning" not in what
    kept = pieces.measure({key: lambda: [end._asdict() for end in train(setting, method, runs, images, look)]})
    return [Ended(**end) for end in kept[key]]


def _columns(ended: Sequence[Ended]) -> dict[str, Any]:
    return {"test": [end.test for end in ended], "over": ended[0].over}


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
