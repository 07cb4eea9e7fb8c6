"""Rates in steps of a quarter of a decade, tuned on seeds of their own, and the runs at the chosen ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from paper_figures._pieces import Pieces
from paper_figures.digits._methods import ALSO, METHODS
from paper_figures.digits._runs import Ended, Run, train
from paper_figures.digits._samples import Samples
from paper_figures.digits._settings import SETTINGS, Setting

NULL = "Adam, other noise"
_MORE, _LOWEST, _HIGHEST = 3, -24, 8


def tuned_and_run(pieces: Pieces, samples: Samples, settings: Mapping[str, Setting] = SETTINGS) -> dict[str, Any]:
    """Per setting and method the rate with the best tuning accuracy, and the test accuracies at it by seed.

    ``pieces`` keeps what was measured, so that a stopped study goes on.
    """
    return {name: _of_setting(pieces, samples, name, setting) for name, setting in settings.items()}


def _of_setting(pieces: Pieces, samples: Samples, name: str, setting: Setting) -> dict[str, Any]:
    found = {method: of_method(pieces, samples, name, setting, method) for method in METHODS}
    rate = found["Adam"]["rate"]
    other = [Run(10 ** (rate / 4), seed, 1000 + seed) for seed in setting.seeds]
    ended = measured(pieces, samples, name, setting, "Adam", f"null at {rate}", other)
    found[NULL] = {"rate": rate, **_columns(ended)}
    return {"noise_multiplier": setting.noise_multiplier(samples.size), "methods": found}


def runs_of(setting: Setting) -> int:
    """How many runs a setting takes, nulls included, if no rate beyond the first ones is tried."""
    of_method = len(setting.first_rates) * len(setting.tuning_seeds) + len(setting.seeds)
    return (len(METHODS) + len(ALSO)) * of_method + (1 + setting.noises) * len(setting.seeds)


def of_method(pieces: Pieces, samples: Samples, name: str, setting: Setting, method: str) -> dict[str, Any]:
    """One method in one setting: its best rate, what was tried, and what it reached by seed."""
    measure = partial(measured, pieces, samples, name, setting, method)
    tried = _tried(measure, setting)
    best = max(tried, key=lambda k: (tried[k][0], -tried[k][1]))
    ended = measure(f"at {best}", [Run(10 ** (best / 4), seed, seed) for seed in setting.seeds])
    return {"rate": best, "tried": {str(k): tried[k][0] for k in sorted(tried)}, **_columns(ended)}


def _tried(measure: Any, setting: Setting) -> dict[int, tuple[float, float]]:
    """Mean tuning accuracy and loss by rate; more rates while the best one is the lowest or highest."""
    tried: dict[int, tuple[float, float]] = {}
    new, seeds = list(setting.first_rates), setting.tuning_seeds
    while new:
        runs = [Run(10 ** (k / 4), seed, seed) for k in new for seed in seeds]
        ended = measure(f"tuning {new[0]} to {new[-1]}", runs)
        for place, k in enumerate(new):
            some = ended[place * len(seeds) : (place + 1) * len(seeds)]
            tried[k] = (_mean([end.tune for end in some]), _mean([end.tune_loss for end in some]))
        best, low, high = max(tried, key=lambda k: tried[k][0]), min(tried), max(tried)
        new = []
        if best == low and low > _LOWEST:
            new = list(range(low - _MORE, low))
        if best == high and high < _HIGHEST:
            new = list(range(high + 1, high + 1 + _MORE))
    return tried


def measured(
    pieces: Pieces, samples: Samples, name: str, setting: Setting, method: str, what: str, runs: list[Run]
) -> list[Ended]:
    """What these runs come to, from the pieces where it is known."""
    key = f"{name} · {method} · {what}"
    look = "tuning" not in what
    kept = pieces.measure({key: lambda: [end._asdict() for end in train(setting, method, runs, samples, look)]})
    return [Ended(**end) for end in kept[key]]


def _columns(ended: Sequence[Ended]) -> dict[str, Any]:
    return {"test": [end.test for end in ended], "over": ended[0].over}


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
