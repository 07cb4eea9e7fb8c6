"""Phases of a run: a TOML file of them, or one option for each; both become texts of the run's own options."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from dprmt._files import parse_toml
from dprmt._validation import ParameterError, did_you_mean
from dprmt.cli._options import Option

_TABLES = "a TOML file with a list of tables [[phases]]"
_PAIRS = "options of a phase without their dashes, such as noise-multiplier=2,steps=100"


def phase_options(known: tuple[Option, ...]) -> tuple[Option, Option]:
    """``--phases FILE`` and ``--phase KEY=VALUE,…``, of a run that these options describe."""
    of_file = Option(
        "--phases",
        partial(_from_file, known),
        "a TOML file of [[phases]]; what stands above the first is for all",
        metavar="FILE",
    )
    inline = Option(
        "--phase",
        partial(_from_texts, known),
        "one phase, repeatable: steps=100,noise-multiplier=2; rest is for all",
        metavar="KEY=VALUE,…",
        is_list=True,
    )
    return of_file, inline


def _from_file(known: tuple[Option, ...], name: str, text: str) -> list[dict[str, str]]:
    try:
        content = parse_toml(Path(text).read_bytes())
    except (OSError, ValueError) as error:
        raise ParameterError(name, text, f"{_TABLES} ({str(error).splitlines()[0]})") from None
    phases = content.pop("phases", None)
    if not isinstance(phases, list) or not phases or not all(isinstance(phase, dict) for phase in phases):
        raise ParameterError(name, text, _TABLES)
    keys = [option.dest for option in known]
    for key in [*content, *(key for phase in phases for key in phase)]:
        if key not in keys:
            raise ParameterError(name, key, f"{_TABLES} whose keys are {', '.join(keys)}")
    return [{key: _text(value) for key, value in {**content, **phase}.items()} for phase in phases]


def _text(value: Any) -> str:
    return {True: "yes", False: "no"}[value] if isinstance(value, bool) else str(value)


def _from_texts(known: tuple[Option, ...], name: str, texts: Sequence[str]) -> list[dict[str, str]]:
    return [dict(_pair(known, name, pair) for pair in text.split(",")) for text in texts]


def _pair(known: tuple[Option, ...], name: str, text: str) -> tuple[str, str]:
    key, given, value = (part.strip() for part in text.partition("="))
    options = {option.dest: option for option in known}
    option = options.get(key.replace("-", "_"))
    if option is None:
        close = did_you_mean(key, [option.flag.lstrip("-") for option in known])
        raise ParameterError(name, text, f"{_PAIRS}{close}")
    if not given and option.is_flag:
        return option.dest, "yes"
    if not value:
        raise ParameterError(name, text, f"{_PAIRS}, each with its value")
    return option.dest, value
