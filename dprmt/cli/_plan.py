"""``dprmt plan``."""

from __future__ import annotations

import argparse
import dataclasses
import sys

from dprmt import __version__
from dprmt._files import strict_json
from dprmt._validation import ParameterError
from dprmt.cli._changes import add_changes, recipe_changes
from dprmt.cli._options import Commands, UsageError, add_command_with, name_of
from dprmt.cli._recipe_records import CONFIG, FROM_RECORD, how_to_install_for, recipe_of, recipe_record
from dprmt.cli._text_table import text_table

_HEADER = ["norms", "time ×", "seconds", "MiB at the peak", "ε ≤"]
_EXAMPLES = """\
examples:
  dprmt plan minilm-docstrings
  dprmt plan recipe.toml --set training.micro_batch_size=4 --device cpu
"""


def add_command(commands: Commands) -> None:
    """The command, its options and its help."""
    parser = add_command_with(commands, "plan", (FROM_RECORD,), run_plan, _EXAMPLES)
    parser.add_argument(
        "recipe",
        metavar="RECIPE",
        nargs="?",
        type=name_of("a recipe"),
        help="a .toml file, or a name that `dprmt recipes` lists",
    )
    parser.add_argument("--device", metavar="NAME", help="cpu, cuda, …; a GPU if there is one by default")
    add_changes(parser)


def run_plan(namespace: argparse.Namespace) -> None:
    """Measured costs, as a table or JSON."""
    try:
        from dprmt.training.harness import recipe_costs
        from dprmt.training.recipes import load_recipe
    except ModuleNotFoundError as error:
        raise UsageError(f"dprmt plan: needs {error.name}: {how_to_install_for(namespace.recipe)}") from None
    try:
        record = recipe_record(namespace)
        if record is None and namespace.recipe is None:
            raise ParameterError("recipe", None, "given, or --from-json")
        recipe = load_recipe(namespace.recipe) if record is None else recipe_of(record)
        recipe = recipe.with_changes(recipe_changes(namespace.set))
        costs = recipe_costs(recipe, device=namespace.device)
    except ParameterError as error:
        name = {"recipe": "RECIPE", "from_json": "--from-json", "device": "--device"}.get(error.name, error.name)
        raise UsageError(f"dprmt plan: {name} must be {error.allowed}, got {error.value!r}") from None
    if namespace.json:
        found = dataclasses.asdict(costs) | {"recommended": costs.recommended.way, "sentence": costs.sentence}
        asked = {"version": __version__, "recipe": recipe.name, "delta": recipe.privacy.delta}
        sys.stdout.write(strict_json(asked | {CONFIG: recipe.to_dict()} | found) + "\n")
        return
    plain = f"without privacy {costs.plain_seconds:.3g} s, {costs.plain_peak / 2**20:.3g} MiB"
    lines = [
        f"{recipe.name}: a step of one micro-batch, measured; {plain}",
        text_table(_HEADER, costs.rows()),
        f"time ×: of a step without privacy; ε at δ = {recipe.privacy.delta:g}; {costs.neighbours}",
        f"recommended: {costs.sentence}",
    ]
    sys.stdout.write("\n".join(lines) + "\n")
