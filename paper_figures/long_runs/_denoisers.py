"""Command lines of the studies of denoisers at tuned rates: ``train``, ``more``, ``budget``, ``page``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from paper_figures._pieces import Pieces, cpu_seconds
from paper_figures.digits import (
    ALSO,
    Run,
    Samples,
    Setting,
    null_columns,
    of_method,
    runs_of,
    train,
    tuned_and_run,
    with_tables,
)
from paper_figures.long_runs._stored import Options, StoredStudy, read, stored_file, write

Load = Callable[[Options, str], Samples]
"""What is trained on, by the options and the setting's name."""


def study_of(
    name: str,
    description: str,
    settings: Mapping[str, Setting],
    load: Load,
    *,
    data: str = "",
    also: bool = True,
    few: Load | None = None,
) -> StoredStudy:
    """A study of these settings.

    ``also``: whether the blend without norm correction is measured too, beside the table. ``few``: samples enough for a
    step, for ``budget``.
    """
    commands = {
        "train": ("tune and train", partial(_train, name, settings, load, also)),
        "more": ("nulls, for what train has stored", partial(_more, name, settings, load)),
        "budget": ("how long it would take, from three steps", partial(_budget, name, settings, few or load)),
    }
    return StoredStudy(name, description, commands, partial(_page, name), data, tuple(settings))


def _train(name: str, settings: Mapping[str, Setting], load: Load, also: bool, options: Options) -> None:
    pieces = Pieces(Path(options.folder), name, "study")
    found: dict[str, Any] = {}
    for key, setting in _chosen(settings, options):
        samples = load(options, key)
        found |= tuned_and_run(pieces, samples, {key: setting})
        found[key]["sizes"] = samples.sizes
        if also:
            found[key]["also"] = {extra: of_method(pieces, samples, key, setting, extra) for extra in ALSO}
        found[key]["cpu_seconds"] = round(pieces.seconds(f"{key} ·"))
    file = stored_file(name)
    earlier = read(file) if file.exists() else {}
    budget = {"budget": earlier["budget"]} if "budget" in earlier else {}
    _store(file, {**budget, "settings": {**earlier.get("settings", {}), **found}})


def _more(name: str, settings: Mapping[str, Setting], load: Load, options: Options) -> None:
    stored, pieces = read(stored_file(name)), Pieces(Path(options.folder), name, "more")
    for key, setting in _chosen(settings, options):
        results = stored["settings"][key]
        rate = results["methods"]["Adam"]["rate"]
        results["nulls"] = null_columns(pieces, load(options, key), key, setting, rate)
        results["more_cpu_seconds"] = round(pieces.seconds(f"{key} ·"))
    _store(stored_file(name), stored)


def seconds_of(results: Mapping[str, Any]) -> int:
    """Processor time of a setting's runs, nulls included; 0 if it was stored before settings had their own."""
    return int(results.get("cpu_seconds", 0) + results.get("more_cpu_seconds", 0))


def _store(file: Path, stored: Mapping[str, Any]) -> None:
    write(file, stored)
    print(f"stored {file.name}: {'; '.join(f'{key} {seconds_of(one)} s' for key, one in stored['settings'].items())}")


def _budget(name: str, settings: Mapping[str, Setting], few: Load, options: Options) -> None:
    # Scores between and after steps come on top.
    file = stored_file(name)
    stored = read(file) if file.exists() else {}
    for key, setting in _chosen(settings, options):
        samples, runs = few(options, key), runs_of(setting)
        one, three = (_seconds(replace(setting, steps=steps), samples) for steps in (1, 3))
        step = (three - one) / 2
        hours = runs * setting.steps * step / 3600
        print(f"{key}: {runs} runs of {setting.steps} steps, {step:.2f} s a step: {hours:.1f} h of processor time")
        stored.setdefault("budget", {})[key] = {"runs": runs, "step_seconds": round(step, 3)}
    write(file, stored)


def _seconds(setting: Setting, samples: Samples) -> float:
    setting.noise_multiplier(samples.size)  # calibrated once for all runs
    before = cpu_seconds()
    train(setting, "Adam", [Run(0.01, 0, 0)], samples)
    return cpu_seconds() - before


def _chosen(settings: Mapping[str, Setting], options: Options) -> list[tuple[str, Setting]]:
    return [(name, setting) for name, setting in settings.items() if name in (options.settings or settings)]


def _page(name: str, page: str, stored: Mapping[str, Mapping[str, object]]) -> str:
    return with_tables(page, dict(stored["settings"]), name)
