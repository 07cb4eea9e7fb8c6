"""Answers that ``--json`` printed, read back: every one is a complete record of its run."""

from __future__ import annotations

import sys
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from dprmt._files import parse_json
from dprmt._validation import ParameterError, check_count, needing
from dprmt.accounting import DPSGD, Composition, Release, compose, release_from_dict
from dprmt.cli._options import Option
from dprmt.statements import mechanism_from_dict

_FORM = "a file with what --json printed, or - for standard input"


def read_record(name: str, text: str, command: str, keys: Collection[str] = ()) -> dict[str, Any]:
    """What a command's ``--json`` printed, with any of these keys."""
    try:
        content = sys.stdin.read() if text == "-" else Path(text).read_text(encoding="utf-8")
        record = parse_json(content)
    except (OSError, ValueError) as error:
        raise ParameterError(name, text, f"{_FORM} ({str(error).splitlines()[0]})") from None
    if not isinstance(record, dict) or (keys and not set(keys) & set(record)):
        raise ParameterError(name, text, f"{_FORM}, {command}")
    return record


def of_record(command: str, *keys: str) -> Option:
    """``--from-json`` of a command that answers no question about a run's privacy."""
    return Option(
        "--from-json",
        lambda name, text: read_record(name, text, f"of {command}", keys),
        f"what --json of {command} printed, in place of what it was asked",
        metavar="FILE",
    )


_RUN_KEYS = ("mechanism", "phases")
_OF_A_RUN = "of a run: one with a mechanism and steps, or with phases"
FROM_JSON = Option(
    "--from-json",
    lambda name, text: read_record(name, text, _OF_A_RUN, _RUN_KEYS),
    "a run that --json printed before, in place of these options",
    metavar="FILE",
)


def phases_of(record: Mapping[str, Any]) -> tuple[tuple[DPSGD, int], ...]:
    """Its mechanisms and numbers of steps."""
    stated = record.get("phases", [record])
    try:
        return tuple((_mechanism(phase["mechanism"]), check_count("steps", phase["steps"])) for phase in stated)
    except (KeyError, TypeError, AttributeError) as error:
        raise _incomplete(error) from None


def releases_of(record: Mapping[str, Any]) -> tuple[Release, ...]:
    """What is released beside it."""
    try:
        return tuple(release_from_dict(release) for release in record.get("also", ()))
    except (TypeError, ValueError) as error:
        raise _incomplete(error) from None


def composition_of(record: Mapping[str, Any]) -> Composition:
    """The whole run of a record."""
    before = [composition_of(record["spent"])] if isinstance(record.get("spent"), Mapping) else []
    return compose([*phases_of(record), *releases_of(record), *before])


def document_of(run: Composition) -> dict[str, Any]:
    """A record of a whole run, which :func:`composition_of` reads."""
    also = [release.as_dict() for release, times in run.phases if isinstance(release, Release) for _ in range(times)]
    phases = [{"mechanism": one.as_dict(), "steps": steps} for one, steps in run.phases if isinstance(one, DPSGD)]
    return {"phases": phases, "also": also}


def _spent(name: str, text: str) -> Composition:
    if Path(text).is_dir():
        with needing("train"):
            from dprmt.training.harness import read_card

        return read_card(text).run
    return composition_of(read_record(name, text, _OF_A_RUN, _RUN_KEYS))


SPENT = Option(
    "--spent",
    _spent,
    "what the samples spent before: run folder, privacy card, --json output",
    metavar="PLACE",
)
"""What stays as it is, in addition to the run that is described."""


def stated(record: Mapping[str, Any], option: Option) -> str | None:
    """What the record states under an option's name, or as its target, as the option's text."""
    for name in (option.dest, f"target_{option.dest}"):
        value = record.get(name)
        if isinstance(value, str):
            return value
        if isinstance(value, int | float) and not isinstance(value, bool):
            return repr(value)
    return None


def _mechanism(record: Mapping[str, Any]) -> DPSGD:
    try:
        return mechanism_from_dict(record)
    except ParameterError as error:
        name = "from_json" if error.name == "mechanism" else error.name
        raise ParameterError(name, error.value, error.allowed) from None


def _incomplete(error: Exception) -> ParameterError:
    return ParameterError("from_json", f"a record without {error}", _FORM)
