"""``dprmt recipes``."""

from __future__ import annotations

import argparse
import sys

from dprmt._files import strict_json
from dprmt._validation import ParameterError
from dprmt.cli._options import Commands, UsageError, add_command_with

_EXAMPLES = """\
examples:
  dprmt recipes
  dprmt recipes minilm-docstrings > mine.toml
"""


def add_command(commands: Commands) -> None:
    """The command, its options and its help."""
    summary = "the recipes that come with the package, or one of them in full"
    parser = add_command_with(commands, "recipes", summary, (), run_recipes, _EXAMPLES)
    parser.add_argument("name", metavar="NAME", nargs="?", help="a recipe, to be printed as TOML")


def run_recipes(namespace: argparse.Namespace) -> None:
    """One line a recipe, or its text with every value written out."""
    from dprmt.training.recipes import builtin_recipes, load_recipe

    if namespace.name is not None:
        try:
            recipe = load_recipe(namespace.name)
        except ParameterError as error:
            raise UsageError(f"dprmt recipes: NAME must be {error.allowed}, got {error.value!r}") from None
        text = strict_json(recipe.to_dict()) + "\n" if namespace.json else recipe.to_toml()
    elif namespace.json:
        text = strict_json({name: load_recipe(name).to_dict() for name in builtin_recipes()}) + "\n"
    else:
        text = "".join(f"{name}\n" for name in builtin_recipes())
    sys.stdout.write(text)
