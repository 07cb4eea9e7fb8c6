"""Curves of finished runs in one small JSON file, with how they came about."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

import dprmt
from dprmt._files import write_whole
from dprmt._validation import ParameterError
from paper_figures.heavy_tail._run import read_trial
from paper_figures.heavy_tail._trial import Curve, Trial

_DIGITS = 5


def save_results(path: str | Path, curves: Sequence[Curve], *, command: str, delta: float = 1e-5) -> None:
    """Write curves with trial, steps, ε, losses and accuracies, and the versions that made them.

    Parameters
    ----------
    path : str or Path
        A JSON file, replaced.
    curves : sequence of Curve
        Those without entries are left out.
    command : str
        What was run to make them.
    delta : float
        δ of the ε that is written.

    Examples
    --------
    >>> import tempfile
    >>> curve = Curve(Trial("gd", 1.0), (8,), (0,), (2.0,), (0.1,), ((2.0,),), ((0.1,),))
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     save_results(f"{folder}/results.json", [curve], command="by hand")
    ...     load_results(f"{folder}/results.json") == [curve]
    True
    """
    rows = []
    for curve in curves:
        if curve.steps:
            row = dataclasses.asdict(curve) | {"name": curve.trial.name, "epsilon": curve.epsilon(delta)}
            rows.append(_rounded(row))
    facts = {"command": command, "dprmt": dprmt.__version__, "torch": torch.__version__, "delta": delta}
    text = json.dumps({"provenance": facts}, indent=1)[:-2] + ',\n "curves": [\n'
    text += ",\n".join("  " + json.dumps(row) for row in rows) + "\n ]\n}\n"
    write_whole(Path(path), text)


def load_results(path: str | Path) -> list[Curve]:
    """The curves in a file of `save_results`.

    Parameters
    ----------
    path : str or Path
        The file.

    Returns
    -------
    list of Curve
        In order, with five significant digits.

    Raises
    ------
    ParameterError
        If it is no such file.

    Examples
    --------
    >>> import tempfile
    >>> curve = Curve(Trial("gd", 1.0), (8,), (0, 1), (2.0, 1.23456789), (0.1, 0.2), ((2.0,), (1.2,)), ((0.1,), (0.2,)))
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     save_results(f"{folder}/results.json", [curve], command="by hand")
    ...     (read,) = load_results(f"{folder}/results.json")
    >>> read.trial == curve.trial, read.loss
    (True, (2.0, 1.2346))
    """
    try:
        rows = json.loads(Path(path).read_text(encoding="utf-8"))["curves"]
        return [_curve(row) for row in rows]
    except (KeyError, TypeError, json.JSONDecodeError):
        raise ParameterError("path", str(path), "a file written by save_results") from None


def read_folder(folder: str | Path, trials: Sequence[Trial]) -> list[Curve]:
    """The curves of those trials that a folder holds anything of.

    Parameters
    ----------
    folder : str or Path
        As in `run_trial`.
    trials : sequence of Trial
        Which to look for.

    Returns
    -------
    list of Curve
        In the order of the trials.

    Examples
    --------
    >>> read_folder("nowhere", [Trial("gd", 1.0)])
    []
    """
    return [curve for curve in (read_trial(folder, trial) for trial in trials) if curve.steps]


def _curve(row: dict[str, Any]) -> Curve:
    trial = row["trial"]
    return Curve(
        Trial(**{**trial, "betas": tuple(trial["betas"])}),
        class_sizes=tuple(row["class_sizes"]),
        steps=tuple(row["steps"]),
        loss=tuple(row["loss"]),
        accuracy=tuple(row["accuracy"]),
        group_loss=tuple(map(tuple, row["group_loss"])),
        group_accuracy=tuple(map(tuple, row["group_accuracy"])),
        diverged=row["diverged"],
    )


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.{_DIGITS}g}")
    if isinstance(value, dict):
        return {name: entry if name == "trial" else _rounded(entry) for name, entry in value.items()}
    return [_rounded(entry) for entry in value] if isinstance(value, (list, tuple)) else value
