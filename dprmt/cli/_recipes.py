"""``dprmt recipes``."""

from __future__ import annotations

import argparse
import sys

from dprmt._files import strict_json
from dprmt._validation import ParameterError
from dprmt.cli._options import Commands, UsageError, add_command_with
from dprmt.cli._recipe_records import FROM_RECORD, recipe_of, recipe_record

_EXAMPLES = """\
examples:
  dprmt recipes
  dprmt recipes minilm-docstrings > mine.toml
"""


def add_command(commands: Commands) -> None:
    """The command, its options and its help."""
    parser = add_command_with(commands, "recipes", (FROM_RECORD,), run_recipes, _EXAMPLES)
    parser.add_argument("recipe", metavar="NAME", nargs="?", help="a recipe, to be printed as TOML")


def run_recipes(namespace: argparse.Namespace) -> None:
    """One line a recipe, or its text with every value written out."""
    from dprmt.training.recipes import builtin_recipes, load_recipe

    if namespace.recipe is not None or namespace.from_json is not None:
        try:
            record = recipe_record(namespace)
            recipe = load_recipe(namespace.recipe) if record is None else recipe_of(record)
        except ParameterError as error:
            name = {"recipe": "NAME", "from_json": "--from-json"}.get(error.name, error.name)
            raise UsageError(f"dprmt recipes: {name} must be {error.allowed}, got {error.value!r}") from None
        text = strict_json(recipe.to_dict()) + "\n" if namespace.json else recipe.to_toml()
    elif namespace.json:
        text = strict_json({name: load_recipe(name).to_dict() for name in builtin_recipes()}) + "\n"
    else:
        text = "".join(f"{name}\n" for name in builtin_recipes())
    sys.stdout.write(text)
