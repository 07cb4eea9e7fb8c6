"""The commands about recipes: ``plan`` measures what one costs, ``train`` runs it, ``recipes`` lists or prints them."""

from __future__ import annotations

import argparse
import dataclasses
import math
import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dprmt import __version__
from dprmt._files import parse_toml, strict_json
from dprmt._rounding import round_up
from dprmt._validation import ParameterError
from dprmt.accounting import DPSGD
from dprmt.cli._options import Commands, Parser, UsageError, add_parser, count, name_of, refused
from dprmt.cli._terminal import text_table

if TYPE_CHECKING:
    from dprmt.training.harness import DryRun, TrainingResult
    from dprmt.training.recipes import Recipe

NO_PRIVACY = "clip only, no privacy: no noise was or would be added, and no ε is stated"


def _change(text: str) -> tuple[str, Any]:
    """A change KEY=VALUE by dotted name: the value is TOML, a bare word a string; nothing takes the key away."""
    key, sign, value = (part.strip() for part in text.partition("="))
    if not sign or not key:
        raise refused(text, "of the form KEY=VALUE")
    with suppress(ValueError):  # also a number with more digits than Python reads
        return key, parse_toml(f"value = {value}")["value"]
    return key, value or None


def add_set(parser: Parser) -> None:
    """Declare ``--set``."""
    words = "change a value, such as training.steps=100; KEY= removes it"
    parser.add_argument("--set", type=_change, action="append", default=[], metavar="KEY=VALUE", help=words)


def add_command(commands: Commands) -> None:
    """The commands of this file, with their options and help."""
    examples: tuple[str, ...] = ("minilm-docstrings", "recipe.toml --set training.micro_batch_size=4 --device cpu")
    plan = add_parser(commands, "plan", run_plan, examples, usage="RECIPE [options]")
    examples = (
        "minilm-docstrings --dry-run",
        "--resume runs/first",
        "recipe.toml --set training.steps=100 --set privacy.target_epsilon=2",
    )
    train = add_parser(commands, "train", run_train, examples, usage="[RECIPE] [options]")
    examples = ("", "minilm-docstrings > mine.toml")
    recipes = add_parser(commands, "recipes", run_recipes, examples, usage="[NAME] [options]")
    what, file = "a .toml file, or a name that `dprmt recipes` lists", name_of("a recipe")
    device = "cpu, cuda, …; a GPU if there is one by default"
    plan.add_argument("recipe", metavar="RECIPE", type=file, help=what)
    train.add_argument("recipe", metavar="RECIPE", nargs="?", type=file, help=what)
    for parser in (plan, train):
        add_set(parser)
        parser.add_argument("--device", metavar="DEVICE", help=device)
    recipes.add_argument("recipe", metavar="NAME", nargs="?", help="a recipe, to be printed as TOML")
    folder, add = name_of("a folder"), train.add_argument
    go_on = "continue the run in this folder, as its config.toml says, with fresh noise"
    seed = "repeatable noise, for studies: known noise protects no one"
    add("--out", metavar="DIR", type=folder, help="the run folder; runs/NAME by default")
    add("--resume", metavar="RUN", type=folder, help=go_on)
    add("--dry-run", action="store_true", help="print what would be done: noise, ε, norms")
    add("--noise-seed", metavar="SEED", type=count(low=0, high=2**63 - 1), help=seed)


def run_recipes(namespace: argparse.Namespace) -> None:
    """One line a recipe, or its text with every value written out."""
    from dprmt.training.recipes import builtin_recipes, load_recipe

    if namespace.recipe is not None:
        recipe = load_recipe(namespace.recipe)
        text = strict_json(recipe.to_dict()) + "\n" if namespace.json else recipe.to_toml()
    elif namespace.json:
        text = strict_json({name: load_recipe(name).to_dict() for name in builtin_recipes()}) + "\n"
    else:
        text = "".join(f"{name}\n" for name in builtin_recipes())
    sys.stdout.write(text)


def run_plan(namespace: argparse.Namespace) -> None:
    """Measured costs, as a table or JSON."""
    from dprmt.training.harness import recipe_costs
    from dprmt.training.recipes import load_recipe

    recipe = load_recipe(namespace.recipe).with_changes(dict(namespace.set))
    costs = recipe_costs(recipe, device=namespace.device)
    plain = f"without privacy {costs.plain_seconds:.3g} s, {costs.plain_peak / 2**20:.3g} MiB"
    found = dataclasses.asdict(costs) | {"recommended": costs.recommended.way, "sentence": costs.sentence}
    lines = (
        f"{recipe.name}: a step of one micro-batch, measured; {plain}",
        text_table(["norms", "time ×", "seconds", "MiB at the peak", "ε ≤"], costs.rows()),
        f"time ×: of a step without privacy; ε at δ = {recipe.privacy.delta:g}; {costs.neighbours}",
        f"recommended: {costs.sentence}",
    )
    _print(namespace, recipe, found, lines)


