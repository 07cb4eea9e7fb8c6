"""Whose privacy, and what else is released: from flat options to the library's values."""

from __future__ import annotations

from typing import Any

from dprmt._validation import ParameterError, did_you_mean
from dprmt.accounting import (
    AddRemove,
    ApproximateRelease,
    GaussianRelease,
    Group,
    LaplaceRelease,
    Neighbours,
    Release,
    ReplaceOne,
    ZeroOut,
)
from dprmt.cli._options import Option, choice, count

_RELATIONS = {relation.kind: relation for relation in (ZeroOut(), AddRemove(), ReplaceOne())}
_RELEASES = {"gaussian": (GaussianRelease, 1), "laplace": (LaplaceRelease, 1), "approximate": (ApproximateRelease, 2)}
_FORM = "gaussian:SIGMA, laplace:SCALE or approximate:EPSILON:DELTA, in units of what neighbours can change"

NEIGHBOURS = (
    Option(
        "--neighbours",
        choice(*_RELATIONS),
        "whose privacy: zero-out (default; one example present, or without a gradient), add-remove (the same numbers,"
        " if rate and divisor do not depend on the number of examples) or replace-one",
    ),
    Option(
        "--group",
        count(high=1000),
        "up to M examples of one person, each with a coin of its own, change at once; in [1, 1000]",
        metavar="M",
    ),
)


def neighbours_of(values: dict[str, Any]) -> Neighbours:
    """The value that the options describe."""
    relation = _RELATIONS[values["neighbours"] or "zero-out"]
    if values["group"] is None:
        return relation
    if isinstance(relation, ReplaceOne):
        raise ParameterError("group", values["group"], "left out where --neighbours is replace-one")
    return Group(values["group"], relation)


def _read_releases(name: str, texts: Any) -> tuple[Release, ...]:
    return tuple(_read_release(name, text) for text in texts)


def _read_release(name: str, text: str) -> Release:
    word, *numbers = text.split(":")
    if word not in _RELEASES:
        raise ParameterError(name, text, f"{_FORM}{did_you_mean(word, list(_RELEASES))}")
    make, needed = _RELEASES[word]
    try:
        found = [float(number) for number in numbers]
        if len(found) != needed:
            raise ValueError
        return make(*found)
    except ParameterError as error:
        raise ParameterError(name, text, f"one with {error}") from None
    except ValueError:
        raise ParameterError(name, text, _FORM) from None


ALSO = Option(
    "--also", _read_releases, f"released beside training, may be repeated: {_FORM}", metavar="R", is_list=True
)
"""Releases beside the run."""
