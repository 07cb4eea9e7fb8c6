"""Runs of several phases, from a TOML file: a schedule of noise, a warm-up, a change of clipping."""

from __future__ import annotations

import argparse
import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any

from dprmt._validation import ParameterError
from dprmt.cli._clipping_options import CLIPPING
from dprmt.cli._options import Option, read_options
from dprmt.cli._run_options import NOISE
from dprmt.cli._sampling_options import SAMPLING, read_run

_NOISE = replace(NOISE, required=False)
_OF_A_PHASE = (_NOISE, *SAMPLING, *CLIPPING)
_KEYS = tuple(option.dest for option in _OF_A_PHASE)
_FORM = "a TOML file with a list of tables [[phases]]"


def _tables(name: str, text: str) -> list[dict[str, Any]]:
    try:
        content = tomllib.loads(Path(text).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ParameterError(name, text, f"{_FORM} ({str(error).splitlines()[0]})") from None
    phases = content.pop("phases", None)
    if not isinstance(phases, list) or not phases or not all(isinstance(phase, dict) for phase in phases):
        raise ParameterError(name, text, _FORM)
    for key in [*content, *(key for phase in phases for key in phase)]:
        if key not in _KEYS:
            raise ParameterError(name, key, f"{_FORM} whose keys are {', '.join(_KEYS)}")
    return [{**content, **phase} for phase in phases]


PHASES = Option(
    "--phases",
    _tables,
    "a TOML file of [[phases]], in place of the run's options: their names are its keys, those above the first"
    " [[phases]] are for all",
    metavar="FILE",
)


RUN = (*_OF_A_PHASE, PHASES)
"""Options of a run in one phase or more."""


def read_phases(namespace: argparse.Namespace, others: tuple[Option, ...]) -> dict[str, Any]:
    """Values of a command's options; ``phases`` holds one such dictionary for every phase, or is None."""
    if getattr(namespace, PHASES.dest) is None:
        if namespace.noise_multiplier is None:
            raise ParameterError(NOISE.dest, None, "given, or --phases")
        return {**read_run(namespace, (*_OF_A_PHASE, *others)), "phases": None}
    for option in _OF_A_PHASE:
        if getattr(namespace, option.dest) is not None:
            raise ParameterError(option.dest, getattr(namespace, option.dest), "left out where --phases is given")
    tables = PHASES.read(PHASES.dest, namespace.phases)
    return {**read_options(namespace, others), "phases": [_phase(table) for table in tables]}


def _phase(table: dict[str, Any]) -> dict[str, Any]:
    words = {True: "yes", False: "no"}
    texts = {key: words[value] if isinstance(value, bool) else str(value) for key, value in table.items()}
    if "noise_multiplier" not in texts:
        raise ParameterError(NOISE.dest, None, "given in every phase, or above the first")
    return read_run(argparse.Namespace(**{**dict.fromkeys(_KEYS), **texts}), _OF_A_PHASE)