def run_train(namespace: argparse.Namespace) -> None:
    """A run of a recipe, its continuation, or what it would do."""
    from dprmt.training.harness import dry_run, train
    from dprmt.training.recipes import load_recipe

    out, resume = namespace.resume or namespace.out, namespace.resume is not None
    if resume == (namespace.recipe is not None) or (resume and namespace.out is not None):
        raise UsageError("a recipe must be named (dprmt recipes lists them), or only the folder of a run: --resume RUN")
    recipe = (_recipe_of_run(Path(out)) if resume else load_recipe(namespace.recipe)).with_changes(dict(namespace.set))
    options = {"resume": resume, "noise_seed": namespace.noise_seed, "device": namespace.device}
    if namespace.dry_run:
        # Without --out or --resume no folder is meant: a plan can be asked for next to a run.
        plan = dry_run(recipe, out=out, **options)
        _print(namespace, recipe, *_planned(plan, recipe))
        return
    result = train(recipe, out or str(Path("runs") / recipe.name), show_progress=not namespace.json, **options)
    if os.environ.get("RANK", "0") == "0":  # one of the processes of torchrun prints for all
        found, lines = _trained(result, recipe)
        _print(namespace, recipe, (_charged(result, recipe) if namespace.json else {}) | found, lines)
    if not result.finished:
        raise KeyboardInterrupt


def _recipe_of_run(folder: Path) -> Recipe:
    from dprmt.training.recipes import recipe_from_dict

    try:
        values = parse_toml((folder / "config.toml").read_bytes())
    except (OSError, ValueError):
        allowed = "the folder of a run that was started: one with a config.toml"
        raise ParameterError("resume", str(folder), allowed) from None
    return recipe_from_dict(values)


def _print(namespace: argparse.Namespace, recipe: Recipe, found: dict[str, Any], lines: Sequence[str]) -> None:
    setting = {"version": __version__, "recipe": recipe.name, "delta": recipe.privacy.delta, "config": recipe.to_dict()}
    sys.stdout.write((strict_json(setting | found) if namespace.json else "\n".join(lines)) + "\n")


def _trained(result: TrainingResult, recipe: Recipe) -> tuple[dict[str, Any], list[str]]:
    privacy = recipe.privacy
    how = "finished" if result.finished else "stopped"
    lines = [f"{result.folder}: {how} after {result.steps} of {recipe.training.steps} steps"]
    if not result.finished:
        lines.append(f"continue with: dprmt train --resume {result.folder}")
    at = f"at δ = {privacy.delta:g}, {result.charged} steps charged; {result.neighbours}"
    lines += [NO_PRIVACY if privacy.clip_only else f"ε ≤ {round_up(result.epsilon)} {at}", f"norms: {result.norms}"]
    if recipe.evaluation.private_noise is not None and result.finished:
        lost = "with noise, charged in ε" if result.evaluation else "charged in ε, and lost in a crash"
        lines.append(f"score: {lost}")
    for name, value in result.evaluation.items():
        lines.append(f"{name}: {value:.6g}" if isinstance(value, float) else f"{name}: {value}")
    return dataclasses.asdict(result) | {"folder": str(result.folder)}, lines


def _planned(plan: DryRun, recipe: Recipe) -> tuple[dict[str, Any], list[str]]:
    training, clip_only = recipe.training, recipe.privacy.clip_only
    document: dict[str, Any] = dataclasses.asdict(plan) | {"steps": training.steps}
    kind = {"kind": DPSGD.kind} if document["mechanism"].pop("mechanism") == DPSGD.__name__ else {}
    document["mechanism"] = kind | document["mechanism"]
    document["neighbours"] = document["mechanism"].get("neighbours", {}).get("kind")
    batches = f"expected batch {training.batch_size} in micro-batches of {training.micro_batch_size}"
    lines = [
        f"{recipe.name}: {plan.samples} training samples, {batches}, {training.steps} steps",
        f"one step: {', '.join(f'{name}={value}' for name, value in plan.mechanism.items())}",
        f"norms: {plan.norms}",
        f"noise: {plan.noise_std:.4g} per entry of the gradient",
        NO_PRIVACY if clip_only else f"ε at δ = {recipe.privacy.delta:g}; {plan.neighbours}",
    ]
    for step, epsilon in {} if clip_only else plan.epsilon_after.items():
        score = " and the score" if recipe.evaluation.private_noise and step == training.steps else ""
        lines.append(f"ε ≤ {round_up(epsilon)} after step {step}{score}")
    numbers = sum(map(math.prod, plan.trainable.values()))
    lines.append(f"trainable: {numbers} numbers in {len(plan.trainable)} parameters")
    return document, lines


def _charged(result: TrainingResult, recipe: Recipe) -> dict[str, object]:
    # What was charged, in the words of the accounting commands; a run without noise claims nothing.
    from dprmt.training.harness import read_card

    if recipe.privacy.clip_only or not result.charged:
        return {}
    card = read_card(result.folder).as_dict()
    return {name: card[name] for name in ("neighbours", "unit", "phases", "also") if name in card}
